"""Claims: estimates over tasks judged by their 95 % intervals, corrected by Holm within a family, never by a mean alone."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd

from skill_grafting.support.errors import did_you_mean
from skill_grafting.support.formatting import percent
from stages.workflow.report.formats import fall
from stages.workflow.report.spec import (
    Claim,
    Control,
    Frames,
    Paper,
    Spec,
    SpecError,
    chosen,
    fill,
    groups_of,
    named,
    rows_of,
    texts_of,
)
from stages.workflow.report.stats import CONFIDENCE, FEWEST, Estimate, estimate, holm
from stages.workflow.report.tables import facts_of, value_of

FEWEST_RANKS, LARGEST_RHO = 3, 0.999  # fewer pairs say nothing about ranks; Fisher's z of 1 would be infinite
FEWEST_ROWS = 1000  # of a test set: of fewer a share of the calibration error is mostly one of its floor
HOW_JUDGED = (
    "Tasks are the sample; the seeds of a task are averaged first. Tasks whose texts are from one data set are one source, and may err together. "
    "A claim holds if both 95 % confidence intervals, over tasks (jackknife) and by source, lie on its side of the limit, and does not hold if both "
    "lie on the other side. It is not shown, that is, not statistically significant, if one of them contains the limit; (Holm) marks claims whose "
    "own intervals exclude the limit, but not after correction for all claims of the family. A claim is not measurable with fewer than four tasks "
    "(or pairs of tasks that share none) or four sources, or if its control fails. For most claims the control is that training gains significantly "
    "over the pretrained model (under the trained head, where there is one; in the main pipeline with its label words calibrated, too) and over "
    "predicting one label for all rows. With one seed the intervals include the noise between seeds."
)
HOW_FAMILIES = (
    "The claims of a family are corrected together, for how many of them can be judged. The smallest difference is the distance from the limit that "
    "would be shown four times in five, with the spread of this run and at the strictest level of the correction (5 % / number of claims)."
)
FEW_TASKS = (
    f"With fewer than {FEWEST} tasks there is no interval over tasks, so no claim is judged. Bootstrap intervals are over the test rows of a "
    "single task and tell nothing about other tasks."
)


@dataclass(frozen=True)
class Scale:
    """How values are told: `back` makes of one what it is of, written by `form` in a `unit`."""

    back: Callable[[float], float]
    form: str
    unit: str = ""

    def write(self, value: float) -> str:
        """The number alone."""
        return format(self.back(value), self.form)


POINTS = Scale(lambda value: 100 * round(value, 12) + 0.0, "+.1f", " points")
SCALES = {
    "percent": Scale(lambda value: 100 * value, ".1f", " %"),
    "number": Scale(float, ".2f"),
    "fisher": Scale(lambda value: float(np.tanh(value)), "+.2f"),
}
# of how far a value lies from its limit
APART = {
    "percent": replace(POINTS, form=".1f"),
    "number": SCALES["number"],
    "fisher": replace(SCALES["fisher"], form=".2f"),
}


class Verdict(StrEnum):
    """What is said of a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNCLEAR = "not shown"
    OPEN = "not measurable"


@dataclass(frozen=True)
class Judged:
    """A claim as it is told: its words, the verdict, the figure, with what it was measured and what does not follow it.

    `corrected`: its own intervals exclude the limit, and it is not shown for how many claims there are.  `family` and its size:
    those that are corrected together; `smallest` is the difference from `limit` that would be shown four times in five, told on the
    scale `apart`.  `question` is the same for claims of other reports that ask the same, `elsewhere` says which report that is.
    """

    words: str
    verdict: Verdict
    figure: str
    value: Estimate | None
    size: str
    exceptions: list[str]
    paper: Paper | None
    short: str
    n: str
    corrected: bool
    limit: float
    family: str
    family_size: int
    smallest: float | None
    apart: Scale
    question: str
    elsewhere: str


@dataclass(frozen=True)
class _Asked:
    """A claim with what was measured: the estimate and its values by unit, and why they tell nothing, if that is so."""

    claim: Claim
    value: Estimate
    units: pd.Series
    fields: Mapping[str, Any]
    void: str
    words: str
    reduced: str = ""
    family: tuple[str | int, str] = ("", "")

    @property
    def p_value(self) -> float | None:
        return None if self.void else self.value.p_value(self.claim.limit)


