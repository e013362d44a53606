"""Claims: estimates over tasks judged by their 95 % intervals, corrected by Holm within a family, never by a mean alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd

from stages.lib.errors import did_you_mean
from stages.lib.words import points

from .spec import Claim, Frames, Paper, Spec, SpecError, fill, groups_of, named, rows_of
from .stats import CONFIDENCE, Estimate, estimate, holm
from .tables import facts_of, show

# of each scale but percent: what a value is of, how numbers of it are written, and a mark before those of tasks
SCALES: dict[str, tuple[Callable[[float], float], str, str]] = {
    "number": (float, "{:.2f}", ""),
    "power": (lambda value: float(10**value), "{:.2f}", "x "),
    "fisher": (lambda value: float(np.tanh(value)), "{:+.2f}", ""),
}
FEWEST_RANKS, LARGEST_RHO = 3, 0.999  # fewer pairs say nothing about ranks; Fisher's z of 1 would be infinite
HOW_JUDGED = (
    "Tasks are the sample: seeds of a task are averaged first. A claim holds where the 95 % interval over tasks (jackknife) lies "
    "on its side of the limit, does not hold where it lies on the other side, and is not shown where it spans the limit; claims of "
    "one family are corrected together (Holm). It is not measurable without an interval, or where a control says that there "
    "is nothing to measure: for most, training has to be shown to gain over the pretrained model with the same head and over always "
    "the same label. Properties hold by construction and are not counted."
)


class Verdict(StrEnum):
    """What is said of a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNCLEAR = "not shown"
    OPEN = "not measurable"


@dataclass(frozen=True)
class Judged:
    """A claim as it is told: its words, the verdict, the figure, with what it was measured and what does not follow it."""

    words: str
    verdict: Verdict
    figure: str
    value: Estimate | None
    size: str
    exceptions: list[str]
    paper: Paper | None
    plot: str
    property: bool
    short: str


@dataclass(frozen=True)
class _Candidate:
    claim: Claim
    family: str
    value: Estimate
    fields: Mapping[str, Any]
    void: str
    units: pd.Series

    @property
    def p_value(self) -> float | None:
        return None if self.void else self.value.p_value(self.claim.limit)


def judge(spec: Spec, frames: Frames) -> list[Judged]:
    """Every claim that the frames have groups for, in the order of the spec."""
    facts, controls = facts_of(spec, frames), {}
    for name, control in spec.controls.items():
        with named(spec, f"controls.{name}", frames):
            rows = rows_of(frames, control)
            index = [*control.units, "seed"]
            values = rows.groupby(index)[control.value].mean() if len(rows) else _empty(index)
            controls[name] = _failed(estimate(values, control.units), control.lacks)
    candidates = []
    for place, claim in enumerate(spec.claims):
        with named(spec, f"claims.{place}", frames):
            candidates += _candidates(spec, frames, claim, place, controls, facts)
    corrected: dict[int, tuple[float, int]] = {}
    for name in {candidate.family for candidate in candidates}:
        family = [candidate for candidate in candidates if candidate.family == name and candidate.p_value is not None]
        p_values = holm([candidate.p_value for candidate in family])
        corrected |= {id(candidate): (p, len(family)) for candidate, p in zip(family, p_values, strict=True)}
    return [_judged(spec, candidate, *corrected.get(id(candidate), (None, 0))) for candidate in candidates]


def _empty(index: Sequence[str]) -> pd.Series:
    return pd.Series(dtype=float, index=pd.MultiIndex.from_arrays([[]] * len(index), names=index))


def _failed(value: Estimate, lacks: str) -> str:
    """Why nothing can be measured under a control; empty where it is shown to be above 0."""
    p_value = value.p_value()
    passed = p_value is not None and p_value < 1 - CONFIDENCE and value.mean > 0
    return "" if passed else f"; {lacks}: {value.words()}"


