"""The curve of `graft localize` for several sizes: the score of each graft, or without rows the share of the movement it holds."""

from pathlib import Path

from matplotlib.figure import Figure

from ..io import replacing
from ..metrics.variants import FINETUNED, PRETRAINED, WHOLE_REGION
from ..words import percent, small_percent, words
from .card import Scores
from .localize_context import LocalizeContext

ACROSS = {FINETUNED: "-", WHOLE_REGION: "--", PRETRAINED: ":"}


def save_curve(path: Path, work: LocalizeContext, shares: list[float], scores: Scores) -> None:
    """Draw in %, by size, the scores of the grafts beside those of the other models, or these shares of the squared movement.

    The title has the best score or the smallest share, and n; bars are 95 % intervals over the test rows (1.96 standard errors).
    """
    grafts = [row for name, row in scores.items() if name not in ACROSS]
    sizes, values = [budget.share for budget in work.budgets], [row["score"] for row in grafts] or shares
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot(xscale="log", xlabel="selected / graftable parameters")
    axes.set_ylabel("accuracy (%)" if scores else "share of the squared movement (%)")
    bars = [100 * 1.96 * row["accuracy_se"] for row in grafts] or None
    label = "grafted" if scores else None
    axes.errorbar(sizes, [100 * value for value in values], bars, fmt="o-", capsize=3, label=label)
    for name in (name for name in ACROSS if name in scores):
        axes.axhline(100 * scores[name]["score"], color="grey", linestyle=ACROSS[name], label=words(name))
    if scores:
        axes.legend()
    axes.set_title(_title(work, dict(zip(sizes, values, strict=True)), scores), fontsize="small", parse_math=False)
    with replacing(path) as partial:
        figure.savefig(partial, format="png", metadata={"Software": None})


def _title(work: LocalizeContext, values: dict[float, float], scores: Scores) -> str:
    best = min(values, key=lambda size: (-values[size], size)) if scores else min(values)
    found = f"{work.task.title}: {small_percent(best)} of the parameters, by {work.request.localizer},"
    if not scores:
        return f"{found}\nhold {percent(values[best])} % of the squared movement (n = {work.region.size:,} parameters)"
    tuned = scores[FINETUNED]
    rows = f"n = {tuned['n']:,} test rows, bars: 95 %"
    return f"{found}\nscore {percent(values[best])} %, the fine-tuned model {percent(tuned['score'])} % ({rows})"
