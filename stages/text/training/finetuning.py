"""Fine-tuning of one cell: a grid of batch sizes and learning rates, chosen on dev."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from skill_grafting.grafting.mask import GraftMask
from skill_grafting.support.errors import ModelError
from skill_grafting.support.fields import HEAD
from stages.text.models.label_model import LabelModel
from stages.text.models.predicting import dev_score
from stages.text.models.structure import groups_of
from stages.text.tasks.runtime import Runtime, numpy_generator, seeded_torch
from stages.text.tasks.settings import AdamWParams, FinetuneParams, ModelParams, WarmedUp
from stages.text.tasks.tasks import TaskSpec
from stages.text.training.grid import Point, Trained, search
from stages.text.training.trainer import Hooks, Training, TrainPlan, batches_of, train

# ways to fine-tune (paper, section 3.2); adamw_l1 has an l1 norm in its loss
SGD, ADAMW, ADAMW_L1 = "sgd", "adamw", "adamw_l1"


@dataclass(frozen=True)
class TrainingCell:
    """One (task, seed) to be trained: its rows by split, and the pretrained model that it starts from."""

    task: TaskSpec
    seed: int
    rows: dict[str, list[dict]]
    model: ModelParams
    machine: Runtime
    pretrained: Path

    def load(self, dropout: float | None) -> LabelModel:
        """A pretrained model, its new head drawn from torch's generator."""
        return LabelModel.load(self.pretrained, self.task, self.model, self.machine, dropout)

    def steps(self, settings: FinetuneParams) -> int:
        """Number of optimizer steps (see steps_for)."""
        return steps_for(settings, len(self.task.labels), len(self.rows["train"]))

    def total_steps(self, settings: FinetuneParams) -> int:
        """Steps of the whole grid, for a progress bar."""
        return self.steps(settings) * len(settings.batch_sizes) * len(settings.learning_rates)


@dataclass(frozen=True)
class Finetuned:
    """The chosen model, live, and the record of the grid."""

    model: LabelModel
    record: dict[str, Any]


def steps_for(settings: FinetuneParams, n_labels: int, n_examples: int) -> int:
    """Number of optimizer steps (paper, appendix A.2): 16 per example, capped at 16 * labels * 512 and by `max_steps`."""
    examples = min(n_examples, n_labels * settings.cap_k)
    steps = max(1, round(settings.steps_per_example * examples))
    return min(steps, settings.max_steps) if settings.max_steps else steps


def trained_names(groups: dict[str, str], settings: FinetuneParams, only: GraftMask | None = None) -> set[str]:
    """Names of the parameters to train by `finetune.train`; a new head is always trained.

    With a mask, those that it selects from.  Raises ModelError if the model has none of those named.
    """
    head = {name for name, group in groups.items() if group == HEAD}
    chosen = {name for name, group in groups.items() if group in settings.train}
    if only is not None:
        chosen = {*only.indices}
    elif not chosen and (settings.train or not head):
        known = ", ".join(sorted({*groups.values()} - {HEAD}))
        raise ModelError(
            f"finetune.train: [{', '.join(settings.train)}] are no parameters of this model, which has {known}"
        )
    return chosen | head


def matched_steps(chosen: Point, batch_size: int) -> int:
    """Steps of this batch size in which training sees as many examples as a fine-tuning saw at its chosen point."""
    return max(1, round(chosen["steps"] * chosen["batch_size"] / batch_size))


def at_point(settings: FinetuneParams, point: dict[str, Any]) -> FinetuneParams:
    """The `finetune` section with one point for its grid, as the record of a fine-tuning has it."""
    grid = {"batch_sizes": [point["batch_size"]], "learning_rates": [point["learning_rate"]]}
    return settings.model_copy(update=grid)


def grid_of(settings: FinetuneParams) -> list[Point]:
    """Every point of the grid, batch sizes first."""
    pairs = product(settings.batch_sizes, settings.learning_rates)
    return [{"batch_size": size, "learning_rate": rate} for size, rate in pairs]


