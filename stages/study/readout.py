"""readout: one use of one localizer's masks at every size, for the tasks of one seed."""

from collections.abc import Callable
from itertools import product
from typing import Any

from skill_grafting.grafting.apply import graft
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.mask_files import read_mask
from skill_grafting.grafting.readout import GRAFT, PRUNE, RESET, RETRAIN, prune, reset
from skill_grafting.support.progress import progress
from stages.study.settings import Settings
from stages.text.models.evaluation import Evaluation
from stages.text.tasks.runtime import Runtime
from stages.text.tasks.settings import FinetuneParams
from stages.text.training.finetuning import Finetuned, finetune
from stages.workflow.cells.cells import GraftCell
from stages.workflow.cells.scoring import study_sets, variant_rows, write_record
from stages.workflow.cells.training import chosen_point, open_training
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage


def read(axes: tuple[str, str, str], task: str, seed: int, params: Settings, machine: Runtime) -> str:
    """Store a cell's read-out of a mask of the sweep; returns a line for the log.

    axes: the read-out, the localizer, and the sparsity as it stands in params.yaml.
    """
    readout, localizer, sparsity = axes
    title = f"{' '.join(axes)} {task}-{seed}"
    cell = GraftCell.open(task, seed, params.model, params.graft.region, machine)
    mask = read_mask(paths.mask("sweep", task, seed, localizer, sparsity)).mask

    def retrained() -> Finetuned:
        retraining = open_training(task, seed, params.model, machine)
        settings = own_grid(params.finetune, params.readout.learning_rates, chosen_point(task, seed)["batch_size"])
        with progress(title, retraining.total_steps(settings), "step") as bar:
            return finetune(retraining, settings, bar.update, mask)

    training = read_out(readout, cell, mask, retrained)
    evaluation = Evaluation(cell.model, study_sets(task, seed, params.study.test_max, with_train=True), variants=1)
    with evaluation.progress(title):
        evaluation.predict(readout)
    predictions = evaluation.predictions()
    record = {"readout": readout, "localizer": localizer, "sparsity": float(sparsity), "selected": mask.selected}
    scores = variant_rows(predictions, task, seed, params.calibration.bins)
    write_record("readout", axes, {**cell.about(), **record, "training": training}, predictions, scores)
    return f"readout {title}: {evaluation.describe()}"


def read_out(name: str, cell: GraftCell, mask: GraftMask, retrained: Callable[[], Finetuned]) -> dict[str, Any]:
    """Put a read-out of the mask into the cell's model; gives the record of its training, empty without one."""
    if name == RETRAIN:
        done = retrained()
        live = done.model.parameters()
        cell.model.put({name: live[name].detach().cpu().clone() for name in (*cell.region.shapes, *cell.head)})
        return done.record
    made = {
        GRAFT: lambda: graft(cell.pretrained, cell.finetuned, mask),
        RESET: lambda: reset(cell.finetuned, cell.pretrained, mask),
        PRUNE: lambda: prune(cell.finetuned, mask),
    }
    cell.model.put({**made[name](), **cell.head})
    return {}


def own_grid(settings: FinetuneParams, learning_rates: list[float], batch_size: int) -> FinetuneParams:
    """The settings for retraining a region: those of the whole model, but dev chooses among these learning rates.

    The batch size is the one that fine-tuning chose, and steps, random head and batches are the same (paper, section
    3: re-training the grafting region), so both see the same examples.  A few parameters want a larger step than all.
    """
    return settings.model_copy(update={"learning_rates": learning_rates, "batch_sizes": [batch_size]})


@stage
def main(params: Settings, machine: Runtime, readout: str, localizer: str, seed: int) -> None:
    """Put the masks into the model that way, and measure on test and training rows."""
    for sparsity, task in product(params.readout.sparsities, params.readout.tasks):
        print(read((readout, localizer, str(sparsity)), task, seed, params, machine))
