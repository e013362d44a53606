"""edit: the task vectors of one method, for all tasks of one seed.

full and graft are the fine-tuned models and the grafts of the main pipeline.  All others start at
the pretrained backbone under the trained head, which stays as it is, see as many examples as full did,
and train alike, but for the learning rate, which dev chooses for each: full_matched the whole region, linear the same of a model
to first order, attention the weights of the attention projections, and any localizer of the registry the parameters that it
selects.  So talos trains the least sensitive ones, and lota those that moved most in the main pipeline's fine-tuning, which makes
its mask the movement mask of that size.
"""

import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from skill_grafting.grafting.apply import values_at
from skill_grafting.grafting.composition import ATTENTION_OUTPUT, FUSED, KEY, QUERY, VALUE, kind_of
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.mask_files import StoredMask, read_mask, write_mask
from skill_grafting.grafting.region import Region
from skill_grafting.localizers.localizer import Budget
from skill_grafting.support.errors import MaskError
from skill_grafting.support.progress import progress
from stages.talos.arithmetic_model import FULL, LINEAR, open_model
from stages.talos.linearised import LinearisedModel
from stages.talos.settings import EditTraining, Settings
from stages.text.models.label_model import LabelModel
from stages.text.models.predicting import dev_score
from stages.text.scores.classification import accuracy
from stages.text.scores.predictions import Predictions
from stages.text.scores.scores import majority_share, standard_error
from stages.text.scores.variants import PRETRAINED
from stages.text.tasks.runtime import Runtime, numpy_generator, seeded_torch
from stages.text.tasks.settings import FinetuneParams
from stages.text.training.finetuning import matched_steps
from stages.text.training.grid import Point, Trained, search
from stages.text.training.trainer import Hooks, TrainPlan, batches_of, train
from stages.workflow.cells.cells import GraftCell
from stages.workflow.cells.scoring import write_record
from stages.workflow.cells.stored import read_task
from stages.workflow.cells.training import chosen_point
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage

MATCHED, ATTENTION, GRAFT = "full_matched", "attention", "graft"
FROM_MAIN_PIPELINE = (FULL, GRAFT)
PROJECTIONS = (QUERY, KEY, VALUE, FUSED, ATTENTION_OUTPUT)
FLOAT_BYTES = INDEX_BYTES = 4
# numbers that an optimizer stores for each parameter, without and with momentum
STATES = {"adamw": (2, 2), "sgd": (0, 1)}
# the change of a model by a method for a task: the mask, its values, and a record of their making
TaskVector = tuple[GraftMask, dict[str, Tensor], dict[str, Any]]


def make_vectors(method: str, seed: int, params: Settings, machine: Runtime) -> list[str]:
    """Store every task's vector by one method, and its effect on all tasks; gives a line for each."""
    records = {}
    for task in params.talos.tasks:
        dropout = 0.0 if method == LINEAR else params.edit.training.dropout
        finetuned = LabelModel.load(paths.finetuned(task, seed), read_task(task), params.model, machine, dropout)
        cell = GraftCell.of(finetuned, seed, params.graft.region)
        make = vector_from_main_pipeline if method in FROM_MAIN_PIPELINE else train_vector
        mask, values, record = make(method, cell, params)
        records[task] = {"selected": mask.selected, "graftable": cell.region.size, **record}
        if method != FULL:
            write_mask(paths.mask("edit", task, seed, method), StoredMask(mask, values, {}, cell.origin()))
        del finetuned, cell, mask, values
    return predict_all(method, seed, params, machine, records)


def vector_from_main_pipeline(method: str, cell: GraftCell, params: Settings) -> TaskVector:
    """A vector taken from the main pipeline: the whole region, or the graft."""
    size, mask, values = cell.region.size, GraftMask.full(cell.region), {}
    if method == GRAFT:
        stored = read_mask(paths.mask("learned", cell.task, cell.seed))
        mask, values = stored.mask, stored.values
    steps = chosen_point(cell.task, cell.seed)["steps"]
    return mask, values, {"cost": {"steps": steps, **sizes(params.finetune, size, mask)}}


def train_vector(method: str, cell: GraftCell, params: Settings) -> TaskVector:
    """Choose the mask, and train it from the pretrained backbone."""
    start = time.monotonic()
    mask = choose_mask(method, cell, params)
    chosen = time.monotonic()
    plans = plans_of(params.edit.training, chosen_point(cell.task, cell.seed))
    steps = sum(plan.steps for plan in plans)
    with progress(f"edit {method} {cell.task}-{cell.seed}", steps, "step") as bar:
        plan, values, record = best_of(method, cell, mask, plans, bar.update)
    cost = {
        "calibration_seconds": chosen - start,
        "steps": steps,
        "train_seconds": time.monotonic() - chosen,
        "peak_bytes": peak_bytes(cell.model.runtime.device),
        **sizes(plan, mask.selected, mask),
    }
    return mask, values, {"cost": cost, **record}


