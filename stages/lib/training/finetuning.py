"""Fine-tuning of one cell: a grid of batch sizes and learning rates, chosen on dev."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any

from torch import Tensor

from stages.lib.data.tasks import TaskSpec
from stages.lib.errors import TrainingError
from stages.lib.graft.mask import GraftMask
from stages.lib.models.anatomy import HEAD
from stages.lib.models.label_model import LabelModel
from stages.lib.models.predicting import dev_score
from stages.lib.runtime import Runtime, numpy_generator, seeded_torch
from stages.lib.settings import FinetuneParams
from stages.lib.text.encoding import Example
from stages.lib.training.training import Training, TrainPlan, train


@dataclass(frozen=True)
class Finetuned:
    """The chosen model, live, and what was tried on the way."""

    model: LabelModel
    record: dict[str, Any]


def steps_for(settings: Any, n_labels: int, n_examples: int) -> int:
    """Number of optimizer steps (paper, appendix A.2): 16 per example, capped at 16 * labels * 512.

    All three numbers are settings; `max_steps` caps the result once more.
    """
    examples = min(n_examples, n_labels * settings.cap_k)
    steps = max(1, round(settings.steps_per_example * examples))
    return min(steps, settings.max_steps) if settings.max_steps else steps


def total_steps(settings: Any, n_labels: int, n_examples: int) -> int:
    """Steps of the whole grid, for a progress bar."""
    return steps_for(settings, n_labels, n_examples) * len(settings.batch_sizes) * len(settings.learning_rates)


def trained_names(groups: dict[str, str], settings: Any, only: GraftMask | None = None) -> set[str]:
    """Names of the parameters that `finetune.train` and `finetune.bias_only` let move; a new head always does.

    With a mask it is the mask that says so: those it selects from.
    """
    chosen = {name for name, group in groups.items() if group in settings.train}
    if settings.bias_only:
        chosen = {name for name in chosen if name.rpartition(".")[2] == "bias"}
    if only is not None:
        chosen = {*only.indices}
    return chosen | {name for name, group in groups.items() if group == HEAD}


def at_point(settings: FinetuneParams, point: dict[str, Any]) -> FinetuneParams:
    """The `finetune` section with one point for its grid, as the record of a fine-tuning has it."""
    grid = {"batch_sizes": [point["batch_size"]], "learning_rates": [point["learning_rate"]]}
    return settings.model_copy(update=grid)


def finetune(
    pretrained: Path,
    task: TaskSpec,
    rows: dict[str, list[dict]],
    seed: int,
    model_settings: Any,
    settings: Any,
    runtime: Runtime,
    on_step: Callable[[], object] = lambda: None,
    only: GraftMask | None = None,
) -> Finetuned:
    """Fine-tune on rows["train"] with every point of the grid; keep the one with the best dev score.

    Every point starts from the same weights, head and random numbers.  A point whose loss diverges
    is recorded and passed over; raises TrainingError if all do.  With `only`, the values that the
    mask selects and a new head are all that is trained, from the same start.
    """
    best, tried = None, []
    for batch_size, learning_rate in product(settings.batch_sizes, settings.learning_rates):
        with seeded_torch("finetune", task.name, seed):
            model = LabelModel.load(pretrained, task, model_settings, runtime, settings.dropout)
            encoded = {split: model.encode(rows[split]) for split in ("train", "dev")}
            plan = plan_for(
                settings, steps_for(settings, len(task.labels), len(rows["train"])), learning_rate, batch_size
            )
            point = {"batch_size": batch_size, "learning_rate": learning_rate, "steps": plan.steps}
            try:
                training = train_point(model, encoded, plan, settings, (task.name, seed), on_step, only)
            except TrainingError as error:
                tried.append({**point, "failed": str(error)})
                continue
        score = dev_score(model, encoded["dev"])
        tried.append({**point, "kept_step": training.step, "dev_accuracy": score[0], "dev_loss": -score[1]})
        if best is None or score > best[0]:
            best = (score, model, training, point)
    if best is None:
        raise TrainingError("; ".join(point["failed"] for point in tried))
    score, model, training, point = best
    record = {"dev_accuracy": score[0], "chosen": point, "grid": tried, "curve": training.curve, "dev": training.dev}
    return Finetuned(model, record)


def train_point(
    model: LabelModel,
    encoded: dict[str, list[Example]],
    plan: TrainPlan,
    settings: Any,
    cell: tuple,
    on_step: Callable[[], object],
    only: GraftMask | None,
) -> Training:
    """Train a fresh model by one plan; `cell` is (task, seed), which the batches are drawn by."""
    groups = model.groups()
    if settings.head_first_steps:
        head = model.train_only({name for name, group in groups.items() if group == HEAD})
        first = plan_for(settings, settings.head_first_steps, plan.learning_rate, plan.batch_size)
        train(model, head, encoded["train"], first, numpy_generator("head_first", *cell))
    trained: dict[str, Tensor] = model.train_only(trained_names(groups, settings, only))
    return train(
        model,
        trained,
        encoded["train"],
        plan,
        numpy_generator("finetune", *cell),
        lambda: dev_score(model, encoded["dev"]),
        on_step,
        only,
    )


def train_again(
    pretrained: Path,
    task: TaskSpec,
    rows: dict[str, list[dict]],
    seed: int,
    model_settings: Any,
    settings: Any,
    runtime: Runtime,
    watch: Callable[[LabelModel], Callable[[], object]],
) -> LabelModel:
    """The model that `finetune` gives for the first point of its grid, bit for bit, and watched.

    `watch(model)` is called before the first step and gives what is called after each one.  It may
    read the weights and predict, but neither change weights nor draw from torch's global generator.
    """
    with seeded_torch("finetune", task.name, seed):
        model = LabelModel.load(pretrained, task, model_settings, runtime, settings.dropout)
        encoded = {split: model.encode(rows[split]) for split in ("train", "dev")}
        steps = steps_for(settings, len(task.labels), len(rows["train"]))
        plan = plan_for(settings, steps, settings.learning_rates[0], settings.batch_sizes[0])
        train_point(model, encoded, plan, settings, (task.name, seed), watch(model), None)
    return model


def plan_for(settings: Any, steps: int, learning_rate: float, batch_size: int) -> TrainPlan:
    """The plan of one point of the grid; all else that a plan has and the settings name is theirs."""
    shared = {field.name: getattr(settings, field.name) for field in fields(TrainPlan) if hasattr(settings, field.name)}
    return TrainPlan(**{**shared, "steps": steps, "learning_rate": learning_rate, "batch_size": batch_size})
