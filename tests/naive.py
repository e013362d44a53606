"""The verdicts of the reports a second time, from the committed rows, by plain arithmetic that shares nothing with the report core.

The rules as the reports tell them: seeds, and all else that is no task, are averaged within a task or a pair of tasks.
Tasks are the sample: the interval is the jackknife's over tasks, with Student's t; pairs of which no two share a task are
left out as pairs.  There is none for one task, or for two tasks with one value.  A claim holds, or does not
hold, where its interval is on one side of the limit, also by Holm's correction for those claims of its family that have an
interval and pass their controls; else it is not shown.  Without an interval, or where a control is not above 0 by its own,
it is not measurable.
"""

import math
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from stages.workflow.report.claims import judge
from stages.workflow.report.publish import load_report

ROOT = Path(__file__).parents[1]
CELL, PAIR = ["task", "seed"], ["first", "second"]
# as reports write them: an estimate, both ends of its interval, tasks, seeds, units above 0, units
NUMBERS = re.compile(
    r"([-+]?[\d.]+)[^\d(]*\((?:no interval|95 % interval ([-+]?[\d.]+) to ([-+]?[\d.]+)); (?:\d+ pairs of )?(\d+) tasks?, "
    r"(?:\d to )?(\d) seeds?(?:; above 0 in (\d+) of (\d+))?"
)


def tail(t, freedom, steps=400):
    """Both tails of Student's t, whose density at sqrt(freedom) * tan(angle) goes with cos(angle) ** (freedom - 1)."""
    widths = [(math.pi / 2 - start) / steps for start in (math.atan(t / math.sqrt(freedom)), 0)]
    # from the far end of the tail, by the midpoint rule
    tails = [width * sum(math.sin((step + 0.5) * width) ** (freedom - 1) for step in range(steps)) for width in widths]
    return tails[0] / tails[1]


def quantile(freedom):
    """Where both tails together are 5 %."""
    low, high = 0.0, 20.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, freedom) > 0.05 else (low, middle)
    return low


class Sample:
    """A statistic of means over tasks, or pairs of tasks, of values whose index names their cells; `numbers` as in NUMBERS."""

    def __init__(self, values, tasks=("task",), statistic=lambda units: units.mean()):
        values = values.dropna()
        units, seeds = values.groupby(level=[*tasks]).mean(), values.index.get_level_values("seed").nunique()
        names = units.index.to_frame().to_numpy()
        known = sorted({*names.ravel()})
        shared = len(known) < names.size
        without = [units[(names != name).all(axis=1)] for name in known] if shared else map(units.drop, units.index)
        left = pd.Series([statistic(part) for part in without] if len(units) > 1 else [], dtype=float)
        self.mean, self.freedom = statistic(units), len(left) - 1
        self.error = math.sqrt(self.freedom * left.var(ddof=0)) if len(left) else math.nan
        if len(left) == 2 and self.error < 1e-9:
            self.error = math.nan
        half = self.error if math.isnan(self.error) else quantile(self.freedom) * self.error
        above = (int((units > 1e-9).sum()), len(units)) if units.ndim == 1 else (None, None)
        self.numbers = self.mean, self.mean - half, self.mean + half, len(known), seeds, *above

    def p_value(self, limit=0.0):
        """Two-sided; None without an interval."""
        if math.isnan(self.error):
            return None
        return (
            tail(abs(self.mean - limit) / self.error, self.freedom) if self.error > 1e-9 else float(self.mean == limit)
        )

    def is_above_0(self):
        """By its own interval, which it needs."""
        return self.mean > 0 and self.p_value() is not None and self.p_value() < 0.05


@dataclass
class Claim:
    """`words`: parts of its text, up to the last "|" its family's; `given`: controls; `told` makes of a value what is printed."""

    words: str
    value: pd.Series | Sample | float
    limit: float = 0
    given: list = ()
    family: str = ""
    below: bool = False
    told: Callable = lambda value: 100 * value

    def __post_init__(self):
        self.value = Sample(self.value) if isinstance(self.value, pd.Series) else self.value
        self.family = self.family or self.words.rpartition(" | ")[0] or self.words
        self.failed = [control for control in map(Sample, self.given) if not control.is_above_0()]
        self.exact = isinstance(self.value, float)
        self.p_value = None if self.exact or self.failed else self.value.p_value(self.limit)


