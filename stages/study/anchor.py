"""anchor: the two ends of every graft, the pretrained and the fine-tuned model, and the fine-tuned one pruned."""

from skill_grafting.grafting.readout import prune
from skill_grafting.grafting.select import top_k
from skill_grafting.localizers.movement import movement
from skill_grafting.support.io import read_rows
from stages.study.settings import Settings
from stages.text.models.evaluation import Evaluation
from stages.text.models.label_model import LabelModel
from stages.text.scores.predictions import Predictions, first_rows, read_predictions
from stages.text.scores.scores import score_rows
from stages.text.scores.variants import FINETUNED, PRETRAINED
from stages.text.tasks.runtime import Runtime
from stages.workflow.cells.cells import GraftCell
from stages.workflow.cells.scoring import train_set, write_record
from stages.workflow.cells.stored import read_task, read_test_sets
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage

PRUNED = "pruned"


def anchor(task: str, seed: int, params: Settings, machine: Runtime) -> str:
    """Store a cell's anchor; returns a line for the log.

    The logits of the test rows come from the main pipeline; the training rows are predicted here,
    and so are the pruned models (paper, figure 4b): the region's parameters that moved most stay as
    fine-tuned, all others of the region are 0.
    """
    model = LabelModel.load(paths.finetuned(task, seed), read_task(task), params.model, machine)
    own = read_test_sets(task, seed)[task][: params.study.test_max or None]
    train = Evaluation(model, {train_set(task): read_rows(paths.sample(task, seed, "train"))}, variants=2)
    pruned = Evaluation(model, {task: own}, variants=len(params.anchor.pruned))
    with train.progress(f"anchor {task}-{seed}"):
        train.predict(FINETUNED)
        cell = GraftCell.of(model, seed, params.graft.region)
        train.predict(PRETRAINED)
    moved = movement(cell.pretrained, cell.finetuned, cell.region)
    with pruned.progress(f"anchor {task}-{seed}, pruned"):
        for share in params.anchor.pruned:
            kept = top_k(cell.region, moved, cell.region.budget(share))
            model.put(prune(cell.finetuned, kept))
            pruned.predict(f"{PRUNED}_{share}")
    tested = first_rows(read_predictions(paths.logits("reference", task, seed)), params.study.test_max)
    together = _join(tested, train.predictions(), pruned.predictions())
    rows = score_rows(together, model.task, params.calibration.bins)
    axes = {f"{PRUNED}_{share}": {"variant": PRUNED, "sparsity": share} for share in params.anchor.pruned}
    write_record("anchor", (), cell.about(), together, [{**row, **axes.get(row["variant"], {})} for row in rows])
    parts = [f"{row['variant']} {row['score']:.3f}" for row in rows if row["test_set"] == task]
    return f"anchor {task}-{seed}: {', '.join(parts)}"


def _join(*parts: Predictions) -> Predictions:
    """All test sets and variants of the parts, which agree on the rows of the sets they share."""
    labels, logits = {}, {}
    for part in parts:
        labels |= part.labels
        for name, variants in part.logits.items():
            logits[name] = {**logits.get(name, {}), **variants}
    return Predictions(parts[0].label_names, labels, logits)


@stage
def main(params: Settings, machine: Runtime, seed: int) -> None:
    """Store the predictions that the study's other stages are compared with, training rows included."""
    for task in params.study.tasks:
        print(anchor(task, seed, params, machine))
