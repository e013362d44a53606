"""Grafts of models that were fine-tuned in other ways (paper, section 3.2 and figures 3 and 5)."""

from types import SimpleNamespace
from typing import Any

from stages.lib import paths
from stages.lib.data.task_cards import read_task
from stages.lib.evaluation.evaluation import Evaluation
from stages.lib.evaluation.study_cell import study_sets, write_reading
from stages.lib.graft.apply import graft
from stages.lib.graft.mask import GraftMask
from stages.lib.io import read_rows
from stages.lib.localizers.movement import movement_mask, movement_order
from stages.lib.localizers.registry import Budget, find_mask
from stages.lib.metrics.scores import score_rows
from stages.lib.metrics.variants import FINETUNED, GRAFTED, MOVEMENT_GRAFTED
from stages.lib.models.cell import GraftCell
from stages.lib.models.evidence import evidence_of
from stages.lib.progress import progress
from stages.lib.runtime import Runtime
from stages.lib.training.finetuning import finetune, total_steps
from stages.lib.training.optimizers import settings_of

# A new head instead of a prompt (figure 3), otherwise as `sgd`.
STANDARD = "standard"


def finetune_and_graft(paradigm: str, task: str, seed: int, params: Any, machine: Runtime) -> str:
    """Store how much of a cell's skill grafts hold after fine-tuning it in this way; gives one line about it.

    The model itself is not stored.  Agreement and retained score refer to it, and not to the model
    of the main pipeline.
    """
    spec = read_task(task)
    rows = {split: read_rows(paths.sample(task, seed, split)) for split in ("train", "dev")}
    settings = settings_of(paradigm, params.finetune, params.paradigm.adamw)
    settings = settings.model_copy(update={"max_steps": params.paradigm.max_steps})
    title = f"paradigm {paradigm} {task}-{seed}"
    with progress(title, total_steps(settings, len(spec.labels), len(rows["train"])), "step") as bar:
        how = model_settings(paradigm, params.model)
        done = finetune(paths.PRETRAINED, spec, rows, seed, how, settings, machine, bar.update)
    variants = 1 + 2 * len(params.paradigm.sparsities)
    evaluation = Evaluation(done.model, study_sets(task, seed, params.study.test_max), variants)
    with evaluation.progress(title):
        evaluation.predict(FINETUNED)
        cell = GraftCell.of(done.model, seed, params.graft.region)
        axes = predict_grafts(cell, rows["train"], params, evaluation)
    predictions = evaluation.predictions()
    scores = [{**row, **axes.get(row["variant"], {})} for row in score_rows(predictions, spec, params.calibration.bins)]
    about = {**cell.about(), "paradigm": paradigm, "training": done.record}
    write_reading("paradigm", (paradigm,), about, predictions, scores)
    return f"{title}: {evaluation.describe()}"


def model_settings(paradigm: str, settings: Any) -> SimpleNamespace:
    """How labels are read: as the `model` section says, but for the paradigm that is about another way."""
    return SimpleNamespace(mode="standard" if paradigm == STANDARD else settings.mode, max_length=settings.max_length)


def predict_grafts(
    cell: GraftCell, train_rows: list[dict], params: Any, evaluation: Evaluation
) -> dict[str, dict[str, Any]]:
    """Predict the movement and the learned graft of every size; gives name of the prediction -> its axes."""
    axes = {}
    for sparsity in params.paradigm.sparsities:
        for variant, mask in masks(cell, train_rows, params, sparsity).items():
            cell.model.put(graft(cell.pretrained, cell.finetuned, mask))
            evaluation.predict(f"{variant}_{sparsity}")
            axes[f"{variant}_{sparsity}"] = {"variant": variant, "sparsity": sparsity, "selected": mask.selected}
    return axes


def masks(cell: GraftCell, train_rows: list[dict], params: Any, sparsity: float) -> dict[str, GraftMask]:
    """The learned mask, and the movement mask of as many parameters, as the main pipeline compares them."""
    budget = Budget.of(cell.region, sparsity, params.graft.rule, "paradigm.sparsities")
    evidence = evidence_of(cell, "learned", train_rows)
    learned = find_mask("learned", evidence, params.localizer.learned, budget).mask
    order = movement_order(cell.pretrained, cell.finetuned, cell.region, learned.selected)
    return {MOVEMENT_GRAFTED: movement_mask(cell.region, order, learned.selected), GRAFTED: learned}
