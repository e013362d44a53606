"""combination: the models of several tasks made into one, in one way, for every group of tasks of one seed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skill_grafting.grafting.apply import graft_into, transplant
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.mask_files import StoredMask, read_mask_for
from skill_grafting.grafting.region import Tensors
from skill_grafting.localizers.localizer import Localizer
from skill_grafting.localizers.movement import movement_mask
from skill_grafting.merging.arithmetic import (
    agreed,
    choose_alpha,
    mean_normalised,
    shifted,
    tall_mask,
    task_vector,
    within,
)
from skill_grafting.merging.stitching import stitch
from skill_grafting.merging.ways import AVERAGE, CONSENSUS, merged_vector, summed
from skill_grafting.models.anatomy import ModelSpec, read_anatomy
from skill_grafting.models.loading import read_tensors
from skill_grafting.support.fields import HEAD
from skill_grafting.support.io import read_rows, write_json
from skill_grafting.support.progress import progress
from stages.merge.settings import (
    LOCALIZED,
    MERGED,
    MOVED,
    STITCHES,
    CombinationParams,
    Search,
    Settings,
    kind_of,
    read_localized,
)
from stages.text.models.encoding import Example
from stages.text.models.predicting import predict
from stages.text.models.shared import SharedModel
from stages.text.rows.sampling import spread
from stages.text.scores.classification import accuracy
from stages.text.scores.predictions import Predictions, first_rows, read_predictions, write_predictions
from stages.text.scores.scores import Row, score_rows
from stages.text.scores.variants import FINETUNED
from stages.text.tasks.runtime import Runtime
from stages.workflow.cells.cells import GraftCell
from stages.workflow.cells.stored import read_task
from stages.workflow.cells.training import bytes_of, open_shared, stored_bytes
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage


def combine(method: str, group: str, seed: int, params: Settings, machine: Runtime) -> str:
    """Store what one merged model of a group predicts, how it was made and its scores; returns a line for the log."""
    tasks, kind = params.merge.groups[group], kind_of(method)
    cell = Group.open(method, tasks, seed, params, machine)
    tensors, facts = merge(method, cell, params.combination)
    rows = []
    with progress(f"combination {method} {group}-{seed}", len(tasks), "task") as bar:
        for task in tasks:
            target = paths.logits("combination", f"{group}/{task}", seed, method)
            rows += _measured(cell, task, {**cell.own(task), MERGED: tensors}, target, params)
            bar.update(1)
    header = {"stage": "combination", "method": method, "group": group, "seed": seed, "kind": kind, "tasks": tasks}
    heads = sum(bytes_of(head.values()) for head in cell.shared.heads().values())
    header |= {"model_parameters": cell.anatomy.parameters, "head_bytes": heads}
    searched = {"searches": cell.searches} if cell.searches else {}
    write_json(paths.record("combination", group, seed, method), {**header, **facts, **searched, "rows": rows})
    scores = ", ".join(f"{row['task']} {row['score']:.3f}" for row in rows if row["variant"] == MERGED)
    return f"combination {method} {group}-{seed}: {scores}"


@dataclass(frozen=True)
class Group:
    """The tasks that become one model, for one seed: a live model with every task's own trained head.

    pretrained: the parameters that are merged, before fine-tuning.  models: task -> the same ones in
    its single-task model, grafted or fine-tuned.  grafts: the masks that these grafts come from, in
    the order of the tasks; none if whole models are merged.  Of masks that were looked for here, by
    task: `moved`, the grafts of equal size of what moved most, and `searches`, how they were found.
    """

    seed: int
    shared: SharedModel
    anatomy: ModelSpec
    pretrained: dict[str, Tensor]
    models: dict[str, dict[str, Tensor]]
    grafts: list[StoredMask]
    moved: dict[str, StoredMask] = field(default_factory=dict)
    searches: dict[str, list[Row]] = field(default_factory=dict)

    def own(self, task: str) -> dict[str, Tensors]:
        """The single-task models of masks that were looked for here."""
        if task not in self.moved:
            return {}
        moved = self.moved[task]
        return {LOCALIZED: self.models[task], MOVED: transplant(self.pretrained, moved.values, moved.mask)}

    @classmethod
    def open(cls, method: str, tasks: list[str], seed: int, params: Settings, machine: Runtime) -> "Group":
        """Load what a method merges: grafts from their mask files or by a localizer of its own, or fine-tuned models."""
        anatomy = read_anatomy(paths.PRETRAINED)
        shared = open_shared(tasks, seed, params.model, machine)
        if kind_of(method) == FINETUNED:
            moved = anatomy.names([group for group in params.finetune.train if group != HEAD])
            models = {task: read_tensors(paths.finetuned(task, seed), moved) for task in tasks}
            return cls(seed, shared, anatomy, read_tensors(paths.PRETRAINED, moved), models, [])
        pretrained = read_tensors(paths.PRETRAINED, anatomy.region(params.graft.region, "graft.region").shapes)
        moved, searches = {}, {}
        if kind_of(method) == LOCALIZED:
            found = {task: localized(method, task, seed, params, machine) for task in tasks}
            grafts = [graft for graft, _, _ in found.values()]
            moved = {task: graft for task, (_, graft, _) in found.items()}
            searches = {task: rows for task, (_, _, rows) in found.items()}
        else:
            grafts = [read_mask_for(paths.mask("learned", task, seed), pretrained, anatomy.name) for task in tasks]
        models = {
            task: transplant(pretrained, graft.values, graft.mask) for task, graft in zip(tasks, grafts, strict=True)
        }
        return cls(seed, shared, anatomy, pretrained, models, grafts, moved, searches)


def localized(
    method: str, task: str, seed: int, params: Settings, machine: Runtime
) -> tuple[StoredMask, StoredMask, list[Row]]:
    """The graft of a task by the localizer and size in a name such as stitch_0.01, and that of equal size of what moved most.

    The step size is that whose graft has the lowest loss on the training rows, the first of equals; gives a row for each one.
    """
    name, share = read_localized(method)
    cell = GraftCell.open(task, seed, params.model, params.graft.region, machine)
    loss, tried = cell.objective(), []
    for localizer in at_rates(getattr(params.localizer, name), params.combination.search.rates):
        mask = cell.masks(localizer, [share], "combination.methods", loss, cell.draws(name))[share]
        graft_into(loss.weights, cell.pretrained, cell.finetuned, mask)
        tried.append(({**_search(localizer, mask), "k": cell.region.budget(share), "graft_loss": loss.loss()}, mask))
    row, chosen = min(tried, key=lambda one: one[0]["graft_loss"])
    row["chosen"] = True
    moved = movement_mask(cell.pretrained, cell.finetuned, cell.region, row["k"])
    header = {**cell.origin(), "mode": params.model.mode}
    grafts = [StoredMask(mask, cell.values_at(mask), cell.head, header) for mask in (chosen, moved)]
    return *grafts, [row for row, _ in tried]


def at_rates(localizer: Localizer, rates: Sequence[float]) -> list[Localizer]:
    """A localizer with each of these step sizes, where its own is tied to a model's loss; l1 times the step size stays as it is."""
    if getattr(localizer, "rate_kind", "relative") == "relative":
        return [localizer]
    pull = localizer.l1 * localizer.learning_rate
    return [localizer.model_copy(update={"learning_rate": rate, "l1": pull / rate}) for rate in rates]


