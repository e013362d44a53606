"""sweep: the masks of one localizer at every size, and how good their grafts are, for all tasks of one seed."""

from collections.abc import Iterator

from skill_grafting.grafting.apply import graft
from skill_grafting.grafting.mask_files import StoredMask, write_mask
from stages.study.settings import Settings
from stages.text.models.evaluation import Evaluation
from stages.text.scores.variants import GRAFTED
from stages.text.tasks.runtime import Runtime
from stages.workflow.cells.cells import GraftCell
from stages.workflow.cells.scoring import study_sets, variant_rows, write_record
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage


def sweep(name: str, task: str, seed: int, params: Settings, machine: Runtime) -> Iterator[str]:
    """Store a cell's mask by one localizer at each size, all from one ranking, and its graft's predictions; gives a line for each."""
    cell, sizes = GraftCell.open(task, seed, params.model, params.graft.region, machine), params.sweep.sparsities
    masks = cell.masks(getattr(params.localizer, name), sizes, "sweep.sparsities", cell.objective(), cell.draws(name))
    for sparsity, mask in masks.items():
        axes, about = (name, str(sparsity)), {"localizer": name, "sparsity": sparsity}
        title = f"sweep {name} {sparsity} {task}-{seed}"
        header = {**cell.origin(), "model_parameters": cell.anatomy.parameters, **about, "found": mask.record}
        stored = StoredMask(mask, cell.values_at(mask), cell.head, header)
        write_mask(paths.mask("sweep", task, seed, *axes), stored)
        evaluation = Evaluation(cell.model, study_sets(task, seed, params.study.test_max), variants=1)
        cell.model.put(graft(cell.pretrained, cell.finetuned, mask))
        with evaluation.progress(title):
            evaluation.predict(GRAFTED)
        predictions = evaluation.predictions()
        rows = variant_rows(predictions, task, seed, params.calibration.bins)
        write_record("sweep", axes, {**cell.about(), **about, "selected": mask.selected}, predictions, rows)
        yield f"{title}: {mask.selected:,} parameters, {evaluation.describe()}"


@stage
def main(params: Settings, machine: Runtime, localizer: str, seed: int) -> None:
    """Find the masks, graft, and measure."""
    for task in params.study.tasks:
        for line in sweep(localizer, task, seed, params, machine):
            print(line)
