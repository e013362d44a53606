"""mask: the mask of one (task, seed)."""

from skill_grafting import runtime
from skill_grafting.grafting.mask_file import StoredMask, read_mask_for, write_mask
from skill_grafting.localizers.movement import Movement, order_within
from skill_grafting.localizers.registry import Budget
from skill_grafting.progress import each_pass, progress
from stages.workflow.core import paths
from stages.workflow.core.cells import GraftCell, evidence_of
from stages.workflow.core.settings import MODEL, load_params
from stages.workflow.core.stage import stage


@stage
def main(task: str, seed: int) -> None:
    """Find the mask by graft.localizer, starting from the movement mask of its size, and store it with its values."""
    params = load_params(*MODEL, "graft", "localizer.${graft.localizer}", "data.k")
    name = params.graft.localizer
    localizer = getattr(params.localizer, name)
    cell = GraftCell.open(task, seed, params.model, params.graft.region, runtime.start(params.runtime))
    moved = read_mask_for(paths.movement(task, seed), cell.pretrained, cell.anatomy.name)
    order = order_within(moved.mask, cell.pretrained, moved.values) if isinstance(localizer, Movement) else None
    budget = Budget.of(cell.region, params.graft.sparsity, "graft.sparsity")
    evidence = evidence_of(cell, name, cell.rows("train"), cell.rows("dev"))
    with progress(f"mask {task}-{seed}", None, "pass") as bar, each_pass(cell.model.model, bar.update):
        found = localizer.find(evidence, budget, order)
    mask = found.mask
    about = {"k": params.data.k, "mode": params.model.mode, "model_parameters": cell.anatomy.parameters}
    header = {**cell.origin(), **about, "localizer": name, **found.record}
    write_mask(paths.learned(task, seed), StoredMask(mask, cell.values_at(mask), cell.head, header))
    told = f"mask {task}-{seed}: {mask.selected:,} of {mask.region.size:,} graftable parameters ({mask.sparsity:.4%})"
    if "loss" in found.record:
        begin, end = found.record["loss"]
        told += f", loss on all training rows from {begin:.3g} to {end:.3g}" + ", above where it began" * (end > begin)
    print(told)


if __name__ == "__main__":
    main()
