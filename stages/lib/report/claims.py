"""The claims of a pipeline (claims.yaml) judged by what it measured; one rule for all of them.

A claim is a row: its `words`, the paper's figure, the `measure` that a pipeline's report offers and what it is taken `of`,
and the `limit` that the value is held against, which stands once, here, or is the name of a setting.  An estimate is judged
by its 95 % interval over tasks, never by its mean; an exact number or answer (the same logits, bytes) by itself.
"""

import operator
import string
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from ..errors import DataError
from ..settings import at
from ..yaml12 import load_yaml
from . import format as written
from .document import Claim, Paper, Verdict
from .stats import CONFIDENCE, Estimate, holm, paired


@checked(frozen=True, config=ConfigDict(extra="forbid"))
class Statement:
    """A row of claims.yaml; `words`, `figure` and `plot` may have {fields} of the finding, {words}, {mean}, {n} and {limit}.

    `given`: measures that have to be above 0 by their own intervals, or the claim is not measurable.  Claims of one
    `family` (a row that makes several is one) are corrected together for how many there are.
    """

    words: str
    measure: str
    of: list[Any] = field(default_factory=list)
    rule: Literal["above", "below"] = "above"
    limit: float | str = 0.0
    figure: str = "{difference}"
    given: list[str] = field(default_factory=list)
    family: str = ""
    paper: Paper | None = None
    plot: str = ""


@dataclass(frozen=True)
class Finding:
    """The value that one claim is judged by, what its words need, and what does not follow it (by the limit where that decides).

    `size` is the graft's, where there is one.  `void` says why the value tells nothing; then the claim is not measurable.
    As a control (`given`), `lacks` says what is missing where it is not above 0.
    """

    value: Estimate | float | bool | None
    fields: Mapping[str, Any] = field(default_factory=dict)
    exceptions: list[str] | Callable[[float], list[str]] = field(default_factory=list)
    void: str = ""
    size: str = ""
    lacks: str = ""


Measure = Callable[..., Finding | Estimate | Iterable[Finding]]


@dataclass(frozen=True)
class _Candidate:
    statement: Statement
    finding: Finding
    limit: float
    family: str

    @property
    def p_value(self) -> float | None:
        value = self.finding.value
        return value.p_value(self.limit) if isinstance(value, Estimate) and not self.finding.void else None


def read_statements(path: Path) -> list[Statement]:
    """The rows of a claims.yaml; raises DataError for one that is none."""
    try:
        return TypeAdapter(list[Statement]).validate_python(load_yaml(path, DataError))
    except ValidationError as problem:
        [first, *_] = problem.errors()
        raise DataError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def judge(
    statements: Iterable[Statement],
    measures: Mapping[str, Measure],
    data: object,
    here: str = "",
    settings: object = None,
) -> list[Claim]:
    """The claims in the order of the rows; a measure takes the data and what it is `of`, and gives a finding, several or none.

    `here` says what all were measured with (model, mode, shots); names of settings as limits are looked up in `settings`.
    """
    statements = [*statements]
    controls = {name: _findings(measures[name](data)) for name in {name for row in statements for name in row.given}}
    candidates = [
        _Candidate(row, _controlled(finding, row, controls), _limit(row.limit, settings), row.family or str(place))
        for place, row in enumerate(statements)
        for finding in _findings(measures[row.measure](data, *row.of))
    ]
    corrected = {}
    for name in {candidate.family for candidate in candidates}:
        family = [each for each in candidates if each.family == name and each.p_value is not None]
        for candidate, p_value in zip(family, holm([each.p_value for each in family]), strict=True):
            corrected[id(candidate)] = p_value, len(family)
    return [_claim(candidate, *corrected.get(id(candidate), (None, 0)), here) for candidate in candidates]


def _controlled(finding: Finding, row: Statement, controls: Mapping[str, list[Finding]]) -> Finding:
    """The finding, void where one of the row's controls is not shown to be above 0."""
    for control in (control for name in row.given for control in controls[name]):
        p_value = control.value.p_value() if isinstance(control.value, Estimate) else None
        if p_value is None or p_value >= 1 - CONFIDENCE or control.value.mean < 0:
            return replace(finding, void=f"; {control.lacks}: {control.value.words()}")
    return finding


