"""WiSE-FT and WiSE-graft of one cell (paper, section 4.2 and figure 7)."""

from stages.lib import paths
from stages.lib.evaluation.study_cell import study_evaluation, variant_rows, write_reading
from stages.lib.graft.interpolate import wise_ft, wise_graft
from stages.lib.graft.mask_file import read_mask
from stages.lib.metrics.variants import WISE_FT, WISE_GRAFT
from stages.lib.models.cell import GraftCell
from stages.lib.runtime import Runtime
from stages.lib.settings import Params


def interpolate(task: str, seed: int, params: Params, machine: Runtime) -> str:
    """Store a cell's curves, a row for each weight of the fine-tuned model; gives one line about them.

    The graft is the main pipeline's.  A new head has no pretrained values and stays as trained.
    A task without out-of-distribution sets has no curve.
    """
    cell = GraftCell.open(task, seed, params.model, params.graft.region, machine)
    mask = read_mask(paths.learned(task, seed)).mask
    evaluation = study_evaluation(cell, params.study.test_max, variants=2 * len(params.wise.alphas))
    if len(evaluation.sets) == 1:
        return f"wise {task}-{seed}: no out-of-distribution test sets"
    with evaluation.progress(f"wise {task}-{seed}"):
        for alpha in params.wise.alphas:
            cell.model.put(wise_ft(cell.pretrained, cell.finetuned, alpha))
            evaluation.predict(_name(WISE_FT, alpha))
            cell.model.put(wise_graft(cell.pretrained, cell.finetuned, mask, alpha))
            evaluation.predict(_name(WISE_GRAFT, alpha))
    predictions = evaluation.predictions()
    kinds, alphas = (WISE_FT, WISE_GRAFT), params.wise.alphas
    axes = {_name(kind, alpha): {"variant": kind, "alpha": alpha} for kind in kinds for alpha in alphas}
    rows = variant_rows(predictions, task, seed, params.calibration.bins)
    about = {**cell.about(), "selected": mask.selected}
    write_reading("wise", (), about, predictions, [{**row, **axes[row["variant"]]} for row in rows])
    return f"wise {task}-{seed}: {len(axes)} points on {len(evaluation.sets)} test sets"


def _name(kind: str, alpha: float) -> str:
    return f"{kind}_{alpha}"
