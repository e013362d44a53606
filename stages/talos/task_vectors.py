"""The task vector of each method: trained within a mask, or taken from the main pipeline (stage edit).

full and graft are the fine-tuned models and the grafts that are there already.  All others start at
the pretrained backbone under the trained head, which stays as it is, and train alike, but for the
learning rate, which dev chooses for each: linear a model to first order, attention the weights of the
attention projections, and any localizer of the registry the parameters that it selects.  So talos
trains the least sensitive ones, and lota those that moved most in the full fine-tuning, which makes
its mask the movement mask of that size.
"""

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from stages.lib import paths
from stages.lib.data.task_cards import read_task
from stages.lib.errors import MaskError, ModelError, TrainingError
from stages.lib.graft.apply import values_at
from stages.lib.graft.mask import GraftMask
from stages.lib.graft.mask_file import StoredMask, read_mask, write_mask
from stages.lib.graft.region import Region
from stages.lib.io import read_json, write_json
from stages.lib.localizers.registry import Budget, find_mask
from stages.lib.metrics.classification import accuracy, standard_error
from stages.lib.metrics.composition import ATTENTION_OUTPUT, FUSED, KEY, QUERY, VALUE, kind_of
from stages.lib.metrics.predictions import Predictions, write_predictions
from stages.lib.metrics.variants import PRETRAINED
from stages.lib.models.cell import GraftCell
from stages.lib.models.evidence import evidence_of
from stages.lib.models.fisher import backward_passes
from stages.lib.models.label_model import LabelModel
from stages.lib.models.predicting import dev_score
from stages.lib.progress import progress
from stages.lib.runtime import Runtime, numpy_generator, seeded_torch
from stages.lib.text.encoding import Example
from stages.lib.training.training import TrainPlan, train
from stages.talos.arithmetic_model import FULL, LINEAR, open_edited
from stages.talos.linearised import LinearisedModel
from stages.talos.settings import EditTraining

ATTENTION, GRAFT = "attention", "graft"
TAKEN = (FULL, GRAFT)
PROJECTIONS = (QUERY, KEY, VALUE, FUSED, ATTENTION_OUTPUT)


@dataclass(frozen=True)
class Edit:
    """What a method changed for a task: the mask, its values, and how much that took."""

    mask: GraftMask
    values: dict[str, Any]
    record: dict[str, Any]


def edit(method: str, seed: int, params: Any, machine: Runtime) -> list[str]:
    """Store every task's edit by one method, and what it does to all tasks; gives a line for each."""
    paths.edited(method, "x", seed).parent.mkdir(parents=True, exist_ok=True)
    records = {}
    for task in params.talos.tasks:
        cell = open_cell(method, task, seed, params, machine)
        done = taken(method, cell, params) if method in TAKEN else trained(method, cell, params)
        records[task] = {"selected": done.mask.selected, "graftable": cell.region.size, **done.record}
        if method != FULL:
            write_mask(paths.edited(method, task, seed), StoredMask(done.mask, done.values, {}, identity(cell)))
        del cell, done
    return localize(method, seed, params, machine, records)


def open_cell(method: str, task: str, seed: int, params: Any, machine: Runtime) -> GraftCell:
    """The fine-tuned model of a task, reset but for its head, with the dropout that it is to train with."""
    dropout = 0.0 if method == LINEAR else params.edit.training.dropout
    model = LabelModel.load(paths.finetuned(task, seed), read_task(task), params.model, machine, dropout)
    return GraftCell.of(model, seed, params.graft.region)


def taken(method: str, cell: GraftCell, params: Any) -> Edit:
    """An edit that the main pipeline has: the whole region, or the graft."""
    training = read_json(paths.finetuned(cell.task, cell.seed) / "training.json", ModelError)
    steps, size = training["chosen"]["steps"], cell.region.size
    mask, values = GraftMask.full(cell.region), {}
    if method == GRAFT:
        stored = read_mask(paths.learned(cell.task, cell.seed))
        mask, values = stored.mask, stored.values
    bytes_ = optimizer_bytes(params.finetune.optimizer, params.finetune.momentum, size)
    cost = {"steps": steps, "trained": size, "optimizer_bytes": bytes_}
    return Edit(mask, values, {"cost": cost | {"checkpoint_bytes": checkpoint_bytes(mask.selected, size)}})


