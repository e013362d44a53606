"""mask: the mask of one (task, seed)."""

from skill_grafting import runtime
from skill_grafting.grafting.mask_file import StoredMask, read_order, require_model, write_mask
from skill_grafting.localizers.evidence import counted
from skill_grafting.localizers.movement import rank_by_movement
from skill_grafting.localizers.registry import Budget, find_mask, localizer_of
from skill_grafting.progress import progress
from stages.workflow.core import paths
from stages.workflow.core.cells import GraftCell, evidence_of
from stages.workflow.core.settings import MODEL, load_params
from stages.workflow.core.stage import stage


@stage
def main(task: str, seed: int) -> None:
    """Find the mask by graft.localizer, starting from the stored movement order, and store it with its values."""
    params = load_params(*MODEL, "graft", "localizer.${graft.localizer}", "data.k")
    name, movement = params.graft.localizer, paths.movement(task, seed)
    cell = GraftCell.open(task, seed, params.model, params.graft.region, runtime.start(params.runtime))
    order, origin = read_order(movement)
    require_model(movement, origin, cell.region, cell.fingerprint, cell.anatomy.name)
    budget = Budget.of(cell.region, params.graft.sparsity, params.graft.rule, "graft.sparsity")
    usable = localizer_of(name).rank is rank_by_movement and budget.k <= len(order)
    train = cell.rows("train")
    with progress(f"mask {task}-{seed}", None, "example") as bar:
        evidence = counted(evidence_of(cell, name, train, cell.rows("dev")), len(train), bar.update)
        found = find_mask(name, evidence, getattr(params.localizer, name), budget, order if usable else None)
    mask = found.mask
    about = {"k": params.data.k, "mode": params.model.mode, "model_parameters": cell.anatomy.parameters}
    header = {**origin, **about, "localizer": name, **found.record}
    write_mask(paths.learned(task, seed), StoredMask(mask, cell.values_at(mask), cell.head, header))
    print(f"mask {task}-{seed}: {mask.selected:,} of {mask.region.size:,} graftable parameters ({mask.sparsity:.4%})")


if __name__ == "__main__":
    main()
