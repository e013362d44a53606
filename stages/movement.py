"""movement: the parameters of one (task, seed), ordered by how far fine-tuning moved them."""

from skill_grafting.grafting.mask_file import write_order
from skill_grafting.localizers.movement import movement_order
from skill_grafting.models.anatomy import read_anatomy
from skill_grafting.models.loading import read_tensors
from stages.workflow.core import paths
from stages.workflow.core.settings import load_params
from stages.workflow.core.stage import stage


@stage
def main(task: str, seed: int) -> None:
    """Store the order of the parameters that moved most, as many as the largest later mask needs."""
    params = load_params("movement", "graft.region")
    anatomy = read_anatomy(paths.PRETRAINED)
    region = anatomy.region(params.graft.region)
    pretrained = read_tensors(paths.PRETRAINED, region.shapes)
    finetuned = read_tensors(paths.finetuned(task, seed), region.shapes)
    order = movement_order(pretrained, finetuned, region, region.budget(params.movement.keep))
    about = {"model": anatomy.name, "task": task, "seed": seed, "fingerprint": region.fingerprint(pretrained)}
    write_order(paths.movement(task, seed), order, region.size, about)
    print(f"movement {task}-{seed}: {len(order):,} of {region.size:,} parameters in order")


if __name__ == "__main__":
    main()