def finetune(
    cell: TrainingCell,
    settings: FinetuneParams,
    on_step: Callable[[], object] = lambda: None,
    only: GraftMask | None = None,
) -> Finetuned:
    """Fine-tune on rows["train"] with every point of the grid; keep the one with the best dev score (see search).

    Every point starts from the same weights, head and random numbers.  With `only`, the values that the
    mask selects and a new head are all that is trained, from the same start.  `on_step` is called for every step.
    """

    def trained(point: Point) -> Trained[tuple[LabelModel, Training]]:
        plan = plan_for(settings, **point)
        model, training = train_point(cell, settings, plan, lambda _: on_step, only)
        score = dev_score(model, model.encode(cell.rows["dev"]))
        return Trained((model, training), score, {"kept_step": training.step})

    best = search([{**point, "steps": cell.steps(settings)} for point in grid_of(settings)], trained)
    model, training = best.kept
    record = {"chosen": best.point, "grid": best.grid, "curve": training.curve, "dev": training.dev}
    return Finetuned(model, {"dev_accuracy": best.accuracy, **record})


def train_again(
    cell: TrainingCell, settings: FinetuneParams, watch: Callable[[LabelModel], Callable[[], object]]
) -> LabelModel:
    """The model of the first point of `finetune`'s grid, bit for bit, observed while it trains.

    `watch(model)` is called before the first step and gives what is called after each one.  It may
    read the weights and predict, but neither change weights nor draw from torch's global generator.
    """
    plan = plan_for(settings, **grid_of(settings)[0], steps=cell.steps(settings))
    return train_point(cell, settings, plan, watch)[0]


def train_point(
    cell: TrainingCell,
    settings: FinetuneParams,
    plan: TrainPlan,
    watch: Callable[[LabelModel], Callable[[], object]],
    only: GraftMask | None = None,
) -> tuple[LabelModel, Training]:
    """A fresh model trained by one plan, and what training did; `watch` as in train_again."""
    words = (cell.task.name, cell.seed)
    with seeded_torch("finetune", *words):
        model = cell.load(settings.dropout)
        encoded = {split: model.encode(cell.rows[split]) for split in ("train", "dev")}
        groups, on_step = groups_of(model), watch(model)
        weights = model.train_only(trained_names(groups, settings, only))
        batches = batches_of(model, encoded["train"], plan.batch_size, numpy_generator("finetune", *words))
        hooks = Hooks(lambda: dev_score(model, encoded["dev"]), on_step)
        training = train(batches, weights, plan, hooks, only)
    return model, training


def plan_for(settings: FinetuneParams, batch_size: int, learning_rate: float, steps: int) -> TrainPlan:
    """The plan of one point of the grid; all else is that of the settings."""
    warmup = settings.warmup_steps if isinstance(settings, WarmedUp) else 0
    return TrainPlan(
        steps, learning_rate, batch_size, optimizer=settings.optimizer, schedule=settings.schedule,
        momentum=settings.momentum, weight_decay=settings.weight_decay, decay=settings.decay, clip_norm=settings.clip_norm,
        l1=settings.l1, eval_steps=settings.eval_steps, ties=settings.ties, warmup_steps=warmup,
    )  # fmt: skip


def settings_of(paradigm: str, finetune: FinetuneParams, adamw: AdamWParams) -> FinetuneParams:
    """The `finetune` section for a paradigm: sgd keeps its grid, schedule and weight decay, adamw and adamw_l1 have their own."""
    own: dict[str, Any] = {"optimizer": "sgd", "l1": adamw.l1 if paradigm == ADAMW_L1 else 0.0}
    if paradigm in (ADAMW, ADAMW_L1):
        own |= {"optimizer": "adamw", "learning_rates": [adamw.learning_rate]}
        own |= {"schedule": adamw.schedule, "weight_decay": adamw.weight_decay}
    return finetune.model_copy(update=own)