def choose_mask(method: str, cell: GraftCell, params: Settings) -> GraftMask:
    """The mask that a method trains; raises MaskError if its localizer finds fewer parameters than asked for."""
    if method in (MATCHED, LINEAR):
        return GraftMask.full(cell.region)
    if method == ATTENTION:
        return attention_mask(cell.region)
    share, budget = params.talos.sparsity, Budget.of(cell.region, params.talos.sparsity, "talos.sparsity")
    localizer, seed = getattr(params.localizer, method), cell.draws(method)
    mask = cell.masks(localizer, [share], "talos.sparsity", cell.objective(), seed, method)[share]
    if mask.selected < budget.k:
        raise MaskError(
            f"edit.methods: {method} selects {mask.selected:,} parameters of {cell.task}-{cell.seed}, talos.sparsity "
            f"asks for {budget.k:,}; lower it, or leave {method} out"
        )
    return mask


def attention_mask(region: Region) -> GraftMask:
    """The weights of all query, key, value and output projections, their biases left out."""
    whole = GraftMask.full(region)
    return GraftMask(region, {name: at for name, at in whole.indices.items() if kind_of(name) in PROJECTIONS})


def plans_of(settings: EditTraining, chosen: Point) -> list[TrainPlan]:
    """A plan for each learning rate, all else the same for every method; they see as many examples as fine-tuning did."""
    same = settings.model_dump(exclude={"learning_rates", "dropout"})
    same["steps"] = matched_steps(chosen, settings.batch_size)
    return [TrainPlan(learning_rate=rate, **same) for rate in settings.learning_rates]


def best_of(
    method: str, cell: GraftCell, mask: GraftMask, plans: list[TrainPlan], on_step: Callable[[], object]
) -> tuple[TrainPlan, dict[str, Tensor], dict[str, Any]]:
    """Train the mask's entries of the cell's model by each plan, from the pretrained values on.

    Gives the plan with the best dev score (see grid.search), the values that it left, and a record of all.  The order
    of batches and the dropout are the same for every method and every plan.
    """
    reader = LinearisedModel(cell.model, cell.pretrained) if method == LINEAR else cell.model
    encoded = {split: reader.encode(cell.rows(split)) for split in ("train", "dev")}
    by_rate, words = {plan.learning_rate: plan for plan in plans}, ("edit", cell.task, cell.seed)

    def trained(point: Point) -> Trained[tuple[dict[str, Tensor], list[dict[str, float]]]]:
        plan = by_rate[point["learning_rate"]]
        cell.model.put(cell.pretrained)
        weights = cell.model.train_only({*mask.indices})
        with seeded_torch(*words):
            batches = batches_of(reader, encoded["train"], plan.batch_size, numpy_generator(*words))
            hooks = Hooks(on_step=on_step)
            curve = train(batches, weights, plan, hooks, mask).curve
        values = {name: part.cpu() for name, part in values_at(weights, mask).items()}
        return Trained((values, curve), dev_score(reader, encoded["dev"]))

    best = search(({"learning_rate": rate} for rate in by_rate), trained)
    values, curve = best.kept
    return by_rate[best.point["learning_rate"]], values, {**best.point, "grid": best.grid, "curve": curve}


def predict_all(method: str, seed: int, params: Settings, machine: Runtime, records: dict[str, Any]) -> list[str]:
    """Store what the model of every vector predicts on the test rows of every task; gives a line for each vector."""
    tasks, lines = params.talos.tasks, []
    model = open_model(method, tasks, seed, params, machine, {"test": params.talos.test_max})
    keys = [(task, "test") for task in tasks]
    logits = {PRETRAINED: model.logits({}, keys)}
    logits |= {trained_on: model.logits({trained_on: 1.0}, keys) for trained_on in tasks}
    for key in keys:
        task, labels, rows = key[0], model.labels(key), []
        variants = {trained_on: values[key] for trained_on, values in logits.items()}
        for variant, values in variants.items():
            share, n = accuracy(values, labels), len(labels)
            scores = {"accuracy": share, "accuracy_se": standard_error(share, n)}
            rows.append({"variant": variant, "n": n, "majority": majority_share(labels), **scores})
        predictions = Predictions(model.views[task].task.labels, {task: labels}, {task: variants})
        header = {"method": method, "task": task, "seed": seed, **records[task]}
        write_record("edit", (method,), header, predictions, rows)
        lines.append(f"edit {method} {task}-{seed}: accuracy {accuracy(variants[task], labels):.3f}")
    return lines


def peak_bytes(device: torch.device) -> int:
    """The most memory that this process has used so far, on its GPU if it has one."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts in bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def sizes(training: FinetuneParams | TrainPlan, trained: int, mask: GraftMask) -> dict[str, int]:
    """Number of trained parameters, and bytes of the optimizer's state for them and of what has to be stored.

    The latter is an index and a value for each parameter of the mask, or the values alone of a whole region.  `training`
    names the optimizer and its momentum.
    """
    state = STATES[training.optimizer][training.momentum > 0]
    stored = FLOAT_BYTES if mask.selected == mask.region.size else INDEX_BYTES + FLOAT_BYTES
    return {
        "trained": trained, "optimizer_bytes": state * FLOAT_BYTES * trained, "checkpoint_bytes": stored * mask.selected,
    }  # fmt: skip


@stage
def main(params: Settings, machine: Runtime, method: str, seed: int) -> None:
    """Train them, or take them from the main pipeline, and see what each does to every task."""
    if not params.talos.tasks:
        return
    print("\n".join(make_vectors(method, seed, params, machine)))
