"""Multi-task training (paper, section 5.1 and appendix C.1): one model, each batch from a task drawn at random."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from stages.lib.data.tasks import TaskSpec
from stages.lib.errors import TrainingError
from stages.lib.models.anatomy import HEAD
from stages.lib.models.label_model import LabelModel
from stages.lib.models.predicting import dev_score
from stages.lib.models.shared import SharedModel
from stages.lib.runtime import Runtime, numpy_generator, seeded_torch
from stages.lib.text.batching import shuffled
from stages.lib.text.encoding import Example
from stages.lib.training.finetuning import plan_for, steps_for, trained_names
from stages.lib.training.training import Training, TrainPlan, train_on

Rows = dict[str, dict[str, list[dict]]]
Examples = dict[str, list[Example]]


@dataclass(frozen=True)
class Joint:
    """The chosen model, live, and what was tried on the way."""

    shared: SharedModel
    record: dict[str, Any]


def joint_steps(settings: Any, tasks: list[TaskSpec], rows: Rows) -> int:
    """`settings.step_factor` times the steps of a single task, the mean over tasks where these differ.

    With as many as there are tasks, each of them gets about the steps that it has alone; the paper has 8 of 8.
    """
    single = [steps_for(settings, len(task.labels), len(rows[task.name]["train"])) for task in tasks]
    return max(1, round(settings.step_factor * sum(single) / len(single)))


def train_joint(
    pretrained: Path,
    tasks: list[TaskSpec],
    rows: Rows,
    seed: int,
    model_settings: Any,
    settings: Any,
    runtime: Runtime,
    on_step: Callable[[], object] = lambda: None,
) -> Joint:
    """Train on rows[task]["train"] of all tasks with every point of the grid; keep the best by the mean dev score.

    `settings` is a `finetune` section with step_factor and eval_steps besides.  Every point starts from
    the same weights, heads and random numbers.  A point whose loss diverges is recorded and passed
    over; raises TrainingError if all do.
    """
    best, tried = None, []
    steps = joint_steps(settings, tasks, rows)
    for batch_size, learning_rate in product(settings.batch_sizes, settings.learning_rates):
        point = {"batch_size": batch_size, "learning_rate": learning_rate, "steps": steps}
        with seeded_torch("joint", seed):
            shared = SharedModel.load(pretrained, tasks, model_settings, runtime, settings.dropout)
            encoded = {split: _encoded(shared, rows, split) for split in ("train", "dev")}
            plan = plan_for(settings, steps, learning_rate, batch_size)
            try:
                training = _train_point(shared, encoded, plan, settings, seed, on_step)
            except TrainingError as error:
                tried.append({**point, "failed": str(error)})
                continue
        score = mean_dev_score(shared, encoded["dev"])
        tried.append({**point, "kept_step": training.step, "dev_accuracy": score[0], "dev_loss": -score[1]})
        if best is None or score > best[0]:
            best = (score, shared, training, point)
    if best is None:
        raise TrainingError("; ".join(point["failed"] for point in tried))
    score, shared, training, point = best
    record = {"dev_accuracy": score[0], "chosen": point, "grid": tried, "curve": training.curve, "dev": training.dev}
    return Joint(shared, record)


def mean_dev_score(shared: SharedModel, dev: Examples) -> tuple[float, float]:
    """(accuracy, -cross-entropy) on dev, each the mean over tasks: higher is better (see predicting.dev_score)."""
    scores = np.array([dev_score(view, dev[task]) for task, view in shared.views.items()])
    accuracy, loss = scores.mean(0).tolist()
    return accuracy, loss


def mixed_batches(
    shared: SharedModel, train: Examples, batch_size: int, *words: object
) -> Iterator[tuple[LabelModel, list[Example]]]:
    """Endless batches, each of one task drawn at random, all tasks alike; a task's own come in shuffled epochs.

    Equal `words` give equal draws, and a task's own batches do not depend on which others there are.
    """
    tasks = [*shared.views]
    own = {task: shuffled(train[task], batch_size, numpy_generator("joint", task, *words)) for task in tasks}
    choice = numpy_generator("joint", *words)
    while True:
        task = tasks[int(choice.integers(len(tasks)))]
        yield shared.views[task], [train[task][row] for row in next(own[task])]


def _encoded(shared: SharedModel, rows: Rows, split: str) -> Examples:
    return {task: view.encode(rows[task][split]) for task, view in shared.views.items()}


def _train_point(
    shared: SharedModel,
    encoded: dict[str, Examples],
    plan: TrainPlan,
    settings: Any,
    seed: int,
    on_step: Callable[[], object],
) -> Training:
    groups = _groups(shared)
    if settings.head_first_steps:
        heads = shared.train_only({name for name, group in groups.items() if group == HEAD})
        steps = round(settings.head_first_steps * settings.step_factor)
        first = plan_for(settings, steps, plan.learning_rate, plan.batch_size)
        train_on(mixed_batches(shared, encoded["train"], plan.batch_size, "head_first", seed), heads, first)
    trained = shared.train_only(trained_names(groups, settings))
    batches = mixed_batches(shared, encoded["train"], plan.batch_size, seed)
    return train_on(batches, trained, plan, lambda: mean_dev_score(shared, encoded["dev"]), on_step)


def _groups(shared: SharedModel) -> dict[str, str]:
    """Name of every parameter, as the shared model has it, -> group."""
    first = next(iter(shared.views.values())).groups()
    return {name: first.get(name, HEAD) for name in shared.parameters()}
