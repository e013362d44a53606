"""wise: WiSE-FT and WiSE-graft, all the way from the pretrained to the fine-tuned or grafted model."""

from functools import partial
from itertools import product

from skill_grafting.grafting.mask_files import read_mask
from skill_grafting.grafting.readout import wise_ft, wise_graft
from stages.study.settings import Settings
from stages.text.models.evaluation import Evaluation
from stages.text.scores.variants import WISE_FT, WISE_GRAFT
from stages.text.tasks.runtime import Runtime
from stages.workflow.cells.cells import GraftCell
from stages.workflow.cells.scoring import study_sets, variant_rows, write_record
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage


def interpolate(task: str, seed: int, params: Settings, machine: Runtime) -> str:
    """Store a cell's curves, a row for each weight of the fine-tuned model; returns a line for the log.

    The graft is the main pipeline's.  A new head has no pretrained values and stays as trained.
    A task without out-of-distribution sets has no curve.
    """
    cell = GraftCell.open(task, seed, params.model, params.graft.region, machine)
    mask = read_mask(paths.mask("learned", task, seed)).mask
    evaluation = Evaluation(
        cell.model, study_sets(task, seed, params.study.test_max), variants=2 * len(params.wise.alphas)
    )
    if len(evaluation.sets) == 1:
        return f"wise {task}-{seed}: no out-of-distribution test sets"
    kinds, axes = {WISE_FT: wise_ft, WISE_GRAFT: partial(wise_graft, mask=mask)}, {}
    with evaluation.progress(f"wise {task}-{seed}"):
        for alpha, (kind, between) in product(params.wise.alphas, kinds.items()):
            cell.model.put(between(cell.pretrained, cell.finetuned, alpha=alpha))
            evaluation.predict(f"{kind}_{alpha}")
            axes[f"{kind}_{alpha}"] = {"variant": kind, "alpha": alpha}
    predictions = evaluation.predictions()
    rows = variant_rows(predictions, task, seed, params.calibration.bins)
    about = {**cell.about(), "selected": mask.selected}
    write_record("wise", (), about, predictions, [{**row, **axes[row["variant"]]} for row in rows])
    return f"wise {task}-{seed}: {len(axes)} points on {len(evaluation.sets)} test sets"


@stage
def main(params: Settings, machine: Runtime, seed: int) -> None:
    """Measure both interpolations of every task that has out-of-distribution test sets."""
    for task in params.study.tasks if params.wise.alphas else []:
        print(interpolate(task, seed, params, machine))
