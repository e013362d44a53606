"""paradigm: how well grafts work after fine-tuning with another optimizer, for the tasks of one seed."""

from typing import Any

from skill_grafting.grafting.apply import graft
from skill_grafting.localizers.movement import movement_mask
from skill_grafting.support.progress import progress
from stages.study.settings import Settings
from stages.text.models.evaluation import Evaluation
from stages.text.scores.scores import score_rows
from stages.text.scores.variants import FINETUNED, GRAFTED, MOVEMENT_GRAFTED
from stages.text.tasks.runtime import Runtime
from stages.text.training.finetuning import finetune, settings_of
from stages.workflow.cells.cells import GraftCell
from stages.workflow.cells.scoring import study_sets, write_record
from stages.workflow.cells.training import open_training
from stages.workflow.stage.decorator import stage

STANDARD = "standard"


def finetune_and_graft(paradigm: str, task: str, seed: int, params: Settings, machine: Runtime) -> str:
    """Fine-tune a cell in this way and store the scores of its grafts; returns a line for the log.

    The model itself is not stored.  Agreement and retained score refer to it, and not to the model
    of the main pipeline.
    """
    # a new head instead of a prompt (figure 3), otherwise as `sgd`
    mode = {"mode": "standard"} if paradigm == STANDARD else {}
    training = open_training(task, seed, params.model.model_copy(update=mode), machine)
    settings = settings_of(paradigm, params.finetune, params.paradigm.adamw)
    title = f"paradigm {paradigm} {task}-{seed}"
    with progress(title, training.total_steps(settings), "step") as bar:
        done = finetune(training, settings, bar.update)
    variants = 1 + 2 * len(params.paradigm.sparsities)
    evaluation = Evaluation(done.model, study_sets(task, seed, params.study.test_max), variants)
    with evaluation.progress(title):
        evaluation.predict(FINETUNED)
        cell = GraftCell.of(done.model, seed, params.graft.region)
        axes = predict_by_size(cell, training.rows["train"], params, evaluation)
    predictions = evaluation.predictions()
    rows = score_rows(predictions, training.task, params.calibration.bins)
    scores = [{**row, **axes.get(row["variant"], {})} for row in rows]
    about = {**cell.about(), "paradigm": paradigm, "training": done.record}
    write_record("paradigm", (paradigm,), about, predictions, scores)
    return f"{title}: {evaluation.describe()}"


def predict_by_size(
    cell: GraftCell, train_rows: list[dict], params: Settings, evaluation: Evaluation
) -> dict[str, dict[str, Any]]:
    """Predict the learned graft of every size, and the movement graft of as many parameters; gives name -> axes."""
    axes, sizes = {}, params.paradigm.sparsities
    loss, seed = cell.objective(train_rows), cell.draws("learned")
    masks = cell.masks(params.localizer.learned, sizes, "paradigm.sparsities", loss, seed)
    for sparsity, found in masks.items():
        size = found.selected
        moved = movement_mask(cell.pretrained, cell.finetuned, cell.region, size)
        for variant, mask in ((MOVEMENT_GRAFTED, moved), (GRAFTED, found)):
            cell.model.put(graft(cell.pretrained, cell.finetuned, mask))
            evaluation.predict(f"{variant}_{sparsity}")
            axes[f"{variant}_{sparsity}"] = {"variant": variant, "sparsity": sparsity, "selected": size}
    return axes


@stage
def main(params: Settings, machine: Runtime, paradigm: str, seed: int) -> None:
    """Fine-tune in this way, find regions of every size, graft, and measure."""
    for task in params.paradigm.tasks:
        print(finetune_and_graft(paradigm, task, seed, params, machine))