def _search(localizer: Localizer, mask: GraftMask) -> Row:
    """Step size, the loss on the training rows at both ends of the search, and how many crossed into the mask, where there are any."""
    record = mask.record
    start, end = record.get("loss", (None, None))
    rate = getattr(localizer, "learning_rate", None)
    return {"rate": rate, "start": start, "end": end, "crossed": record.get("crossed"), "chosen": False}


def merge(method: str, cell: Group, settings: CombinationParams) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The merged parameters, and the facts of how they were made; `settings` is the `combination` section."""
    facts: dict[str, Any] = {"bytes": bytes_of(cell.pretrained.values())}
    if cell.grafts:
        # the union of the masks is the same by every rule
        own_rule = "mean" if kind_of(method) == LOCALIZED else "sum"
        rule = method.removeprefix("stitch_") if method in STITCHES else own_rule
        mask, values = stitch(cell.grafts, cell.pretrained, rule)
        single_bytes = [stored_bytes(graft.mask, graft.values) for graft in cell.grafts]
        facts = {"bytes": stored_bytes(mask, values), "single_bytes": single_bytes, "graftable": mask.region.size}
        facts["collisions"] = count_collisions(cell.grafts, cell.pretrained)
        if method in STITCHES or kind_of(method) == LOCALIZED:
            return transplant(cell.pretrained, values, mask), facts
    if method == CONSENSUS:
        vector, found = consensus(cell, settings.search)
        facts |= found
    else:
        way, share = method.removeprefix("grafted_"), getattr(settings.shares, method, None)
        vector = merged_vector(way, cell.pretrained, cell.models, share, seed=cell.seed)
    if method == AVERAGE:
        return shifted(cell.pretrained, vector, 1 / len(cell.models)), facts
    curve = alpha_curve(cell, vector, settings.search)
    alpha = choose_alpha(curve)
    dev = [{"alpha": point, "normalised": value} for point, value in sorted(curve.items())]
    return shifted(cell.pretrained, vector, alpha), {**facts, "alpha": alpha, "dev": dev}


def alpha_curve(cell: Group, vector: dict[str, Tensor], search: Search) -> dict[float, float]:
    """alpha -> mean over tasks of accuracy on dev / that of the task's single model of the same kind."""
    dev, singles = _dev_examples(cell, search.dev_max), {}
    with progress("alphas on dev", len(search.alphas) + 1, "point") as bar:
        for task, model in cell.models.items():
            cell.shared.first.put(model)
            singles[task] = _accuracy(cell, task, dev[task])
        bar.update(1)
        curve = {}
        for alpha in search.alphas:
            cell.shared.first.put(shifted(cell.pretrained, vector, alpha))
            curve[alpha] = mean_normalised({task: _accuracy(cell, task, dev[task]) for task in dev}, singles)
            bar.update(1)
    return curve


