"""The curve of `graft localize` for several sizes: the score of each graft, or without rows the share of the movement it holds."""

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..io import replacing
from ..metrics.variants import FINETUNED, PRETRAINED, WHOLE_REGION
from ..words import words
from .card import Scores

ACROSS = {FINETUNED: "-", WHOLE_REGION: "--", PRETRAINED: ":"}


def save_curve(path: Path, shares: dict[float, float], scores: Scores) -> None:
    """Draw by size, in %, the scores of the grafts, between those of the other models, or these shares of the squared movement."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot(xscale="log", xlabel="selected / graftable parameters")
    axes.set_ylabel("score (%)" if scores else "share of the squared movement (%)")
    across = {name: scores[name]["score"] for name in ACROSS if name in scores}
    values = [row["score"] for name, row in scores.items() if name not in ACROSS] or [*shares.values()]
    axes.plot([*shares], [100 * value for value in values], "o-", label="grafted" if scores else None)
    for name, score in across.items():
        axes.axhline(100 * score, color="grey", linestyle=ACROSS[name], label=words(name))
    if scores:
        axes.legend()
    with replacing(path) as partial:
        FigureCanvasAgg(figure).print_png(partial, metadata={"Software": None})
