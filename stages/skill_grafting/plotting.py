"""The figure of a curve: how well grafts of several sizes do."""

from pathlib import Path
from typing import TYPE_CHECKING

from .io import replacing
from .metrics.variants import FINETUNED, GRAFTED, PRETRAINED, WHOLE_REGION
from .words import small_percent, words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

ACROSS = {FINETUNED: "-", WHOLE_REGION: "--", PRETRAINED: ":"}


def plot_scores(table: "DataFrame", axes: "Axes | None" = None, label: str = "score") -> "Axes":
    """Scores of grafts by size, the other models as lines across; columns model, sparsity, score and perhaps se, a standard error.

    Bars are 95 % intervals (1.96 standard errors); the title tells the best graft.
    """
    if axes is None:
        from matplotlib.figure import Figure

        axes = Figure(figsize=(6, 4), layout="constrained").add_subplot()
    grafts, others = table[table.model == GRAFTED].sort_values("sparsity"), table.set_index("model").score
    bars = 1.96 * grafts.se if "se" in table else None
    axes.errorbar(grafts.sparsity, grafts.score, bars, fmt="o-", capsize=3, label=words(GRAFTED))
    for name, style in ACROSS.items():
        if name in others:
            axes.axhline(others[name], color="grey", linestyle=style, label=words(name))
    axes.set(xscale="log", xlabel="selected / graftable parameters", ylabel=label)
    best = grafts.loc[grafts.score.idxmax()]
    tuned = f", the fine-tuned model {others[FINETUNED]:.4g}" if FINETUNED in others else ""
    axes.set_title(
        f"{small_percent(best.sparsity)} of the parameters: {label} {best.score:.4g}{tuned}", fontsize="small"
    )
    axes.legend()
    return axes


def save_figure(axes: "Axes", path: Path, note: str) -> None:
    """Write the figure of these axes as a PNG whose bytes follow from its content, with a note below its title."""
    axes.set_title(f"{axes.get_title()}\n{note}", fontsize="small", parse_math=False)
    with replacing(path) as partial:
        axes.figure.savefig(partial, format="png", metadata={"Software": None})
