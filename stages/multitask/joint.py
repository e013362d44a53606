"""joint: one model fine-tuned on several tasks at once, in one way, for one seed (paper, section 5.1 and appendix C.1).

Each batch is of a task drawn at random.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from skill_grafting.support.fields import HEAD
from skill_grafting.support.io import read_rows, write_json
from skill_grafting.support.progress import progress
from skill_grafting.support.writing import replacing
from stages.multitask.joint_model import save_joint
from stages.multitask.settings import Settings
from stages.text.models.batching import shuffled
from stages.text.models.encoding import Example
from stages.text.models.predicting import dev_score
from stages.text.models.shared import SharedModel
from stages.text.models.structure import groups_of
from stages.text.tasks.runtime import Runtime, numpy_generator, seeded_torch
from stages.text.tasks.settings import FinetuneParams, ModelParams
from stages.text.tasks.tasks import TaskSpec
from stages.text.training.finetuning import grid_of, plan_for, settings_of, steps_for, trained_names
from stages.text.training.grid import Point, Trained, search
from stages.text.training.trainer import Batches, Hooks, Training, TrainPlan, train
from stages.workflow.cells.stored import read_task
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage

Examples = dict[str, list[Example]]


@dataclass(frozen=True)
class JointPlan:
    """Tasks with their rows (task -> split -> rows), and how one model learns them.

    As `finetune` says, in `step_factor` times the steps of a single task, or with None as many times as there are tasks.
    """

    tasks: list[TaskSpec]
    rows: dict[str, dict[str, list[dict]]]
    seed: int
    finetune: FinetuneParams
    step_factor: float | None

    @property
    def steps(self) -> int:
        """Steps of one point of the grid, from the mean over tasks of those that each has alone; by default each has about as many."""
        single = [steps_for(self.finetune, len(task.labels), len(self.rows[task.name]["train"])) for task in self.tasks]
        return max(1, round((self.step_factor or len(self.tasks)) * sum(single) / len(single)))


def train_joint(
    pretrained: Path, how: JointPlan, model: ModelParams, machine: Runtime, on_step: Callable[[], object] = lambda: None
) -> tuple[SharedModel, dict[str, Any]]:
    """Train on the training rows of all tasks with every point of the grid; keep the best by the mean dev score.

    Returns that model, live, and the record of the grid.  Every point starts from the same weights, heads and random
    numbers (see grid.search).
    """

    def trained(point: Point) -> Trained[tuple[SharedModel, Training]]:
        with seeded_torch("joint", how.seed):
            shared = SharedModel.load(pretrained, how.tasks, model, machine, how.finetune.dropout)
            encoded = {
                split: {task: view.encode(how.rows[task][split]) for task, view in shared.views.items()}
                for split in ("train", "dev")
            }
            training = _train_point(shared, encoded, plan_for(how.finetune, **point), how, on_step)
        return Trained((shared, training), mean_dev_score(shared, encoded["dev"]), {"kept_step": training.step})

    best = search(({**point, "steps": how.steps} for point in grid_of(how.finetune)), trained)
    shared, training = best.kept
    record = {"chosen": best.point, "grid": best.grid, "curve": training.curve, "dev": training.dev}
    return shared, {"dev_accuracy": best.accuracy, **record}


def mean_dev_score(shared: SharedModel, dev: Examples) -> tuple[float, float]:
    """(accuracy, -cross-entropy) on dev, each the mean over tasks: higher is better (see predicting.dev_score)."""
    scores = np.array([dev_score(view, dev[task]) for task, view in shared.views.items()])
    accuracy, loss = scores.mean(0).tolist()
    return accuracy, loss


def mixed_batches(shared: SharedModel, examples: Examples, batch_size: int, *words: object) -> Batches:
    """Endless batches, each of a task drawn uniformly at random; the batches of a task come in shuffled epochs.

    Equal `words` give equal draws, and a task's own batches do not depend on which others there are.
    """
    tasks = [*shared.views]
    batches = {task: shuffled(examples[task], batch_size, numpy_generator("joint", task, *words)) for task in tasks}
    choice = numpy_generator("joint", *words)
    while True:
        task = tasks[int(choice.integers(len(tasks)))]
        yield [(shared.views[task], [examples[task][row] for row in next(batches[task])])]


def _train_point(
    shared: SharedModel, encoded: dict[str, Examples], plan: TrainPlan, how: JointPlan, on_step: Callable[[], object]
) -> Training:
    first = groups_of(shared.first)
    groups = {name: first.get(name, HEAD) for name in shared.parameters()}
    trained = shared.train_only(trained_names(groups, how.finetune))
    batches = mixed_batches(shared, encoded["train"], plan.batch_size, how.seed)
    hooks = Hooks(lambda: mean_dev_score(shared, encoded["dev"]), on_step)
    return train(batches, trained, plan, hooks)


@stage
def main(params: Settings, machine: Runtime, paradigm: str, seed: int) -> None:
    """Fine-tune, choosing the grid point by the mean dev score, and save a model folder with the tasks' heads."""
    if not params.multitask.tasks:
        return
    names, joint = params.multitask.tasks, params.joint
    rows = {name: {split: read_rows(paths.sample(name, seed, split)) for split in ("train", "dev")} for name in names}
    finetune = settings_of(paradigm, params.finetune, joint.adamw).model_copy(update={"eval_steps": joint.eval_steps})
    how = JointPlan([read_task(name) for name in names], rows, seed, finetune, joint.step_factor)
    steps = how.steps * len(finetune.batch_sizes) * len(finetune.learning_rates)
    with progress(f"joint {paradigm} {seed}", steps, "step") as bar:
        shared, record = train_joint(paths.PRETRAINED, how, params.model, machine, bar.update)
    with replacing(paths.joint(paradigm, seed)) as folder:
        write_json(folder / "training.json", {"tasks": names, "paradigm": paradigm, "seed": seed, **record})
        save_joint(shared, folder)
    print(f"joint {paradigm} {seed}: mean dev accuracy {record['dev_accuracy']:.3f}, {record['chosen']}")
