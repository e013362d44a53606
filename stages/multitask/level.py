"""level: the accuracies of the joint model and of the pretrained one on every task, between which a relative gain lies: 1 and 0."""

from typing import Any

from stages.multitask.joint_model import evaluation_of, joint_cell, load_joint
from stages.multitask.settings import Settings
from stages.text.scores.scores import score_rows
from stages.text.scores.variants import FINETUNED, PRETRAINED
from stages.text.tasks.runtime import Runtime
from stages.workflow.cells.scoring import write_record
from stages.workflow.cells.stored import read_task
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage


def measure_baselines(paradigm: str, seed: int, params: Settings, machine: Runtime) -> str:
    """Store what the joint model of a seed and the pretrained one predict for each task; returns a line for the log.

    The joint model is called the fine-tuned one, as it is to its grafts; the pretrained one has its heads.
    """
    tasks, n = params.multitask.tasks, params.multitask.test_max
    shared = load_joint(paths.joint(paradigm, seed), tasks, params.model, machine)
    evaluations = {task: evaluation_of(shared, task, seed, n, variants=1) for task in tasks}
    _predict(FINETUNED, evaluations)
    cell = joint_cell(shared, paradigm, seed, params.graft.region)
    _predict(PRETRAINED, evaluations)
    for task, evaluation in evaluations.items():
        predictions = evaluation.predictions()
        rows = score_rows(predictions, read_task(task), params.calibration.bins)
        write_record("level", (paradigm,), {**cell.header(), "task": task}, predictions, rows)
    lines = "; ".join(f"{task} {evaluation.describe()}" for task, evaluation in evaluations.items())
    return f"level {paradigm} {seed}: {lines}"


def _predict(variant: str, evaluations: dict[str, Any]) -> None:
    for task, evaluation in evaluations.items():
        with evaluation.progress(f"{variant} {task}"):
            evaluation.predict(variant)


@stage
def main(params: Settings, machine: Runtime, paradigm: str, seed: int) -> None:
    """Predict the test rows of every task with both models."""
    if not params.multitask.tasks:
        return
    print(measure_baselines(paradigm, seed, params, machine))
