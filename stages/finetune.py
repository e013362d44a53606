"""finetune: the pretrained model fine-tuned on the k-shot data of one (task, seed), here or elsewhere."""

from stages.lib import paths
from stages.lib.entry import stage
from stages.lib.io import replacing, write_json
from stages.workflow.settings import MODEL, load_params


@stage
def main(task: str, seed: int) -> None:
    """Fine-tune, choosing the grid point on dev, or take a checkpoint over; save an ordinary model folder."""
    params = load_params(*MODEL, "runtime.processes", "finetune")

    from stages.lib import runtime
    from stages.lib.models.loading import save_model
    from stages.lib.progress import progress
    from stages.lib.training.finetuning import TrainingCell, finetune
    from stages.lib.training.taking_over import take_over

    cell = TrainingCell.open(task, seed, params.model, runtime.start(params.runtime))
    if params.finetune.source == "train":
        with progress(f"finetune {task}-{seed}", cell.total_steps(params.finetune), "step") as bar:
            best = finetune(cell, params.finetune, bar.update)
    else:
        best = take_over(cell, params.finetune, cell.task.checkpoint_of(seed))
    with replacing(paths.finetuned(task, seed)) as folder:
        write_json(folder / "training.json", {"task": task, "seed": seed, **best.record})
        save_model(best.model.model, best.model.tokenizer, folder)
    measure = "exact match" if params.model.mode == "generative" else "accuracy"
    print(
        f"finetune {task}-{seed}: dev {measure} {best.record['dev_accuracy']:.3f}, {best.record.get('chosen') or best.record['checkpoint']}"
    )


if __name__ == "__main__":
    main()