def trained(method: str, cell: GraftCell, params: Any) -> Edit:
    """Choose what may move, and train it from the pretrained backbone."""
    choosing, training = Stopwatch(), Stopwatch()
    with choosing.running():
        mask, examples = chosen(method, cell, params)
    plans = plans_of(params.edit.training)
    steps = len(plans) * params.edit.training.steps
    with training.running(), progress(f"edit {method} {cell.task}-{cell.seed}", steps, "step") as bar:
        plan, values, record = best_of(method, cell, mask, plans, bar.update)
    cost = {
        "gradient_examples": examples,
        "calibration_seconds": choosing.seconds,
        "steps": steps,
        "train_seconds": training.seconds,
        "peak_bytes": peak_bytes(cell.model.runtime.device),
        "trained": mask.selected,
        "optimizer_bytes": optimizer_bytes(plan.optimizer, plan.momentum, mask.selected),
        "checkpoint_bytes": checkpoint_bytes(mask.selected, cell.region.size),
    }
    return Edit(mask, values, {"cost": cost, **record})


def chosen(method: str, cell: GraftCell, params: Any) -> tuple[GraftMask, int]:
    """What a method trains, and how many backward passes of single examples it took to know; raises MaskError."""
    if method == LINEAR:
        return GraftMask.full(cell.region), 0
    if method == ATTENTION:
        return attention_mask(cell.region), 0
    rows, passes = cell.rows("train"), []
    evidence = evidence_of(cell, method, rows)
    labels = len(cell.model.task.labels)

    def counted(n: int, mode: Any = "empirical", draws: int = 1, *generator: Any) -> Any:
        passes.append(min(n, len(rows)) * backward_passes(mode, labels, draws))
        return evidence.squared_gradients(n, mode, draws, *generator)

    own = replace(evidence, squared_gradients=counted)
    budget = Budget.of(cell.region, params.talos.sparsity, params.graft.rule, "talos.sparsity")
    mask, asked = find_mask(method, own, getattr(params.localizer, method), budget).mask, budget.k
    if mask.selected < asked:
        raise MaskError(
            f"edit.methods: {method} selects {mask.selected:,} parameters of {cell.task}-{cell.seed}, talos.sparsity "
            f"asks for {asked:,}; lower it, or leave {method} out"
        )
    return mask, sum(passes)


def attention_mask(region: Region) -> GraftMask:
    """The weights of all query, key, value and output projections, their biases left out."""
    whole = GraftMask.full(region)
    return GraftMask(region, {name: at for name, at in whole.indices.items() if kind_of(name) in PROJECTIONS})


def plans_of(settings: EditTraining) -> list[TrainPlan]:
    """How every method trains, by the section edit.training: a plan for each learning rate."""
    same = settings.model_dump(exclude={"learning_rates", "dropout"})
    return [TrainPlan(learning_rate=rate, **same) for rate in settings.learning_rates]


def best_of(
    method: str, cell: GraftCell, mask: GraftMask, plans: list[TrainPlan], on_step: Callable[[], object]
) -> tuple[TrainPlan, dict[str, Any], dict[str, Any]]:
    """The plan with the best dev score, the first of equals; the values that it left, and a record of all.

    A plan whose loss diverges is recorded and passed over; raises TrainingError if all do.
    """
    best, tried = None, []
    reader = reader_of(method, cell)
    encoded = {split: reader.encode(cell.rows(split)) for split in ("train", "dev")}
    for plan in plans:
        try:
            curve, score = train_within(reader, cell, mask, plan, encoded, on_step)
        except TrainingError as error:
            tried.append({"learning_rate": plan.learning_rate, "failed": str(error)})
            continue
        tried.append({"learning_rate": plan.learning_rate, "dev_accuracy": score[0], "dev_loss": -score[1]})
        if best is None or score > best[0]:
            parameters = cell.model.parameters()
            values = values_at({name: parameters[name] for name in mask.indices}, mask)
            best = score, plan, {name: part.cpu() for name, part in values.items()}, curve
    if best is None:
        raise TrainingError("; ".join(point["failed"] for point in tried))
    _score, plan, values, curve = best
    return plan, values, {"learning_rate": plan.learning_rate, "grid": tried, "curve": curve}


