"""trajectory: checkpoints of fine-tuning and their grafts in one region, for the tasks of one seed.

The models of all checkpoints have to be there before their common region can be found, since it comes
from one in the middle.  So each checkpoint's region and head stay in memory, as float32 on the CPU: 4
bytes * graftable parameters * checkpoints, which is 0.26 GB for MiniLM's 10.6 million at 6
checkpoints, and 6.8 GB for RoBERTa-base's 85 million at 20.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from skill_grafting.grafting.apply import graft
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.models.anatomy import read_anatomy
from skill_grafting.models.loading import read_tensors
from skill_grafting.support.errors import ParamsError
from skill_grafting.support.fields import HEAD
from skill_grafting.support.progress import progress
from stages.study.settings import Checkpoints, Settings
from stages.text.models.evaluation import Evaluation
from stages.text.models.label_model import LabelModel
from stages.text.scores.variants import GRAFTED
from stages.text.tasks.runtime import Runtime
from stages.text.training.finetuning import at_point, train_again
from stages.workflow.cells.cells import GraftCell
from stages.workflow.cells.scoring import train_set, variant_rows, write_record
from stages.workflow.cells.stored import read_test_sets
from stages.workflow.cells.training import chosen_point, open_training
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage

CHECKPOINT = "checkpoint"


@dataclass
class Trace:
    """Observes a model in training after the steps `due`: predicts `sets`, and copies the tensors `names`.

    Predictions are made in eval mode, which draws no random numbers, and training goes back to train
    mode at its next step: a watched model is trained like any other.

    kept: step -> name -> values, float32 on the CPU; axes: name of a prediction -> its axes.
    """

    due: Collection[int]
    sets: dict[str, list[dict]]
    names: Collection[str]
    on_step: Callable[[], object] = lambda: None
    step: int = 0
    kept: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    axes: dict[str, dict[str, Any]] = field(default_factory=dict)

    def watch(self, model: LabelModel) -> Callable[[], object]:
        """The function to call after each training step of this model."""
        self.evaluation = Evaluation(model, self.sets, variants=1)
        return self._after_step

    def _after_step(self) -> None:
        self.on_step()
        self.step += 1
        if self.step in self.due:
            live = self.evaluation.model.parameters()
            self.kept[self.step] = {name: live[name].detach().to("cpu", copy=True) for name in self.names}
            self.predict(CHECKPOINT, step=self.step)

    def predict(self, variant: str, **axes: Any) -> None:
        """Predict all sets with the model as it is now."""
        name = "_".join(map(str, (variant, *axes.values())))
        with self.evaluation.progress(name):
            self.evaluation.predict(name)
        self.axes[name] = {"variant": variant, **axes}


def trace(task: str, seed: int, params: Settings, machine: Runtime) -> str:
    """Store a cell's checkpoints and their grafts, on its own test and training rows; returns a line for the log.

    On one machine training ends at the stored fine-tuned model, bit for bit.  On another (or with
    another number of threads) sums are added in another order, so the record says whether it did.
    Raises ParamsError if the checkpoints that were asked for aren't there.
    """
    training, looks = open_training(task, seed, params.model, machine), params.trajectory.checkpoints
    chosen = chosen_point(task, seed)
    settings = at_point(params.finetune, chosen)
    steps = training.steps(settings)
    due = due_steps(steps, looks)
    own = read_test_sets(task, seed)[task][: params.study.test_max or None]
    anatomy = read_anatomy(paths.PRETRAINED)
    names = [*anatomy.region(params.graft.region, "graft.region").shapes, *anatomy.names([HEAD])]
    with progress(f"trajectory {task}-{seed}", steps, "step") as bar:
        seen = Trace(due, {task: own, train_set(task): training.rows["train"]}, names, bar.update)
        model = train_again(training, settings, seen.watch)
    stored = read_tensors(paths.finetuned(task, seed), model.parameters())
    repeated = all(torch.equal(weight.detach().cpu(), stored[name]) for name, weight in model.parameters().items())
    cell = GraftCell.of(model, seed, params.graft.region)
    masks = regions_at(looks.region_step, seen, cell, training.rows["train"], params)
    predict_at_steps(seen, cell, masks)
    predictions = seen.evaluation.predictions()
    scores = variant_rows(predictions, task, seed, params.calibration.bins)
    about = {**cell.about(), "region_step": looks.region_step, "chosen": chosen, "equals_finetuned": repeated}
    write_record("trajectory", (), about, predictions, [{**row, **seen.axes[row["variant"]]} for row in scores])
    ends = "" if repeated else "; ends near, not at, the stored fine-tuned model (made elsewhere?)"
    return f"trajectory {task}-{seed}: {len(due)} checkpoints, {len(masks)} regions of step {looks.region_step}{ends}"


def due_steps(steps: int, settings: Checkpoints) -> list[int]:
    """Every `settings.every` steps and after the last one.

    Raises ParamsError if that is after the last step only, or `settings.region_step` is none of them.
    """
    every, region_step = settings.every, settings.region_step
    if every > steps:
        raise ParamsError(f"trajectory.checkpoints.every: {every} is more than the {steps} steps of fine-tuning")
    due = [*range(every, steps, every), steps]
    if region_step not in due:
        raise ParamsError(
            f"trajectory.checkpoints.region_step: {region_step} is not a checkpoint; "
            f"there is one every {every} steps (trajectory.checkpoints.every), and the last after {steps}"
        )
    return due


def regions_at(
    step: int, seen: Trace, cell: GraftCell, train_rows: list[dict], params: Settings
) -> dict[float, GraftMask]:
    """Sparsity -> the region learned at a checkpoint, for its own predictions on the training rows instead of their labels."""
    at = {name: values.to(cell.model.runtime.device) for name, values in seen.kept[step].items()}
    cell.model.put(at)  # for its head; localizers overwrite the region
    predictions = seen.evaluation.predictions()
    said = predictions.logits[train_set(cell.task)][f"{CHECKPOINT}_{step}"].argmax(1)
    labels = [predictions.label_names[index] for index in said]
    rows = [{**row, "label": label} for row, label in zip(train_rows, labels, strict=True)]
    then, sizes = replace(cell, finetuned=at), params.trajectory.checkpoints.sparsities
    loss, seed = then.objective(rows), then.draws("learned")
    return then.masks(params.localizer.learned, sizes, "trajectory.checkpoints.sparsities", loss, seed)


def predict_at_steps(seen: Trace, cell: GraftCell, masks: dict[float, GraftMask]) -> None:
    """Predict the graft of every checkpoint in every region, each under the checkpoint's own head."""
    before = {name: values.cpu() for name, values in cell.pretrained.items()}
    for sparsity, mask in masks.items():
        for step, values in seen.kept.items():
            cell.model.put({**values, **graft(before, values, mask)})
            seen.predict(GRAFTED, step=step, sparsity=sparsity)
            seen.axes[f"{GRAFTED}_{step}_{sparsity}"]["selected"] = mask.selected


@stage
def main(params: Settings, machine: Runtime, seed: int) -> None:
    """Fine-tune as before, look at every checkpoint, find the regions of one, and measure."""
    for task in params.trajectory.tasks:
        print(trace(task, seed, params, machine))
