"""sequence: tasks learned one after another in one order by one method, for one seed, and all of them tested after each."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from skill_grafting.support.progress import progress
from stages.continual.methods import METHODS, Naive, TaskSequence
from stages.continual.settings import Settings
from stages.text.models.predicting import accuracy_and_loss, predict
from stages.text.scores.predictions import Predictions, first_rows, read_predictions
from stages.text.scores.scores import Row, agreement, score_rows
from stages.text.scores.variants import FINETUNED, PRETRAINED
from stages.text.tasks.runtime import Runtime
from stages.workflow.cells.scoring import write_record
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage

# Logits are stored by the name of the task that was learned last.
AFTER = "after_"


@dataclass
class Trace:
    """Results of learning a sequence, by task.

    logits: task last learned -> (n, labels), in the order of learning, from the task's own step on.
    facts: the task's training, and the memory kept after its step.
    """

    logits: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)


def run_sequence(method: str, order: str, seed: int, params: Settings, machine: Runtime) -> str:
    """Learn the tasks of one order by one method and store the predictions; returns a line for the log.

    Raises RuntimeError if grafting changes any prediction of an earlier task.
    """
    tasks, title, traces, tried = params.order[order], f"sequence {method} {order} {seed}", [], []
    choices = METHODS[method].choices(getattr(params.method, method))
    for settings in choices:
        sequence = TaskSequence.open(tasks, seed, params, machine)
        learner = METHODS[method](sequence, settings)
        traces.append(learn_in_order(learner, title, params.sequence.test_max))
        if len(choices) > 1:
            tried.append({"settings": settings.model_dump(), "dev": mean_on_dev(learner)})
    scores = [one["dev"] for one in tried] or [0.0]
    done = traces[scores.index(max(scores))]  # the first of equals
    if method == "grafting":
        require_unchanged(done)
    ends = []
    for place, task in enumerate(tasks, 1):
        predictions = predictions_of(task, sequence, done)
        rows = step_rows(predictions, sequence, params.calibration.bins)
        header = {"method": method, "order": order, "seed": seed, "task": task, "place": place, "tasks": tasks}
        header |= {"tried": tried} if tried else {}
        write_record("sequence", (method, order), {**header, **done.facts[task]}, predictions, rows)
        accuracies = [row["accuracy"] for row in rows if row["step"]]
        ends.append(f"{task} {accuracies[0]:.3f} -> {accuracies[-1]:.3f}")
    return f"{title}: {', '.join(ends)} (accuracy when learned -> at the end)"


def learn_in_order(learner: Naive, title: str, test_max: int) -> Trace:
    """Learn the tasks of a sequence in order; after each predict the test rows of all so far."""
    sequence, done = learner.sequence, Trace()
    tests = {task: sequence.view(task).encode(rows["test"][: test_max or None]) for task, rows in sequence.rows.items()}
    steps = sum(sequence.steps(task) for task in sequence.rows)
    with progress(title, steps, "step") as bar:
        for task in sequence.rows:
            training = learner.learn(task, bar.update)
            for known in sequence.learned:
                learner.recall(known)
                logits = predict(sequence.view(known), tests[known]).numpy()
                done.logits.setdefault(known, {})[task] = logits
            memory = {"kept_bytes": learner.kept(), "model_bytes": sequence.model_bytes()}
            point = {"batch_size": sequence.chosen[task]["batch_size"], "steps": sequence.steps(task)}
            done.facts[task] = {"training": {**point, **training}, **memory, **learner.facts(task)}
    return done


def mean_on_dev(learner: Naive) -> float:
    """The mean accuracy on dev over the tasks that were learned."""
    sequence, accuracies = learner.sequence, []
    for task in sequence.learned:
        learner.recall(task)
        view = sequence.view(task)
        accuracies.append(accuracy_and_loss(view, view.encode(sequence.rows[task]["dev"]))[0])
    return sum(accuracies) / len(accuracies)


def require_unchanged(done: Trace) -> None:
    """Raise RuntimeError unless the logits of every task are bit for bit the same after all later steps."""
    for task, steps in done.logits.items():
        for later, logits in steps.items():
            if not np.array_equal(logits, steps[task]):
                raise RuntimeError(f"{task} is predicted differently after {later} than right after its own step")


def predictions_of(task: str, sequence: TaskSequence, done: Trace) -> Predictions:
    """The logits of one task after every step since its own."""
    first = next(iter(done.logits[task].values()))
    names = sequence.view(task).task.labels
    labels = np.array([names.index(row["label"]) for row in sequence.rows[task]["test"][: len(first)]])
    steps = {f"{AFTER}{later}": logits for later, logits in done.logits[task].items()}
    return Predictions(names, {task: labels}, {task: steps})


def step_rows(predictions: Predictions, sequence: TaskSequence, bins: int) -> list[Row]:
    """Scores after every step, and of the task's own fine-tuned and pretrained model, which are step 0.

    Beside the usual scores: `step` (from 1) and `after` (the task learned in it), `unchanged` (whether all logits
    are those of right after the task's own step, bit for bit) and `agreement_with_own` (share of equal predictions).
    """
    [task] = predictions.labels
    order = [*sequence.rows]
    steps = predictions.logits[task]
    own = steps[f"{AFTER}{task}"]
    alone = read_predictions(paths.logits("reference", task, sequence.seed)).part([task], (FINETUNED, PRETRAINED))
    together = first_rows(alone, len(predictions.labels[task])) | predictions
    rows = []
    for row in score_rows(together, sequence.view(task).task, bins):
        extra: dict[str, Any] = {"step": 0, "after": None}
        if row["variant"] in steps:
            later, logits = row["variant"].removeprefix(AFTER), steps[row["variant"]]
            extra = {"step": order.index(later) + 1, "after": later, "unchanged": bool(np.array_equal(logits, own))}
            extra["agreement_with_own"] = agreement(logits, own)
        rows.append({**row, **extra})
    return rows


@stage
def main(params: Settings, machine: Runtime, method: str, order: str, seed: int) -> None:
    """Learn the tasks in order, and test all of them so far after each."""
    if not params.order[order]:
        return
    print(run_sequence(method, order, seed, params, machine))
