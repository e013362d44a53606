"""Do the layers keep their rank while all of them are fine-tuned, and which of them move?"""

from collections.abc import Callable
from typing import Any

from stages.lib import paths
from stages.lib.data.encoding import Example
from stages.lib.errors import ParamsError
from stages.lib.io import write_json
from stages.lib.models.anatomy import read_anatomy
from stages.lib.models.label_model import LabelModel
from stages.lib.models.predicting import dev_score
from stages.lib.progress import progress
from stages.lib.runtime import Runtime
from stages.lib.settings import Params
from stages.lib.training.finetuning import TrainingCell, train_again
from stages.surgical.fisher_scores import layers_of, scores_by_count
from stages.surgical.layers import layer_norms


class Watch:
    """Looks at a model before and during training: scores, movement and dev score after the steps `due`.

    Scoring takes gradients in eval mode and draws no random numbers, and which parameters require
    gradients is put back, so that a model that is looked at is trained as any other.

    rows: one for each look, with step, scores, moved and start (the norms of each layer's movement
    and of its pretrained values), dev_accuracy and dev_loss.
    """

    def __init__(
        self,
        due: set[int],
        split: dict[str, list[dict]],
        layers: dict[int, list[str]],
        score: Callable[[LabelModel, list[Example]], list[float]],
        on_step: Callable[[], object],
    ) -> None:
        self._due, self._split, self._layers, self._score, self._on_step = due, split, layers, score, on_step
        self.rows: list[dict[str, Any]] = []

    def watch(self, model: LabelModel) -> Callable[[], object]:
        """Look at the model as it starts; gives what to call after each training step."""
        self._model, self._step = model, 0
        self._encoded = {name: model.encode(rows) for name, rows in self._split.items()}
        self._start = {
            name: model.parameters()[name].detach().clone() for part in self._layers.values() for name in part
        }
        self._look()
        return self._after_step

    def _after_step(self) -> None:
        self._on_step()
        self._step += 1
        if self._step in self._due:
            self._look()

    def _look(self) -> None:
        live = self._model.parameters()
        trained = {name for name, weight in live.items() if weight.requires_grad}
        scores = self._score(self._model, self._encoded["train"])
        self._model.train_only(trained)
        moved = {name: live[name].detach() - start for name, start in self._start.items()}
        accuracy, surprise = dev_score(self._model, self._encoded["dev"])
        norms = {"moved": layer_norms(moved, self._layers), "start": layer_norms(self._start, self._layers)}
        self.rows.append(
            {"step": self._step, "scores": scores, **norms, "dev_accuracy": accuracy, "dev_loss": -surprise}
        )


def watch_training(task: str, seed: int, params: Params, machine: Runtime) -> str:
    """Store what the layers of a cell do while all of them are fine-tuned; gives one line about it."""
    cell = TrainingCell.open(task, seed, params.model, machine)
    settings, how = params.surgery.training, params.surgery.score
    steps = cell.steps(settings)
    due = looks(steps, params.robustness.every)
    layers = layers_of(read_anatomy(paths.PRETRAINED))

    def score(model: LabelModel, examples: list[Example]) -> list[float]:
        return scores_by_count(model, examples, [how.examples], layers, how.target)[how.examples][how.aggregation]

    title = f"robustness {task}-{seed}"
    with progress(title, steps, "step") as bar:
        seen = Watch(due, cell.rows, layers, score, bar.update)
        train_again(cell, settings, seen.watch)
    record = {"stage": "robustness", "task": task, "seed": seed, "learning_rate": settings.learning_rate}
    write_json(paths.reading_record("robustness", (), task, seed), {**record, "rows": seen.rows})
    first, last = seen.rows[0], seen.rows[-1]
    return f"{title}: {len(seen.rows)} looks, dev accuracy {first['dev_accuracy']:.3f} to {last['dev_accuracy']:.3f}"


def looks(steps: int, every: int) -> set[int]:
    """Every so many steps, and after the last one; raises ParamsError if that is the last one only."""
    if every >= steps:
        raise ParamsError(f"robustness.every: {every} is not less than the {steps} steps of fine-tuning")
    return {*range(every, steps, every), steps}
