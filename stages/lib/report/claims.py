"""The claims of a pipeline (claims.yaml) judged by what it measured; the rules are the same for all of them.

A claim is a row: its `words`, the `paper`'s place, the `measure` that a pipeline's report offers and what it is taken
`of`, and the rule.  above, below: the whole 95 % interval of a difference is, or a number without interval is;
at_least, at_most: the mean is.  `limit` stands once, here, or is the name of a setting.  An answer (yes or no) needs no rule.
"""

import operator
import string
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from stages.lib.errors import DataError
from stages.lib.report import format as written
from stages.lib.report.document import Claim, Verdict
from stages.lib.report.stats import Difference, Mean
from stages.lib.yaml12 import load_yaml

Rule = Literal["above", "below", "at_least", "at_most"]


@checked(frozen=True, config=ConfigDict(extra="forbid"))
class Statement:
    """A row of claims.yaml; `words` and `figure` may have {fields} of the finding, {words}, {mean}, {n} and {limit}."""

    words: str
    measure: str
    of: list[Any] = field(default_factory=list)
    rule: Rule = "above"
    limit: float | str = 0.0
    figure: str = "{difference}"
    paper: str = ""


@dataclass(frozen=True)
class Finding:
    """The value that one claim is judged by, what its words need, and what does not follow it (by the limit where that decides).

    `void` says why the value tells nothing; then the claim is not measurable, whatever it is.
    """

    value: Difference | Mean | float | bool | None
    fields: Mapping[str, Any] = field(default_factory=dict)
    exceptions: list[str] | Callable[[float], list[str]] = field(default_factory=list)
    void: str = ""


Measure = Callable[..., Finding | Difference | Iterable[Finding]]


def read_statements(path: Path) -> list[Statement]:
    """The rows of a claims.yaml that are about the report's own data; raises DataError for one that is none."""
    rows = [row for row in load_yaml(path, DataError) if not is_published(row)]
    try:
        return TypeAdapter(list[Statement]).validate_python(rows)
    except ValidationError as problem:
        [first, *_] = problem.errors()
        raise DataError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def is_published(row: Any) -> bool:
    """Tells whether a row of claims.yaml is for the page of what reproduces, which reads stored numbers."""
    return isinstance(row, dict) and "at" in row


def judge(
    statements: Iterable[Statement],
    measures: Mapping[str, Measure],
    data: Any,
    settings: Any = None,
    empty: bool = False,
) -> list[Claim]:
    """The claims in the order of the rows; a measure takes the data and what it is `of`, and gives a finding, several or none.

    Differences without any common cell are left out, or not measurable with `empty`.
    """
    return [
        _claim(statement, finding, _limit(statement.limit, settings))
        for statement in statements
        for finding in _findings(measures[statement.measure](data, *statement.of))
        if empty or not isinstance(finding.value, Difference) or finding.value.n
    ]


def verdict_of(value: Difference | Mean | float | bool | None, rule: str, limit: float) -> Verdict:
    """The four words: see the head of this module and `Verdict.of_interval`."""
    if isinstance(value, Difference) and rule in ("above", "below"):
        return value.above(limit) if rule == "above" else value.below(limit)
    value = value.mean if isinstance(value, Mean) else value
    if value is None or isinstance(value, bool):
        return Verdict.of(value)
    compare = {"above": operator.gt, "below": operator.lt, "at_least": operator.ge, "at_most": operator.le}[rule]
    return Verdict.of(bool(compare(value, limit)))


def _claim(statement: Statement, finding: Finding, limit: float) -> Claim:
    value, exceptions = finding.value, finding.exceptions
    fields = {"limit": limit}
    if isinstance(value, Mean):
        fields |= {"mean": value.mean, "n": value.n, "spread": value.text()}
    if isinstance(value, Difference):
        fields |= {"difference": value.words(), "low": value.low, "high": value.high, "positive": value.positive}
    fields |= finding.fields
    empty = isinstance(value, Difference) and not value.n
    figure = value.words() if empty else _Words().format(statement.figure, **fields) + finding.void
    return Claim(
        _Words().format(statement.words, **fields),
        Verdict.OPEN if finding.void else verdict_of(value, statement.rule, limit),
        figure,
        exceptions(limit) if callable(exceptions) else exceptions,
    )


def _findings(given: Finding | Difference | Iterable[Finding]) -> list[Finding]:
    if isinstance(given, Difference):
        return [Finding(given)]
    return [given] if isinstance(given, Finding) else [*given]


def _limit(limit: float | str, settings: Any) -> float:
    if not isinstance(limit, str):
        return limit
    for name in limit.split("."):
        settings = getattr(settings, name)
    return settings


class _Words(string.Formatter):
    """{share:percent}, {share:percent0}, {limit:share}, {difference:points}, {sparsity:size}, and all that f-strings know."""

    def format_field(self, value: Any, form: str) -> str:
        kind, decimals = form.rstrip("0123456789"), form[len(form.rstrip("0123456789")) :]
        if kind == "size":
            return written.small_percent(value)
        if kind == "share":
            return f"{100 * value:g}"
        if kind in ("percent", "points"):
            return getattr(written, kind)(value, *([int(decimals)] if decimals else []))
        return super().format_field(value, form)
