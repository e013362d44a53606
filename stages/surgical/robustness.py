"""robustness: the FIM score of every layer while all of them are fine-tuned, for all tasks of one seed."""

from collections.abc import Callable
from itertools import count
from typing import Any

from skill_grafting.models.anatomy import read_anatomy
from skill_grafting.support.errors import ParamsError
from skill_grafting.support.io import write_json
from skill_grafting.support.progress import progress
from stages.surgical.layers import drawn_rows, layer_norms, layers_of, scores_by_count
from stages.surgical.settings import Settings
from stages.text.models.encoding import Example
from stages.text.models.label_model import LabelModel
from stages.text.models.predicting import dev_score
from stages.text.tasks.runtime import Runtime
from stages.text.training.finetuning import train_again
from stages.workflow.cells.training import open_training
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage


def watch_training(task: str, seed: int, params: Settings, machine: Runtime) -> str:
    """Store what the layers of a cell do while all of them are fine-tuned; returns a line for the log."""
    cell = open_training(task, seed, params.model, machine)
    settings, how = params.surgery.training.over(params.finetune), params.surgery.score
    steps, layers = cell.steps(settings), layers_of(read_anatomy(paths.PRETRAINED))
    due = looks(steps, params.robustness.every)
    rows: list[dict[str, Any]] = []

    def score(model: LabelModel, examples: list[Example]) -> list[float]:
        examples = drawn_rows(examples, task, seed)
        return scores_by_count(model, examples, [how.examples], layers, how.target)[how.examples][how.aggregation]

    title = f"robustness {task}-{seed}"
    with progress(title, steps, "step") as bar:
        train_again(cell, settings, watching(due, cell.rows, layers, score, rows, bar.update))
    rate = params.surgery.training.learning_rate
    record = {"stage": "robustness", "task": task, "seed": seed, "learning_rate": rate, "rows": rows}
    write_json(paths.record("robustness", task, seed), record)
    first, last = rows[0]["dev_accuracy"], rows[-1]["dev_accuracy"]
    return f"{title}: {len(rows)} looks, dev accuracy {first:.3f} to {last:.3f}"


def watching(
    due: set[int],
    split: dict[str, list[dict]],
    layers: dict[int, list[str]],
    score: Callable[[LabelModel, list[Example]], list[float]],
    rows: list[dict[str, Any]],
    on_step: Callable[[], object] = lambda: None,
) -> Callable[[LabelModel], Callable[[], object]]:
    """Looks at a model as it starts and after the steps `due`, given what is called after each step; puts a row into `rows`.

    Scoring takes gradients in eval mode and draws no random numbers, and which parameters require gradients is put back, so
    that a model that is looked at is trained as any other.  A row has step, scores, moved and start (the norms of each
    layer's movement and of its pretrained values), dev_accuracy and dev_loss.
    """

    def watch(model: LabelModel) -> Callable[[], object]:
        encoded, steps = {name: model.encode(part) for name, part in split.items()}, count(1)
        start = {name: model.parameters()[name].detach().clone() for part in layers.values() for name in part}

        def look(step: int) -> None:
            live = model.parameters()
            trained = {name for name, weight in live.items() if weight.requires_grad}
            scores = score(model, encoded["train"])
            model.train_only(trained)
            moved = {name: live[name].detach() - values for name, values in start.items()}
            accuracy, surprise = dev_score(model, encoded["dev"])
            norms = {"moved": layer_norms(moved, layers), "start": layer_norms(start, layers)}
            rows.append({"step": step, "scores": scores, **norms, "dev_accuracy": accuracy, "dev_loss": -surprise})

        def after_step() -> None:
            on_step()
            if (step := next(steps)) in due:
                look(step)

        look(0)
        return after_step

    return watch


def looks(steps: int, every: int) -> set[int]:
    """Every so many steps, and after the last one; raises ParamsError if that is the last one only."""
    if every >= steps:
        raise ParamsError(f"robustness.every: {every} is not less than the {steps} steps of fine-tuning")
    return {*range(every, steps, every), steps}


@stage
def main(params: Settings, machine: Runtime, seed: int) -> None:
    """Fine-tune, and score the layers and measure their movement on the way."""
    for task in params.robustness.tasks:
        print(watch_training(task, seed, params, machine))