def reader_of(method: str, cell: GraftCell) -> LabelModel | LinearisedModel:
    """What reads the weights that are trained: the model, or its linear approximation at the pretrained ones."""
    return LinearisedModel(cell.model, cell.pretrained) if method == LINEAR else cell.model


def train_within(
    reader: LabelModel | LinearisedModel,
    cell: GraftCell,
    mask: GraftMask,
    plan: TrainPlan,
    encoded: dict[str, list[Example]],
    on_step: Callable[[], object],
) -> tuple[list[dict[str, float]], tuple[float, float]]:
    """Train the mask's entries of the cell's model, pretrained at first; gives the losses and the score on dev.

    The order of batches and the dropout are the same for every method and every plan.
    """
    cell.model.put(cell.pretrained)
    weights = cell.model.train_only({*mask.indices})
    with seeded_torch("edit", cell.task, cell.seed):
        generator = numpy_generator("edit", cell.task, cell.seed)
        done = train(reader, weights, encoded["train"], plan, generator, on_step=on_step, only=mask)
    return done.curve, dev_score(reader, encoded["dev"])


def identity(cell: GraftCell) -> dict[str, Any]:
    """What tells an edit which model it belongs to."""
    pretrained = {name: values.cpu() for name, values in cell.pretrained.items()}
    fingerprint = cell.region.fingerprint(pretrained)
    return {"fingerprint": fingerprint, "model": cell.anatomy.name, "task": cell.task, "seed": cell.seed}


def localize(method: str, seed: int, params: Any, machine: Runtime, records: dict[str, Any]) -> list[str]:
    """Store what every edited backbone predicts on the test rows of every task; gives a line for each trained task."""
    tasks = params.talos.tasks
    edited = open_edited(method, seed, params, machine, {"test": params.talos.test_max}, tasks)
    keys, logits = [(task, "test") for task in tasks], {}
    for trained_on in (PRETRAINED, *tasks):
        logits[trained_on] = edited.logits({} if trained_on == PRETRAINED else {trained_on: 1.0}, keys)
    for key in keys:
        name, labels = key[0], edited.labels(key)
        found = {trained_on: values[key] for trained_on, values in logits.items()}
        predictions = Predictions(edited.views[name].task.labels, {name: labels}, {name: found})
        write_predictions(paths.reading_logits("edit", (method,), name, seed), predictions)
        rows = [{"variant": variant, **scored(values, labels)} for variant, values in found.items()]
        about = {"stage": "edit", "method": method, "task": name, "seed": seed, **records[name]}
        write_json(paths.reading_record("edit", (method,), name, seed), {**about, "rows": rows})
    shares = {task: accuracy(logits[task][task, "test"], edited.labels((task, "test"))) for task in tasks}
    return [f"edit {method} {task}-{seed}: accuracy {share:.3f}" for task, share in shares.items()]


def scored(logits: Any, labels: Any) -> dict[str, Any]:
    """n, accuracy and its standard error."""
    share = accuracy(logits, labels)
    return {"n": len(labels), "accuracy": share, "accuracy_se": standard_error(share, len(labels))}


FLOAT_BYTES = INDEX_BYTES = 4
# numbers that an optimizer keeps for each parameter, without and with momentum
STATES = {"adamw": (2, 2), "sgd": (0, 1)}


class Stopwatch:
    """Seconds spent in `running` blocks."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of this block."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds += time.monotonic() - start


def peak_bytes(device: torch.device) -> int:
    """The most memory that this process has used so far, on its GPU if it has one."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts in bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def optimizer_bytes(optimizer: str, momentum: float, trained: int) -> int:
    """State of an optimizer that knows `trained` parameters and nothing else."""
    return STATES[optimizer][momentum > 0] * FLOAT_BYTES * trained


def checkpoint_bytes(selected: int, graftable: int) -> int:
    """What has to be stored: an index and a value for each parameter, or the values alone of a whole region."""
    return FLOAT_BYTES * graftable if selected == graftable else (INDEX_BYTES + FLOAT_BYTES) * selected