def judge(spec: Spec, frames: Frames) -> list[Judged]:
    """Every claim that the frames have groups for, in the order of the spec."""
    facts, controls, asked = facts_of(spec, frames), {}, []
    for name, control in spec.controls.items():
        with named(spec, f"controls.{name}", frames):
            controls[name] = _failed(frames, control)
    for place, claim in enumerate(spec.claims):
        with named(spec, f"claims.{place}", frames):
            made = [*_asked(spec, frames, claim, controls, facts)]
            # the claims that one entry makes are a family, too, which goes by the words of the first that is judged
            words = next((one.words for one in made if one.p_value is not None), "")
            asked += [replace(one, family=(claim.family or place, claim.family or words)) for one in made]
    if _are_few(one.value for one in asked):  # which is said once
        asked = [replace(one, void="") for one in asked]
    corrected: dict[int, tuple[float, int]] = {}
    for name in {one.family for one in asked}:
        family = [one for one in asked if one.family == name and one.p_value is not None]
        p_values = holm([one.p_value for one in family])
        corrected |= {id(one): (p, len(family)) for one, p in zip(family, p_values, strict=True)}
    return [_judged(spec, one, *corrected.get(id(one), (None, 0))) for one in asked]


def families(claims: Iterable[Judged]) -> dict[str, tuple[int, str]]:
    """Of each family with a claim that can be judged: the number of these, and the smallest difference that each would show four times in five."""
    found: dict[str, list[Judged]] = {}
    for claim in claims:
        if claim.smallest is not None:
            found.setdefault(claim.family, []).append(claim)
    sizes = {name: family[0].family_size for name, family in found.items()}
    alike = {
        name: f" (and {sizes[name] - 1} like it)" * (sizes[name] > 1 and name == found[name][0].words) for name in found
    }
    return {f"{name}{alike[name]}": (sizes[name], _range(family)) for name, family in found.items()}


def _range(family: Sequence[Judged]) -> str:
    """The smallest differences of a family from the least to the most: "2.0 to 3.5 points"."""
    scale, sizes = family[0].apart, [claim.smallest for claim in family]
    ends = dict.fromkeys(scale.write(end) for end in (min(sizes), max(sizes)))
    return f"{' to '.join(ends)}{scale.unit}"


def most_tasks(claims: Iterable[Judged]) -> int:
    """The number of tasks that claims rest on, the largest of any; 0 where nothing was measured."""
    return max((claim.value.tasks for claim in claims if claim.value.units), default=0)


def of_few_tasks(claims: Iterable[Judged]) -> bool:
    """True if claims rest on so few tasks that none can be judged."""
    return _are_few(claim.value for claim in claims)


def _are_few(values: Iterable[Estimate]) -> bool:
    return 0 < max((value.tasks for value in values if value.units), default=0) < FEWEST


def _failed(frames: Frames, control: Control) -> str:
    """Why nothing can be measured under a control; empty where it is shown to be above 0."""
    rows = rows_of(frames, control)
    value = estimate(rows.groupby([*control.units, "seed"])[control.value].mean(), control.units)
    p_value = value.p_value()
    passed = p_value is not None and p_value < 1 - CONFIDENCE and value.mean > 0 and value.fewest >= FEWEST
    return "" if passed else f"; {control.lacks}: {value.words()}"


def _require(name: str, known: Iterable[str], what: str) -> None:
    if name and name not in {*known}:
        raise SpecError(f"no {what.format(name)}{did_you_mean(name, known)}")


def _asked(
    spec: Spec, frames: Frames, claim: Claim, controls: Mapping[str, str], facts: Mapping[str, Any]
) -> Iterator[_Asked]:
    """The claim, or one for each value of `each`, where there are rows of all its groups."""
    for name in (claim.a, claim.b):
        if name:
            _require(name, [*spec.names, *frames[claim.data][claim.by].unique()], f"group {{!r}} in {claim.by}")
    for name in claim.given:
        _require(name, controls, "control {!r}")
    for values, part in groups_of(spec, rows_of(frames, claim), claim.each):
        sides = _sides(claim, part)
        cells = _common(claim, sides)
        value, units = _estimate(claim, cells)
        if value.tasks == 1:
            value = replace(value, bootstrap=_bootstrap(claim, frames))
        if not all(map(len, sides)) or (claim.each and not value.units):
            continue
        names = {name: spec.label(group) if isinstance(group, str) else group for name, group in values.items()}
        shown = {name: value_of(frames, cell, values) for name, cell in claim.fields.items()}
        means = cells.groupby(level=claim.units).mean().mean()
        own = {**means, **_scaled(claim, value), "limit": claim.limit}
        fields = {**facts, **texts_of(part), **names, **shown, **own}
        judged = claim.model_copy(update={"paper": _published(spec, claim, frames, fields)})
        void, words = _void(spec, claim, value, controls, fields), fill(spec, claim.words, "claims", **fields)
        yield _Asked(judged, value, units, fields, void, words, _reduced(claim, cells, part))