def consensus(cell: Group, search: Search) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The sum of the task vectors where two tasks or more select it, each by the lambda that is best for it on dev.

    Of equally good lambdas it is the smallest.  A task is rated with the sum within its own mask, as its authors do.
    """
    total, masks, chosen = summed(cell.pretrained, cell.models), [], {}
    with progress("lambdas on dev", len(cell.models) * len(search.strictness), "point") as bar:
        for task, dev in _dev_examples(cell, search.dev_max).items():
            vector, scores = task_vector(cell.pretrained, cell.models[task]), {}
            for strictness in search.strictness:
                cell.shared.first.put(shifted(cell.pretrained, within(total, tall_mask(vector, total, strictness))))
                scores[strictness] = _accuracy(cell, task, dev)
                bar.update(1)
            chosen[task] = choose_alpha(scores)
            masks.append(tall_mask(vector, total, chosen[task]))
    both = agreed(masks)
    selected = sum(int(mask.sum()) for mask in both.values())
    return within(total, both), {"lambdas": chosen, "selected": selected}


def _dev_examples(cell: Group, most: int) -> dict[str, list[Example]]:
    """Task -> at most so many of its dev rows, 0 for all."""
    rows = {task: read_rows(paths.sample(task, cell.seed, "dev")) for task in cell.models}
    return {task: view.encode(spread(rows[task], most)) for task, view in cell.shared.views.items()}


def _accuracy(cell: Group, task: str, examples: list[Example]) -> float:
    return accuracy(predict(cell.shared.views[task], examples).numpy(), [example.label for example in examples])


def _measured(cell: Group, task: str, models: dict[str, Tensors], target: Path, params: Settings) -> list[Row]:
    """Store the logits of the test rows by these models; gives their rows, and those of the stored single-task models."""
    n, view, logits = params.merge.test_max, cell.shared.views[task], {}
    examples = view.encode(read_rows(paths.sample(task, cell.seed, "test"))[: n or None])
    labels = np.array([example.label for example in examples])
    for variant, tensors in models.items():
        cell.shared.first.put(tensors)
        logits[variant] = predict(view, examples).numpy()
    merged = Predictions(view.task.labels, {task: labels}, {task: logits})
    write_predictions(target, merged)
    together = _stored("reference", task, cell.seed, n) | _stored("evaluate", task, cell.seed, n) | merged
    return [{"task": task, **row} for row in score_rows(together, read_task(task), params.calibration.bins)]


def _stored(stage: str, task: str, seed: int, n: int) -> Predictions:
    """Stored predictions of single-task models for the first n rows of the task's own test set."""
    stored = read_predictions(paths.logits(stage, task, seed))
    return first_rows(stored.part([task]), n)


# --- Where grafts collide ---------------------------------------------------------------------------------------


def count_collisions(grafts: Sequence[StoredMask], pretrained: Tensors) -> dict[str, int | float]:
    """Numbers of parameters: selected by any graft, by two or more, and by two or more that move it apart.

    union, colliding, opposed (among the colliding ones: one graft moves it up and another down);
    chance_union and chance_colliding: their expectations for random masks of the same sizes.  All
    grafts are of one region, as `stitch` asks for.
    """
    region = grafts[0].mask.region
    union = colliding = opposed = 0
    for name in region.shapes:
        chosen = torch.zeros(pretrained[name].numel(), dtype=torch.int16)
        up, down = torch.zeros_like(chosen), torch.zeros_like(chosen)
        for graft in (graft for graft in grafts if name in graft.mask.indices):
            places = graft.mask.indices[name]
            moved = graft.values[name] - pretrained[name].reshape(-1)[places]
            chosen[places] += 1
            up[places] += (moved > 0).short()
            down[places] += (moved < 0).short()
        union += int((chosen > 0).sum())
        colliding += int((chosen > 1).sum())
        opposed += int(((up > 0) & (down > 0)).sum())
    by_chance = chance_collisions([graft.mask.selected for graft in grafts], region.size)
    return {"union": union, "colliding": colliding, "opposed": opposed, **by_chance}


def chance_collisions(selected: Sequence[int], size: int) -> dict[str, float]:
    """chance_union and chance_colliding for independent random masks of these sizes among `size` parameters, exactly.

    A parameter is in mask i with probability selected[i] / size, whatever the other masks are.
    """
    shares = [number / size for number in selected]
    none = prod(1 - share for share in shares)
    one = sum(
        share * prod(1 - other for place, other in enumerate(shares) if place != number)
        for number, share in enumerate(shares)
    )
    return {"chance_union": size * (1 - none), "chance_colliding": size * (1 - none - one)}


@stage
def main(params: Settings, machine: Runtime, method: str, seed: int) -> None:
    """Merge, choose the weight on dev if there is one, and measure on the test set of every task."""
    for group in params.merge.groups:
        print(combine(method, group, seed, params, machine))
