"""Read-outs of masks on a real model: lib/graft/readout.py puts the values together, training included."""

from collections.abc import Callable
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
from stages.lib.progress import progress
from stages.lib.runtime import Runtime
from stages.lib.settings import FinetuneParams, Params
from stages.lib.training.finetuning import Finetuned, TrainingCell, at_point, finetune


def read(axes: tuple[str, str, str], task: str, seed: int, params: Params, machine: Runtime) -> str:
    """Store a cell's read-out of a mask of the sweep; gives one line about it.

    axes: the read-out, the localizer, and the sparsity as it stands in params.yaml.
    """
    readout, localizer, sparsity = axes
    title = f"{' '.join(axes)} {task}-{seed}"
    cell = GraftCell.open(task, seed, params.model, params.graft.region, machine)
    mask = read_mask(paths.sweep_mask(localizer, sparsity, task, seed)).mask
    retraining = TrainingCell.open(task, seed, params.model, machine)
    chosen = read_json(paths.finetuned(task, seed) / "training.json", ModelError)["chosen"]
    settings = at_point(params.finetune, chosen).model_copy(update={"max_steps": params.readout.max_steps})
    with progress(title, retraining.steps(settings) if readout == RETRAIN else 0, "step") as bar:
        training = read_out(readout, cell, mask, lambda: retrain(retraining, settings, mask, bar.update))
    evaluation = study_evaluation(cell, params.study.test_max, with_train=True)
    with evaluation.progress(title):
        evaluation.predict(readout)
    predictions = evaluation.predictions()
    record = {"readout": readout, "localizer": localizer, "sparsity": float(sparsity), "selected": mask.selected}
    scores = variant_rows(predictions, task, seed, params.calibration.bins)
    write_reading("readout", axes, {**cell.about(), **record, "training": training}, predictions, scores)
    return f"readout {title}: {evaluation.describe()}"


def read_out(name: str, cell: GraftCell, mask: GraftMask, retrained: Callable[[], Finetuned]) -> dict[str, Any]:
    """Put a read-out of the mask into the cell's model; gives the record of its training, empty without one.

    Raises ValueError for an unknown name or a mask of another region, TrainingError if retraining diverges.
    """
    if mask.region != cell.region:
        raise ValueError("the mask is of another region than the cell")
    if name == RETRAIN:
        done = retrained()
        live = done.model.parameters()
        cell.model.put({name: live[name].detach().cpu().clone() for name in (*cell.region.shapes, *cell.head)})
        return done.record
    cell.model.put({**_put_together(name, cell, mask), **cell.head})
    return {}


def retrain(
    cell: TrainingCell, settings: FinetuneParams, mask: GraftMask, on_step: Callable[[], object] = lambda: None
) -> Finetuned:
    """A new model: pretrained, then only the mask's values and a new head trained.

    With settings of the grid point that fine-tuning chose it is trained from the same random head, with the same
    batches (paper, section 3: re-training the grafting region).
    """
    return finetune(cell, settings, on_step, mask)


def _put_together(name: str, cell: GraftCell, mask: GraftMask) -> dict[str, Tensor]:
    if name == GRAFT:
        return graft(cell.pretrained, cell.finetuned, mask)
    if name == RESET:
        return reset(cell.finetuned, cell.pretrained, mask)
    if name == PRUNE:
        return prune(cell.finetuned, mask)
    raise ValueError(f"unknown read-out {name!r}")