def judged(claims):
    """Claims with their verdicts, and for how many claims Holm's correction is where that takes one away (else None)."""
    claims = [*claims]
    for claim in claims:
        family = sorted(other.p_value for other in claims if other.family == claim.family and other.p_value is not None)
        value, p_value = claim.value if claim.exact else claim.value.mean, claim.p_value
        verdict = "holds" if (value < claim.limit) == claim.below else "does not hold"
        # the smallest times how many there are, the next times one fewer, and none below the one before it
        lower = [(len(family) - rank) * p for rank, p in enumerate(family) if p_value is not None and p <= p_value]
        unclear = max(lower, default=0.0) >= 0.05
        if unclear or (p_value is None and not claim.exact):
            verdict = "not shown" if unclear else "not measurable"
        yield claim, verdict, len(family) if unclear and p_value < 0.05 else None


def require_committed():
    """Skip where rows or reports are those of another run."""
    words = ["git", "status", "--porcelain", "--untracked-files=no", "--", "metrics", "plots"]
    if subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout:
        pytest.skip("the reports here are not the committed ones")


def rows_of(file):
    """Rows have four digits; shares of n rows are made exact again, or equal ones would differ in the fifth."""
    rows = pd.read_csv(file)
    for name in {"score", "accuracy", "agreement", "constant"} & {*rows} if "n" in rows else ():
        exact = (rows[name] * rows.n).round() / rows.n
        rows[name] = rows[name].where((exact - rows[name]).abs() > 6e-5, exact)
    return rows


@cache
def loaded(report):
    """The spec and the frames of a committed report."""
    folder = "" if report == "summary" else report
    return load_report(Path("stages", folder), ROOT / "plots" / folder)


@cache
def reported(report):
    """(verdict, text, figure) of each claim that the report core makes of the committed frames, or of a report as markdown."""
    if not report.endswith(".md"):
        return [
            (each.verdict, f"{each.words} | {each.size.split(';')[0]}", each.figure) for each in judge(*loaded(report))
        ]
    lines = [
        line.replace("\\", "")[4:].partition("**: ")
        for line in (ROOT / "metrics" / report).read_text().splitlines()
        if line.startswith("- **")
    ]
    return [(verdict, line, line) for verdict, _, line in lines]


def differences(report, measure, folders=("plots",), alter=lambda name, rows: rows):
    """What of a report doesn't follow from the rows in these folders, and how many of its claims were looked at."""

    require_committed()

    @cache
    def read(name):
        return alter(name, pd.concat([rows_of(ROOT / folder / f"{name}.csv") for folder in folders], ignore_index=True))

    different, found, told = [], [*judged(measure(read))], reported(report)
    for claim, verdict, correction in found:
        [(old, _, figure)] = [each for each in told if all(part in each[1] for part in claim.words.split(" | "))]
        holm, printed = re.search(r"Holm's correction for (\d+) claims", figure), [*NUMBERS.finditer(figure)]
        now = verdict, correction
        unlike = [f"{now}"] * (now != (old, holm and int(holm[1])))
        unlike += [] if claim.exact else unequal(printed[0], claim.value.numbers, claim.told)
        unlike += unequal(printed[-1], claim.failed[0].numbers) if claim.failed else []
        different += [f"{claim.words}: {each}; told: {old}, {figure}" for each in unlike]
    return different, len(found)


def unequal(printed, numbers, told=lambda value: 100 * value):
    """Numbers that aren't the printed ones, to half of the last digit and a bit for rounded rows."""
    for place, (written, number) in enumerate(zip(printed.groups(), numbers, strict=True)):
        value = told(number) if place < 3 else number
        if written is None:
            if place < 3 and not math.isnan(value):
                yield f"{value}, told: no interval"
        elif not abs(float(written) - value) < 0.6 * 10.0 ** -len(written.partition(".")[2]):
            yield f"{value}, told: {written}"


def larger(file, column):
    """What makes every seventh row of a file 5 % larger in this column."""

    def alter(name, rows):
        return rows if name != file else rows.assign(**{column: rows[column] * (1 + 0.05 * (rows.index % 7 == 0))})

    return alter


def cells(frame, measure="score", index=CELL, **axes):
    """The mean of each cell over the rows that have these values of the axes."""
    for name, value in axes.items():
        frame = frame[frame[name] == value]
    return frame.groupby(index)[measure].mean()


def above(trained, *baselines):
    """The control of what is kept or compared."""
    return trained - pd.concat(baselines, axis=1).max(axis=1)


def gain(model, pretrained, trained):
    """Relative gain, undefined where training gained less than 5 points."""
    return ((model - pretrained) / (trained - pretrained))[trained - pretrained > 0.0499]
