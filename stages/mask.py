"""mask: the learned mask of one (task, seed), which parameters carry the skill."""

from stages.lib import paths
from stages.lib.entry import stage
from stages.lib.io import read_rows
from stages.lib.params import load_params


@stage
def main(task: str, seed: int) -> None:
    """Learn the mask, starting from the movement base, and store it with the values it selects."""
    params = load_params("model", "runtime", "graft", "data.k")

    from stages.lib import runtime
    from stages.lib.data.task_cards import read_task
    from stages.lib.graft.mask_file import write_mask
    from stages.lib.models.anatomy import read_anatomy
    from stages.lib.models.label_model import LabelModel
    from stages.lib.progress import progress
    from stages.mask_learning import learn, stored

    anatomy = read_anatomy(paths.PRETRAINED)
    rows = {split: read_rows(paths.sample(task, seed, split)) for split in ("train", "dev")}
    model = LabelModel.load(paths.finetuned(task, seed), read_task(task), params.model, runtime.start(params.runtime))
    with progress(f"mask {task}-{seed}", params.graft.steps, "step") as bar:
        learned = learn(
            model, anatomy, paths.PRETRAINED, paths.movement(task, seed), rows, params.graft, (task, seed), bar.update
        )
    about = {"k": params.data.k, "mode": params.model.mode, "model_parameters": anatomy.parameters}
    write_mask(paths.learned(task, seed), stored(learned, params.graft, about))
    mask = learned.result.mask
    print(
        f"mask {task}-{seed}: {mask.selected:,} of {mask.region.size:,} graftable parameters ({mask.sparsity:.4%}), step {learned.result.step}"
    )


if __name__ == "__main__":
    main()