def _bootstrap(claim: Claim, frames: Frames) -> tuple[float, float] | None:
    """Both ends of the 95 % interval over samples of the only task's test rows; None where none were drawn."""
    drawn = frames.get(f"{claim.data}_drawn")
    if drawn is None or drawn.empty:
        return None
    each = claim.model_copy(update={"units": ["draw"]})
    values = _estimate(each, _common(each, _sides(each, chosen(drawn, claim.where))))[1]
    return tuple(values.quantile([(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]))


def _published(spec: Spec, claim: Claim, frames: Frames, fields: Mapping[str, Any]) -> Paper | None:
    """What the publication says, which may name fields, and what its own values come to by the same rule where they are known."""
    if claim.paper is None:
        return None
    told = {name: fill(spec, text, "claims.paper", **fields) for name, text in claim.paper}
    rows = frames.get(f"{claim.data}_published")
    if rows is not None and len(rows):
        cells = _common(claim, _sides(claim, chosen(rows, claim.where)))
        value, _ = _estimate(claim, cells)
        if value.units:
            told["alike"] = f"{rows.source.iloc[0]}, by this rule: {_short(claim, value, _reduced(claim, cells, rows))}"
    return Paper(**told)


def _void(spec: Spec, claim: Claim, value: Estimate, controls: Mapping[str, str], fields: Mapping[str, Any]) -> str:
    """Why the value tells nothing; empty where it does, and of one task, of which that is said once."""
    if value.tasks == 1:
        return ""
    own = fill(spec, claim.void, "claims.void", **fields)
    alone = claim.statistic == "contrast" and value.error is None and value.tasks > 1
    few = f"; no verdict on {value.number()}, fewer than {FEWEST}"
    # what is true of so few sources may be true of no other, whatever the control says
    reasons = [f"; {own}" if own else "", few * (0 < value.sources < FEWEST <= value.drawn)]
    reasons += [controls[name] for name in claim.given]
    reasons.append("; one side rests on a single task, so it says nothing about others" * alone)
    reasons.append(few * (0 < value.drawn < FEWEST))
    return next(filter(None, reasons), "")


def _scaled(claim: Claim, value: Estimate) -> dict[str, Any]:
    """Fields `mean`, and `interval` with its sample, on the claim's scale."""
    if not value.units:
        return {}
    scale = _scale(claim)
    return {"mean": scale.back(value.mean), "interval": f"{value.interval(scale.write)}; {value.sample()}"}


def _scale(claim: Claim) -> Scale:
    """A difference of two sides, and what is held against 0, is told in points."""
    apart = claim.statistic in ("difference", "contrast") and bool(claim.b or isinstance(claim.value, list))
    return POINTS if claim.scale == "percent" and (apart or not claim.limit) else SCALES[claim.scale]


def _sides(claim: Claim, rows: pd.DataFrame) -> list[pd.Series]:
    """One value for each cell of each side: two columns, two groups, or all rows."""
    index = [*claim.units, "seed"]
    if isinstance(claim.value, list):
        return [rows.groupby(index, sort=False)[name].mean() for name in claim.value]
    groups = [rows[rows[claim.by] == name] for name in (claim.a, claim.b) if name] or [rows]
    return [group.groupby(index, sort=False)[claim.value].mean() for group in groups]


def _common(claim: Claim, sides: list[pd.Series]) -> pd.DataFrame:
    """Columns a and b, or a alone, over the cells that both have; of a contrast over all, of which each may have its own."""
    join, kept = ("outer", "all") if claim.statistic == "contrast" else ("inner", "any")
    return pd.concat(sides, axis=1, keys=["a", "b"][: len(sides)], join=join).astype(float).dropna(how=kept)


def _estimate(claim: Claim, cells: pd.DataFrame) -> tuple[Estimate, pd.Series]:
    """The statistic over units, and the value of each unit (none where the statistic has none)."""
    if "b" not in cells or claim.statistic == "difference":
        values = cells.a - cells.b if "b" in cells else cells.a
        return estimate(values, claim.units), values.groupby(level=claim.units, sort=False).mean()
    return estimate(cells, claim.units, STATISTICS[claim.statistic]), pd.Series(dtype=float)


def _reduced(claim: Claim, cells: pd.DataFrame, rows: pd.DataFrame) -> str:
    """How much lower side b is than side a in proportion, by both ways to take a mean, and whether both are as published.

    Empty unless side a is clearly above 0: of what may as well be nothing there is no share.
    """
    if claim.reduction is None or "b" not in cells or cells.empty:
        return ""
    whole = estimate(cells.a, claim.units)
    if whole.low is None or whole.low <= 0:
        return ""
    found = {words: estimate(cells, claim.units, way) for words, way in REDUCTIONS.items()}
    told = " and ".join(
        f"{fall(value.mean)}{_ends(value, SCALES['percent'])} {words}" for words, value in found.items()
    )
    verdict = f" by both: {_by_both([*found.values()], claim.reduction.least)}"
    if not ("n" in rows and rows.n.min() >= FEWEST_ROWS):
        verdict = f": no verdict, which would take {FEWEST_ROWS:,} test rows a task"
    return f"{told.format(claim.reduction.of)} (at least {percent(claim.reduction.least, 0)} %{verdict})"


def _by_both(values: Sequence[Estimate], least: float) -> Verdict:
    """Whether all of the values are at least so large, or one of them isn't."""
    p_values = [value.p_value(least) for value in values]
    if None in p_values or min(value.fewest for value in values) < FEWEST:
        return Verdict.OPEN
    sure = [p_value < 1 - CONFIDENCE for p_value in p_values]
    if any(known and value.mean <= least for known, value in zip(sure, values, strict=True)):
        return Verdict.FAILS
    return Verdict.HOLDS if all(sure) else Verdict.UNCLEAR


def _correlation(units: pd.DataFrame) -> float:
    """Fisher's z of the rank correlation, whose interval is closer to a normal one's."""
    rho = units.a.rank().corr(units.b.rank()) if len(units) >= FEWEST_RANKS else np.nan
    return float(np.arctanh(np.clip(rho, -LARGEST_RHO, LARGEST_RHO)))


# a task that is calibrated already weighs little in the first, and as much as any in the second
REDUCTIONS: dict[str, Callable[[pd.DataFrame], float]] = {
    "of the mean {}": lambda units: 1 - units.b.mean() / units.a.mean(),
    "on average over tasks": lambda units: (1 - units.b / units.a.where(units.a > 0)).mean(),
}
STATISTICS: dict[str, Callable[[pd.DataFrame], float]] = {
    "contrast": lambda units: units.a.mean() - units.b.mean(),
    "correlation": _correlation,
}


def _judged(spec: Spec, asked: _Asked, p_value: float | None, family: int) -> Judged:
    claim, value, key = asked.claim, asked.value, "claims"
    verdict, smallest = _verdict(asked, p_value), value.smallest((1 - CONFIDENCE) / family) if family else None
    # how many are above 0 says nothing of another limit
    told = replace(value, positive=None) if claim.limit else value
    fields = {**asked.fields, "difference": told.words(), "percent": value.words("%")}
    usual = "{a:percent} against {b:percent} %, {difference}" if "b" in fields else "{difference}"
    usual = claim.figure or ("{percent}" if claim.limit else usual)
    figure = fill(spec, usual, key, **fields) if value.units else value.words()
    figure += f"; {asked.reduced}" if asked.reduced else ""
    corrected = verdict is Verdict.UNCLEAR and asked.p_value < 1 - CONFIDENCE
    if corrected:
        figure += f"; its own intervals exclude the limit, but not after Holm's correction for {family} claims"
    size = "; ".join(filter(None, (fill(spec, claim.size, key, **fields), value.sample() if value.units else "")))
    return Judged(
        asked.words, verdict, figure + asked.void, value, size, _exceptions(spec, asked), claim.paper,
        _short(claim, value, asked.reduced), value.number() if value.units else "", corrected,
        claim.limit, asked.family[1], family, smallest, APART[claim.scale],
        fill(spec, claim.question, key, **fields), fill(spec, claim.elsewhere, key, **fields),
    )  # fmt: skip


def _verdict(asked: _Asked, p_value: float | None) -> Verdict:
    """By the corrected p-value."""
    if p_value is None:
        return Verdict.OPEN
    if p_value >= 1 - CONFIDENCE:
        return Verdict.UNCLEAR
    return Verdict.HOLDS if _follows(asked.claim, asked.value.mean) else Verdict.FAILS


def _follows(claim: Claim, values: Any) -> Any:
    """Whether values lie on the claim's side of the limit."""
    return np.less(values, claim.limit) if claim.rule == "below" else np.greater(values, claim.limit)


def _exceptions(spec: Spec, asked: _Asked) -> list[str]:
    """Tasks on the wrong side of the limit with their values; how many are above 0 is told already."""
    claim, scale, known = asked.claim, _scale(asked.claim), asked.units.dropna()
    if claim.units != ["task"] or not (claim.limit or claim.scale != "percent"):
        return []
    wrong = known[~_follows(claim, known).astype(bool)]
    return [f"{spec.label(task)} {scale.write(amount)}{scale.unit}" for task, amount in wrong.items()]


def _short(claim: Claim, value: Estimate, reduced: str) -> str:
    """The value with its interval, and the reductions, alone; empty without cells."""
    if not value.units:
        return ""
    scale = _scale(claim)
    return "; ".join(filter(None, [f"{scale.write(value.mean)}{scale.unit}{_ends(value, scale)}", reduced]))


def _ends(value: Estimate, scale: Scale) -> str:
    """Its interval in brackets, if it has one: " (88.1 to 101.1)"."""
    return f" ({value.ends(scale.write)})" if value.error is not None else ""
