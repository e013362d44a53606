"""All figures of the study as PNG, those of stages that are off left out."""

from pathlib import Path

from stages.lib.report.style import save_all
from stages.study.report import curve_figures, place_figures, tradeoff_figures
from stages.study.report.collecting import Study

FIGURES = {
    "localizers": curve_figures.localizers_figure,
    "bias": curve_figures.bias_figure,
    "paradigm": curve_figures.paradigm_figure,
    "ood_tradeoff": tradeoff_figures.tradeoff_figure,
    "ood_sparsity": curve_figures.ood_sparsity_figure,
    "layers": place_figures.layer_figure,
    "modules": place_figures.kind_figure,
    "trajectory": curve_figures.trajectory_figure,
    "cost": tradeoff_figures.cost_figure,
}


def figures(study: Study, folder: Path) -> list[Path]:
    """Write the figures there are data for into `folder`; gives their paths."""
    return save_all(FIGURES, study, folder)
