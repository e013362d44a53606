"""mask: the mask of one (task, seed)."""

from skill_grafting.grafting.mask_files import StoredMask, write_mask
from stages.text.tasks.runtime import Runtime
from stages.workflow.cells.cells import GraftCell
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage
from stages.workflow.stage.sections import Settings


@stage
def main(params: Settings, machine: Runtime, task: str, seed: int) -> None:
    """Find the mask by graft.localizer, and store it with its values."""
    name = params.graft.localizer
    cell = GraftCell.open(task, seed, params.model, params.graft.region, machine)
    size, found_by = params.graft.sparsity, getattr(params.localizer, name)
    mask = cell.masks(found_by, [size], "graft.sparsity", cell.objective(), cell.draws(name), f"mask {task}-{seed}")[
        size
    ]
    about = {"k": params.data.k, "mode": params.model.mode, "model_parameters": cell.anatomy.parameters}
    header = {**cell.origin(), **about, "localizer": name, "found": mask.record}
    write_mask(paths.mask("learned", task, seed), StoredMask(mask, cell.values_at(mask), cell.head, header))
    told = f"mask {task}-{seed}: {mask.selected:,} of {mask.region.size:,} graftable parameters ({mask.sparsity:.4%})"
    if "loss" in mask.record:
        begin, end = mask.record["loss"]
        told += f", loss on all training rows from {begin:.3g} to {end:.3g}" + ", above where it began" * (end > begin)
    print(told)
