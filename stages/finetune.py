"""finetune: the pretrained model fine-tuned on the k-shot data of one (task, seed), here or elsewhere."""

from skill_grafting.support.io import write_json
from skill_grafting.support.progress import progress
from skill_grafting.support.writing import replacing
from stages.text.models.importing import save_model
from stages.text.tasks.runtime import Runtime
from stages.text.training.finetuning import finetune
from stages.text.training.taking_over import take_over
from stages.workflow.cells.training import open_training
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage
from stages.workflow.stage.sections import Settings


@stage
def main(params: Settings, machine: Runtime, task: str, seed: int) -> None:
    """Fine-tune, choosing the grid point on dev, or use a checkpoint from elsewhere; save an ordinary model folder."""
    cell = open_training(task, seed, params.model, machine)
    if params.finetune.source == "train":
        with progress(f"finetune {task}-{seed}", cell.total_steps(params.finetune), "step") as bar:
            best = finetune(cell, params.finetune, bar.update)
    else:
        best = take_over(cell, params.finetune, cell.task.checkpoint_of(seed))
    with replacing(paths.finetuned(task, seed)) as folder:
        write_json(folder / "training.json", {"task": task, "seed": seed, **best.record})
        save_model(best.model.model, best.model.tokenizer, folder)
    place = best.record.get("chosen") or best.record["checkpoint"]
    print(f"finetune {task}-{seed}: dev accuracy {best.record['dev_accuracy']:.3f}, {place}")
