"""Read-outs of masks on a real model: graft/readout.py puts the values together, training included."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from stages.lib import paths
from stages.lib.errors import ModelError
from stages.lib.evaluation.study_cell import study_evaluation, variant_rows, write_reading
from stages.lib.graft.apply import graft
from stages.lib.graft.mask import GraftMask
from stages.lib.graft.mask_file import read_mask
from stages.lib.graft.readout import GRAFT, PRUNE, RESET, RETRAIN, prune, reset
from stages.lib.io import read_json
from stages.lib.models.cell import GraftCell
from stages.lib.models.label_model import LabelModel
from stages.lib.progress import progress
from stages.lib.runtime import Runtime
from stages.lib.training.finetuning import Finetuned, at_point, finetune, steps_for


@dataclass(frozen=True)
class Retraining:
    """What training needs besides the model: rows, the `finetune` section, its grid point, the seed."""

    pretrained_folder: Path
    rows: dict[str, list[dict]]
    settings: Any
    chosen: dict[str, Any]
    seed: int


def read(readout: str, localizer: str, sparsity: str, task: str, seed: int, params: Any, machine: Runtime) -> str:
    """Store a cell's read-out of a mask of the sweep; gives one line about it."""
    cell = GraftCell.open(task, seed, params.model, params.graft.region, machine)
    mask = read_mask(paths.sweep_mask(localizer, sparsity, task, seed)).mask
    rows = {split: cell.rows(split) for split in ("train", "dev")}
    settings = params.finetune.model_copy(update={"max_steps": params.readout.max_steps})
    chosen = read_json(paths.finetuned(task, seed) / "training.json", ModelError)["chosen"]
    retraining = Retraining(paths.PRETRAINED, rows, settings, chosen, seed)
    steps = steps_for(settings, len(cell.model.task.labels), len(rows["train"])) if readout == RETRAIN else 0
    with progress(f"{readout} {localizer} {sparsity} {task}-{seed}", steps, "step") as bar:
        training = read_out(readout, cell, mask, retraining, bar.update)
    evaluation = study_evaluation(cell, params.study.test_max, with_train=True)
    with evaluation.progress(f"{readout} {localizer} {sparsity} {task}-{seed}"):
        evaluation.predict(readout)
    predictions = evaluation.predictions()
    axes = {"readout": readout, "localizer": localizer, "sparsity": float(sparsity), "selected": mask.selected}
    scores = variant_rows(predictions, task, seed, params.calibration.bins)
    about = {**cell.about(), **axes, "training": training}
    write_reading("readout", (readout, localizer, sparsity), about, predictions, scores)
    return f"readout {readout} {localizer} {sparsity} {task}-{seed}: {evaluation.describe()}"


def read_out(
    name: str,
    cell: GraftCell,
    mask: GraftMask,
    retraining: Retraining,
    on_step: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """Put a read-out of the mask into the cell's model; gives the record of its training, empty without one.

    Raises ValueError for an unknown name or a mask of another region, TrainingError if retraining diverges.
    """
    if mask.region != cell.region:
        raise ValueError("the mask is of another region than the cell")
    if name == RETRAIN:
        done = retrain(cell.model, mask, retraining, on_step)
        cell.model.put(_copies(done.model, [*cell.region.shapes, *cell.head]))
        return done.record
    cell.model.put({**_put_together(name, cell, mask), **cell.head})
    return {}


def retrain(
    model: LabelModel, mask: GraftMask, retraining: Retraining, on_step: Callable[[], object] = lambda: None
) -> Finetuned:
    """A new model of the kind of `model`: pretrained, then only the mask's values and a new head trained.

    At the grid point that fine-tuning chose, from the same random head, with the same batches
    (paper, section 3: re-training the grafting region).
    """
    return finetune(
        retraining.pretrained_folder,
        model.task,
        retraining.rows,
        retraining.seed,
        SimpleNamespace(mode=model.mode, max_length=model.max_length),
        at_point(retraining.settings, retraining.chosen),
        model.runtime,
        on_step,
        mask,
    )


def _put_together(name: str, cell: GraftCell, mask: GraftMask) -> dict[str, Tensor]:
    if name == GRAFT:
        return graft(cell.pretrained, cell.finetuned, mask)
    if name == RESET:
        return reset(cell.finetuned, cell.pretrained, mask)
    if name == PRUNE:
        return prune(cell.finetuned, mask)
    raise ValueError(f"unknown read-out {name!r}")


def _copies(model: LabelModel, names: Any) -> dict[str, Tensor]:
    parameters = model.parameters()
    return {name: parameters[name].detach().cpu().clone() for name in names}
