"""Curves: how well grafts of several sizes do, as a table and a figure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsFloat

from torch import nn

from .grafting.mask import GraftMask
from .modules.grafts import grafted
from .modules.pairs import Pair
from .support.errors import ParamsError, a_kind, one_number, optional, printable, require_takes
from .support.formatting import small_percent
from .support.writing import replacing

LOGGER = logging.getLogger("skill_grafting")

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

# the rows of a curve: `whole_region` is the graft of everything that may be grafted
PRETRAINED, FINETUNED, GRAFTED, WHOLE_REGION = "pretrained", "finetuned", "grafted", "whole_region"
# the share of what fine-tuning gained from which on it is told that the whole region lacks it
MUCH = 0.1
LABELS = {FINETUNED: "fine-tuned", WHOLE_REGION: "whole region (100 %)", PRETRAINED: "pretrained", GRAFTED: "grafted"}
ACROSS = {FINETUNED: "-", WHOLE_REGION: "--", PRETRAINED: ":"}


def curve(
    base: nn.Module, tuned: nn.Module, masks: Mapping[float, GraftMask], score: Callable[[Any], SupportsFloat]
) -> DataFrame:
    """Score the graft of each mask, the graft of the whole region, and both models by `score(model)`.

        table = sg.curve(base, tuned, sg.localize(base, tuned, sparsity=[1e-4, 1e-3]), score)

    The table has the columns model (pretrained, finetuned, grafted, whole_region), sparsity, selected and score.  If the graft of the
    whole region scores lower than the fine-tuned model, something outside of the region matters, and a warning says so.  Both models
    are left as they were.  Raises ParamsError for arguments that can't be, ModelError if the masks are of other models.
    """
    pd = optional("pandas")

    require_takes(score, "score", "model")
    if not isinstance(masks, Mapping):
        raise ParamsError(
            f"masks: should be {{sparsity: mask, ...}}, not {a_kind(masks)}; localize with sparsity=[...]"
        )
    for mask in masks.values():
        Pair.for_mask(base, tuned, mask)  # before a score is waited for
    if not masks:
        raise ParamsError("masks: there are none; localize with sparsity=[...] gives several")

    def of(model: nn.Module) -> float:
        return one_number(score(model), "score")

    first = next(iter(masks.values()))
    whole = replace(GraftMask.full(first.region), record=first.record)  # which names its heads
    rows = [(PRETRAINED, 0.0, 0, of(base)), (FINETUNED, None, None, of(tuned))]
    grafts = [(GRAFTED, mask.sparsity, mask) for mask in masks.values()] + [(WHOLE_REGION, 1.0, whole)]
    for name, sparsity, mask in grafts:
        with grafted(base, tuned, mask):
            rows.append((name, sparsity, mask.selected, of(base)))
    _warn_of_outside({row[0]: row[-1] for row in rows}, first.record.get("left_out"))
    table = pd.DataFrame(rows, columns=["model", "sparsity", "selected", "score"])
    return table.astype({"selected": "Int64", "score": float})


def _warn_of_outside(scores: Mapping[str, float], left_out: object) -> None:
    """Say so if the graft of the whole region lacks much of what fine-tuning gained, and what moved there, if the masks say it."""
    lacks, gained = scores[FINETUNED] - scores[WHOLE_REGION], scores[FINETUNED] - scores[PRETRAINED]
    if lacks > MUCH * gained > 0:
        known = isinstance(left_out, dict) and isinstance(left_out.get("share"), float)
        moved = (
            f"{left_out['share']:.0%} of the squared movement is there, most in {printable(str(left_out.get('most')))}; "
            if known
            else ""
        )
        LOGGER.warning(
            "the whole region scores %.4g and the fine-tuned model %.4g, so that something outside of it matters: "
            "%slocalize with parameters='all', or name a head by heads=",
            scores[WHOLE_REGION], scores[FINETUNED], moved,
        )  # fmt: skip


def plot_curve(table: DataFrame, axes: Axes | None = None, label: str = "score") -> Axes:
    """Draw the table of `curve`: scores of grafts by size, and the other models as horizontal lines.

    If the table has a column `se` of standard errors, bars show 95 % confidence intervals (1.96 standard errors).  The title names the
    best graft.  Raises ParamsError for anything but such a table.
    """
    if lacking := [name for name in ("model", "sparsity", "score") if name not in getattr(table, "columns", ())]:
        raise ParamsError(
            f"table: should be what curve(base, tuned, masks, score) gives, not {a_kind(table)} without {lacking[0]}"
        )
    if axes is None:
        figure = optional("matplotlib.figure")

        axes = figure.Figure(figsize=(6, 4), layout="constrained").add_subplot()
    grafts, others = table[table.model == GRAFTED].sort_values("sparsity"), table.set_index("model").score
    bars = 1.96 * grafts.se if "se" in table else None
    axes.errorbar(grafts.sparsity, grafts.score, bars, fmt="o-", capsize=3, label=LABELS[GRAFTED])
    for name, style in ACROSS.items():
        if name in others:
            axes.axhline(others[name], color="grey", linestyle=style, label=LABELS[name])
    axes.set(xscale="log", xlabel="selected / graftable parameters", ylabel=label)
    best = grafts.loc[grafts.score.idxmax()]
    tuned = f", the fine-tuned model {others[FINETUNED]:.4g}" if FINETUNED in others else ""
    axes.set_title(
        f"{small_percent(best.sparsity)} of the parameters: {label} {best.score:.4g}{tuned}", fontsize="small"
    )
    axes.legend()
    return axes


def save_figure(axes: Axes, path: Path, note: str) -> None:
    """Write the figure of these axes as a PNG whose bytes follow from its content, with a note below its title."""
    axes.set_title(f"{axes.get_title()}\n{note}", fontsize="small", parse_math=False)
    with replacing(path) as partial:
        axes.figure.savefig(partial, format="png", metadata={"Software": None})
