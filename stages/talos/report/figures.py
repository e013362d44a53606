"""All figures of task arithmetic as PNG, those without data left out."""

from pathlib import Path

from stages.lib.report.style import save_all
from stages.talos.report import bar_figures, heat_figures
from stages.talos.report.collecting import Talos

FIGURES = {
    "pruning": heat_figures.pruning_figure,
    "localization": heat_figures.localization_figure,
    "disentanglement": heat_figures.disentangle_figure,
    "added": bar_figures.addition_figure,
    "masks": bar_figures.mask_figure,
    "task_overlap": bar_figures.overlap_figure,
}


def figures(talos: Talos, folder: Path) -> list[Path]:
    """Write the figures there are data for into `folder`; gives their paths."""
    return save_all(FIGURES, talos, folder)
