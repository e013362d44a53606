"""movement: the mask of the parameters of one (task, seed) that moved most in fine-tuning."""

from skill_grafting.grafting.apply import values_at
from skill_grafting.grafting.fingerprint import fingerprint
from skill_grafting.grafting.mask_files import StoredMask, write_mask
from skill_grafting.localizers.localizer import Budget
from skill_grafting.localizers.movement import movement_mask
from skill_grafting.models.anatomy import read_anatomy
from skill_grafting.models.loading import read_tensors
from skill_grafting.support.fields import HEAD
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage
from stages.workflow.stage.sections import Settings


@stage
def main(params: Settings, task: str, seed: int) -> None:
    """Store the mask of graft.sparsity by movement: where a mask is learned from, and what its graft is compared with."""
    anatomy = read_anatomy(paths.PRETRAINED)
    region, heads = anatomy.region(params.graft.region, "graft.region"), anatomy.names([HEAD])
    pretrained = read_tensors(paths.PRETRAINED, region.shapes)
    finetuned = read_tensors(paths.finetuned(task, seed), [*region.shapes, *heads])
    budget = Budget.of(region, params.graft.sparsity, "graft.sparsity")
    mask = movement_mask(pretrained, finetuned, region, budget.k)
    about = {
        "model": anatomy.name, "fingerprint": fingerprint(region, pretrained), "task": task, "seed": seed,
        "mode": anatomy.mode, "model_parameters": anatomy.parameters, "localizer": "movement", "rule": "top_k",
    }  # fmt: skip
    head = {name: finetuned[name] for name in heads}
    write_mask(paths.mask("movement", task, seed), StoredMask(mask, values_at(finetuned, mask), head, about))
    print(f"movement {task}-{seed}: {mask.selected:,} of {region.size:,} graftable parameters ({mask.sparsity:.4%})")