def _candidates(
    spec: Spec, frames: Frames, claim: Claim, place: int, controls: Mapping[str, str], facts: Mapping[str, str]
) -> Iterator[_Candidate]:
    """The claim, or one for each value of `each`, where there are rows of all its groups."""
    rows = rows_of(frames, claim)
    for name in (claim.a, claim.b):
        if name and name not in {*rows[claim.by]} and name not in spec.names and name not in {*frames[claim.data][claim.by]}:
            known = [*spec.names, *frames[claim.data][claim.by].unique()]
            raise SpecError(f"{spec.path}: claims.{place}: no group {name!r} in {claim.by}{did_you_mean(name, known)}")
    for control in claim.given:
        if control not in controls:
            raise SpecError(f"{spec.path}: claims.{place}: no control {control!r}{did_you_mean(control, controls)}")
    if isinstance(claim.limit, str):
        claim = claim.model_copy(update={"limit": float(facts[claim.limit])})
    for values, part in groups_of(spec, rows, claim.each):
        sides = _sides(claim, part)
        if all(len(side) for side in sides):
            value, units = _estimate(claim, sides)
            if not value.units and claim.each:
                continue
            names = {name: spec.label(group) if isinstance(group, str) else group for name, group in values.items()}
            cells = {name: show(spec, frames, cell, values) for name, cell in claim.fields.items()}
            fields = {**facts, **names, **_means(claim, sides), **cells, **_scaled(claim, value), "limit": claim.limit, "n": value.n}
            void = _void(spec, claim, value, controls, fields)
            yield _Candidate(claim, claim.family or str(place), value, fields, void, _as_they_come(units, part))


def _void(spec: Spec, claim: Claim, value: Estimate, controls: Mapping[str, str], fields: Mapping[str, Any]) -> str:
    """Why the value tells nothing; empty where it does."""
    own = fill(spec, claim.void, "claims.void", **fields)
    alone = claim.statistic == "contrast" and value.error is None and min(value.tasks, value.seeds) > 1
    reasons = [*(controls[name] for name in claim.given), f"; {own}" if own else ""]
    return next(filter(None, reasons), "; one side rests on a single task, so it says nothing about others" * alone)


def _scaled(claim: Claim, value: Estimate) -> dict[str, Any]:
    """Fields `mean` and `interval`, the latter with its sample, of what the values are on another scale of."""
    if claim.scale == "percent" or not value.units:
        return {"mean": value.mean}
    back, form, _ = SCALES[claim.scale]
    ends = "" if value.error is None else " to ".join(form.format(back(end)) for end in (value.low, value.high))
    return {"mean": back(value.mean), "interval": f"{f'95 % interval {ends}' if ends else 'no interval'}; {value.sample()}"}


def _as_they_come(units: pd.Series, rows: pd.DataFrame) -> pd.Series:
    """Tasks in the order of the rows."""
    if units.index.nlevels > 1 or not len(units):
        return units
    return units.reindex([name for name in rows[units.index.name].unique() if name in units.index])


def _sides(claim: Claim, rows: pd.DataFrame) -> list[pd.Series]:
    """One value for each cell of each side: two columns, two groups, or all rows."""
    index = [*claim.units, "seed"]
    if isinstance(claim.value, list):
        return [rows.groupby(index)[name].mean().astype(float) for name in claim.value]
    groups = [rows[rows[claim.by] == name] for name in (claim.a, claim.b) if name] or [rows]
    if claim.statistic == "contrast":
        return [group.set_index(index)[claim.value].dropna().astype(float) for group in groups]
    return [group.groupby(index)[claim.value].mean().astype(float) for group in groups]


def _means(claim: Claim, sides: Sequence[pd.Series]) -> dict[str, float]:
    """Mean over units of each side, over the cells that both have."""
    if len(sides) == 1:
        return {"a": sides[0].groupby(level=claim.units).mean().mean()}
    if claim.statistic == "contrast":
        units = _shares(sides).groupby(level=claim.units).mean()
        return {side: _mean_of_side(units, side) for side in "ab"}
    both = pd.concat(sides, axis=1, keys=["a", "b"], join="inner").dropna().groupby(level=claim.units).mean()
    return both.mean().to_dict()


def _estimate(claim: Claim, sides: Sequence[pd.Series]) -> tuple[Estimate, pd.Series]:
    """The statistic over units, and the value of each unit (none where the statistic has none)."""
    if len(sides) == 1:
        values = sides[0] if claim.better == "higher" else -sides[0]
        return estimate(values, claim.units), values.groupby(level=claim.units).mean()
    sign = 1 if claim.better == "higher" else -1
    if claim.statistic == "difference":
        values = sign * (sides[0] - sides[1])
        return estimate(values, claim.units), values.groupby(level=claim.units).mean()
    if claim.statistic == "contrast":
        return estimate(_shares(sides), claim.units, lambda units: sign * _contrast(units)), pd.Series(dtype=float)
    frame = pd.concat(sides, axis=1, keys=["a", "b"], join="inner").dropna()
    if claim.statistic == "correlation":
        return estimate(frame, claim.units, _correlation), pd.Series(dtype=float)
    means = frame.groupby(level=claim.units).mean()
    return estimate(frame, claim.units, lambda units: 1 - units.a.mean() / units.b.mean()), 1 - means.a / means.b