def above_baselines(trained: pd.Series, pretrained: pd.Series, constant: pd.Series | None, name: str) -> Finding:
    """The control of whatever is kept or compared: by how much a trained model is above the better baseline of each cell.

    Baselines are the pretrained model with the same head, and always the same label (`constant`, not recorded in old runs).
    """
    best = pretrained if constant is None else np.fmax(pretrained, constant.reindex(pretrained.index))
    lacks = f"not measurable where {name} has not been shown to gain over the pretrained model and over always the same label"
    return Finding(paired(trained, best.astype(float)), lacks=lacks)


def short_of(values: pd.Series, write: Callable = written.percent, unit: str = " %") -> Callable[[float], list[str]]:
    """As `exceptions`: the tasks (level `task` of the values' index) whose mean is not above the limit, with that mean."""
    means = values.groupby(level="task", sort=False).mean().dropna()
    return lambda limit: [f"{task} {write(value)}{unit}" for task, value in means.items() if not value > limit]


def verdict_of(value: Estimate | float | bool | None, rule: str, limit: float, p_value: float | None = None) -> Verdict:
    """The four words; an estimate's by its p-value (corrected for its family), an exact number's by itself."""
    if isinstance(value, Estimate):
        if p_value is None:
            return Verdict.OPEN
        if p_value >= 1 - CONFIDENCE:
            return Verdict.UNCLEAR
        value = value.mean
    if value is None or isinstance(value, bool):
        return Verdict.of(value)
    return Verdict.of((operator.gt if rule == "above" else operator.lt)(value, limit))


def _claim(candidate: _Candidate, p_value: float | None, family: int, here: str) -> Claim:
    row, finding, limit = candidate.statement, candidate.finding, candidate.limit
    value, exceptions, fields = finding.value, finding.exceptions, {"limit": limit, "size": finding.size}
    setting = [finding.size, here]
    if isinstance(value, Estimate):
        # how many are above 0 says nothing of another limit
        told = replace(value, positive=None) if limit else value
        fields |= {"mean": value.mean, "n": value.n, "difference": told.words(), "percent": value.words("%")}
        setting.append(value.sample() if value.units else "")
    elif value is not None:
        fields["value"] = value
    fields |= finding.fields
    verdict = Verdict.OPEN if finding.void else verdict_of(value, row.rule, limit, p_value)
    if isinstance(value, Estimate) and not value.units:
        figure = finding.void.removeprefix("; ") or value.words()
    else:
        figure = _Words().format(row.figure, **fields) + finding.void
    alone = candidate.p_value
    if verdict is Verdict.UNCLEAR and alone is not None and alone < 1 - CONFIDENCE:
        figure += f"; its own interval excludes the limit, but not after Holm's correction for {family} claims"
    return Claim(
        _Words().format(row.words, **fields), verdict, figure, exceptions(limit) if callable(exceptions) else exceptions,
        "; ".join(filter(None, setting)), row.paper, _Words().format(row.plot, **fields),
    )  # fmt: skip


def _findings(given: Finding | Estimate | Iterable[Finding]) -> list[Finding]:
    if isinstance(given, Estimate):
        return [Finding(given)]
    return [given] if isinstance(given, Finding) else [*given]


def _limit(limit: float | str, settings: object) -> float:
    return at(settings, limit) if isinstance(limit, str) else limit


class _Words(string.Formatter):
    """{share:percent}, {share:percent0}, {limit:share}, {difference:points}, {sparsity:size}, and all that f-strings know."""

    def format_field(self, value: object, form: str) -> str:
        kind, decimals = form.rstrip("0123456789"), form[len(form.rstrip("0123456789")) :]
        if kind == "size":
            return written.small_percent(value)
        if kind == "share":
            return f"{100 * value:g}"
        if kind in ("percent", "points"):
            return getattr(written, kind)(value, *([int(decimals)] if decimals else []))
        return super().format_field(value, form)