def _shares(sides: Sequence[pd.Series]) -> pd.DataFrame:
    """Columns a and b: a row's value in that of its side; in_a and in_b: 1 in that of its side.  Else 0: a unit may be on both."""
    parts = [pd.DataFrame({name: side, f"in_{name}": 1.0}) for name, side in zip("ab", sides, strict=True)]
    return pd.concat(parts).fillna(0.0)


def _mean_of_side(units: pd.DataFrame, side: str) -> float:
    count = units[f"in_{side}"].sum()
    return float(units[side].sum() / count) if count else np.nan


def _contrast(units: pd.DataFrame) -> float:
    return _mean_of_side(units, "a") - _mean_of_side(units, "b")


def _correlation(units: pd.DataFrame) -> float:
    """Fisher's z of the rank correlation, whose interval is closer to a normal one's."""
    rho = units.a.rank().corr(units.b.rank()) if len(units) >= FEWEST_RANKS else np.nan
    return float(np.arctanh(np.clip(rho, -LARGEST_RHO, LARGEST_RHO)))


def _judged(spec: Spec, candidate: _Candidate, p_value: float | None, family: int) -> Judged:
    claim, value, key = candidate.claim, candidate.value, "claims"
    beyond = np.less if claim.rule == "below" else np.greater
    # how many are above 0 says nothing of another limit
    told = replace(value, positive=None) if claim.limit else value
    fields = {**candidate.fields, "difference": told.words(), "percent": value.words("%")}
    if claim.property:
        fulfilled = bool(beyond(candidate.units, claim.limit).all()) if len(candidate.units) else False
        verdict = Verdict.HOLDS if fulfilled else Verdict.FAILS
    elif p_value is None:
        verdict = Verdict.OPEN
    elif p_value >= 1 - CONFIDENCE:
        verdict = Verdict.UNCLEAR
    else:
        verdict = Verdict.HOLDS if beyond(value.mean, claim.limit) else Verdict.FAILS
    usual = "{percent}" if claim.limit else "{a:percent} against {b:percent} %, {difference}" if "b" in fields else "{difference}"
    figure = fill(spec, claim.figure or usual, key, **fields) if value.units else value.words()
    alone = candidate.p_value
    if verdict is Verdict.UNCLEAR and alone is not None and alone < 1 - CONFIDENCE:
        figure += f"; its own interval excludes the limit, but not after Holm's correction for {family} claims"
    exceptions = [f"{spec.label(task)} {amount}" for task, amount in _exceptions(claim, candidate.units, beyond).items()]
    exceptions += filter(None, [fill(spec, claim.exceptions, key, **fields)])
    size = "; ".join(filter(None, (fill(spec, claim.size, key, **fields), value.sample() if value.units else "")))
    return Judged(
        fill(spec, claim.words, key, **fields), verdict, figure + candidate.void, value, size, exceptions, claim.paper,
        fill(spec, claim.plot, key, **fields), claim.property, figure if claim.property else _short(claim, value),
    )  # fmt: skip


def _exceptions(claim: Claim, units: pd.Series, beyond: Callable[[pd.Series, float], pd.Series]) -> dict[str, str]:
    """Tasks on the wrong side of the limit with their values; how many are above 0 is told already."""
    if claim.property or claim.units != ["task"] or not (claim.limit or claim.scale != "percent"):
        return {}
    known = units.dropna()
    wrong = known[~beyond(known, claim.limit)]
    if claim.scale != "percent":
        back, form, mark = SCALES[claim.scale]
        return {task: mark + form.format(back(amount)) for task, amount in wrong.items()}
    return {task: f"{points(amount)} points" if _apart(claim) else f"{100 * amount:.1f} %" for task, amount in wrong.items()}


def _apart(claim: Claim) -> bool:
    """True if the value is a difference of two sides, which is told in points."""
    return claim.statistic in ("difference", "contrast") and bool(claim.b or isinstance(claim.value, list))


def _short(claim: Claim, value: Estimate) -> str:
    """The value with its interval alone: "94.6 % (88.1 to 101.1)"; empty without cells."""
    if not value.units:
        return ""
    in_points = _apart(claim) or not claim.limit
    back, form, _ = SCALES.get(claim.scale, (lambda share: 100 * share, "{:+.1f}" if in_points else "{:.1f}", ""))
    unit = "" if claim.scale != "percent" else " points" if in_points else " %"
    ends = "" if value.error is None else f" ({form.format(back(value.low))} to {form.format(back(value.high))})"
    return form.format(back(value.mean)) + unit + ends
