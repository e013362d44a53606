"""Sizes of the grafts that bring most of the gain: the tables, and the measurements for the claims."""

from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from stages.lib.metrics.variants import GRAFTED, SIGNS
from stages.lib.report.claims import Finding, judge, read_statements, short_of
from stages.lib.report.document import Report
from stages.lib.report.format import counts, percent, points, small_percent, with_interval, without_gain, words
from stages.lib.report.stats import Estimate, estimate, paired
from stages.lib.report.table import Column, Line, Table, number, share, shown, stored
from stages.smallest.frames import CELL, DELTA, PATCH_BITS, Smallest, is_bound

CLAIMS = Path(__file__).with_name("claims.yaml")


def parameters(size: Estimate, at_least: bool = False) -> str:
    """A size from its log10: "at least 1,204"; empty without cells."""
    return "at least " * at_least + f"{10**size.mean:,.0f}" if size.units else ""


def interval(size: Estimate) -> str:
    """95 % interval of a size from its log10: "812 to 1,530"; empty where there is none."""
    return "" if size.error is None else f"{10**size.low:,.0f} to {10**size.high:,.0f}"


@lru_cache(maxsize=1)
def tables(found: Smallest) -> list[Table]:
    """In the order in which they are read."""
    return [_sizes(found), _by_task(found), _signs(found), _certificates(found)]


def _sizes(found: Smallest) -> Table:
    """A line for each localizer: sizes, and what grafts of these sizes do on test rows."""

    def size(name: str) -> dict[str, Any]:
        value = found.size(name)
        return {**value.numbers(), **({"parameters": float(10**value.mean)} if value.units else {})}

    def text(name: str) -> str:
        return parameters(found.size(name), found.at_least(name))

    def of_region(name: str) -> str:
        value = found.size(name)
        return small_percent(10**value.mean / found.of(name).graftable.astype(float).mean()) if value.units else ""

    enough = Column("enough", lambda name: f"{found.of(name).enough.eq(True).sum()} of {len(found.of(name))}", str)
    columns = [
        Column("n", lambda name: len(found.of(name)), str, "n"), enough,
        Column("parameters", text, str), Column("interval", lambda name: interval(found.size(name)), str), Column("of the region", of_region, str),
        Column("", size, str, "log10_size"), *(_measured(title, found, GRAFTED) for title in ("gain", "score", "ECE", "agreement")),
        number("gradients", lambda name: found.of(name).gradient_examples, ",.0f", key="gradient_examples"),
    ]  # fmt: skip
    notes = [
        f"parameters: geometric mean over tasks, interval: of 95 %; where no size up to {small_percent(found.settings.largest)} "
        "is enough it is the largest, and the mean is a lower bound",
        f"enough: cells in which a size brings {percent(found.settings.gain, 0)} % of the gain on dev rows, where the size is chosen; "
        "gain and what follows: on test rows, of those cells, mean in % (standard deviation over cells)",
        f"sizes by bisection, to a ratio of {found.settings.precision:g}; gradients: training examples that they take one of"
        + without_gain(int(found.sizes.enough.isna().sum()), len(found.sizes), "fine-tuning", found.least_gain),
    ]
    title = f"The smallest grafts that bring {percent(found.settings.gain, 0)} % of the gain"
    return Table(title, ["localizer"], columns, _by_localizer(found), notes, "sizes")


def _measured(title: str, found: Smallest, variant: str) -> Column:
    measure = title.lower()
    return share(title, lambda name: found.measure(name, variant, measure), measure)


def _by_localizer(found: Smallest) -> list[Line]:
    return [Line(words(name), name, name) for name in found.localizers]


def _by_task(found: Smallest) -> Table:
    """Sizes of every task, a column for each localizer."""

    def size(name: str, task: str) -> str:
        rows = found.of(name)
        rows = rows[rows.index.get_level_values("task") == task]
        mean = np.exp(np.log(rows.selected.astype(float)).mean())
        return "at least " * is_bound(rows) + f"{mean:,.0f}" if len(rows) else ""

    columns = [Column(words(name), partial(size, name), str) for name in found.localizers]
    lines = [Line(task, task) for task in dict.fromkeys(found.sizes.task)]
    notes = ["parameters, geometric mean over seeds; at least: not enough in some seed"]
    return Table("The same by task", ["task"], columns, lines, notes)


def _signs(found: Smallest) -> Table:
    """The grafts found, with one distance a tensor in place of each parameter's own."""

    def less(name: str) -> Estimate:
        return paired(found.measure(name, SIGNS, "score"), found.measure(name, GRAFTED, "score"))

    def bits(name: str) -> pd.Series:
        rows = found.of(name)
        return (rows.bits / rows.selected).astype(float)

    def smaller(name: str) -> str:
        return f"{PATCH_BITS / bits(name).mean():.1f}" if len(bits(name)) else ""

    columns = [
        _measured("gain", found, SIGNS), _measured("score", found, SIGNS),
        Column("score - the graft's", less, Estimate.in_points, "minus_graft"), _measured("ECE", found, SIGNS),
        number("bits a parameter", bits, ".1f", key="bits_each"), Column("a patch is larger by", smaller, str),
    ]  # fmt: skip
    notes = [
        "a sign for each parameter and one distance for each tensor; on test rows, of the cells in which a size is enough",
        f"bits: which parameters, their signs and the distances, and a new head whole; a patch has {PATCH_BITS} bits for each parameter",
        f"score - the graft's: percentage points{with_interval({*found.sizes.task}, {*found.sizes.seed})}",
    ]
    return Table("The same grafts in signs", ["localizer"], columns, _by_localizer(found), notes, "signs")


def _certificates(found: Smallest) -> Table:
    """Promises about unseen rows by the code lengths of grafts in signs."""

    columns = [
        Column("n", len, str, "n"), number("rows", "n", ",.0f", key="rows"), number("bits", "bits", ",.0f", key="bits"),
        share("train error", "error"), share("certified error", "certified"), share("one label", "baseline"),
        number("rows needed", "needed", ",.0f", key="needed"),
    ]  # fmt: skip
    notes = [
        f"certified: with {100 * (1 - DELTA):g} % confidence the test error is at most this, by the code's length alone (Langford, "
        "2005, theorem 4.6), were the training rows drawn independently; 100 % says nothing",
        "one label: error of always predicting the most frequent one; rows needed: where the same training error is certified to be below that",
    ]
    groups = found.certificates.groupby("localizer", sort=False)
    lines = [Line(words(name), rows, name) for name, rows in groups]
    return Table("What the length of their code promises", ["localizer"], columns, lines, notes, "certificates")


# --- What the claims measure ---------------------------------------------------------------------------------------


def fewer(found: Smallest, first: str, second: str) -> Iterator[Finding]:
    """log10 of how many times as many parameters the second localizer takes as the first."""
    if not {first, second} <= {*found.localizers}:
        return
    one, other = (np.log10(found.of(name).selected.astype(float)) for name in (first, second))
    value = paired(other, one)
    times = 10**value.mean if value.units else None
    interval = "no interval" if value.error is None else f"95 % interval {10**value.low:.2f} to {10**value.high:.2f}"
    # a size that is only a bound from below may hide that it is the larger one
    hidden = first if value.units and value.mean > 0 else second
    void = f"; no size was enough in some cells of {hidden}" if found.at_least(hidden) else ""
    told = {"times": times, "interval": interval, "counts": value.sample()}
    fields = {"limit_gain": found.settings.gain, **(told if value.units else {})}
    yield Finding(value, fields, short_of(other - one, lambda power: f"x {10**power:.2f}", ""), void)


def confirmed(found: Smallest) -> Iterator[Finding]:
    """Relative gain, on test rows, of the grafts whose size was chosen on dev rows."""
    for name in found.localizers:
        values = found.measure(name, GRAFTED, "gain").dropna()
        if len(values):
            yield Finding(estimate(values), {"localizer": words(name)}, short_of(values))


def signs_keep(found: Smallest) -> Iterator[Finding]:
    """Score of grafts in signs as a share of the grafts' own."""
    for name in found.localizers:
        values = found.measure(name, SIGNS, "score") / found.measure(name, GRAFTED, "score")
        if len(values):
            yield Finding(estimate(values), {"localizer": words(name)}, short_of(values))


def promised(found: Smallest) -> Iterator[Finding]:
    """Error of always predicting one label less the test error that is certified of grafts in signs."""
    for name, rows in found.certificates.groupby("localizer", sort=False):
        cells = rows.set_index(CELL)
        values = cells.baseline - cells.certified
        means = {column: estimate(cells[column]).mean for column in ("certified", "baseline")}
        fields = {"localizer": words(name), **means}
        yield Finding(estimate(values), fields, short_of(values, points, ""))


MEASURES = {"fewer": fewer, "confirmed": confirmed, "signs_keep": signs_keep, "promised": promised}


# --- All of it -----------------------------------------------------------------------------------------------------


def report(found: Smallest, here: str = "") -> Report:
    """Tables, and which claims show; `here` is what all were measured with."""
    claims = judge(read_statements(CLAIMS), MEASURES, found, here, found.settings)
    size = counts(task=found.sizes.task.nunique(), seed=found.sizes.seed.nunique())
    return Report("How small a skill is", size, shown(tables(found)), [], claims)


def headline(found: Smallest) -> dict[str, Any]:
    """The numbers for `dvc metrics`: geometric mean of the sizes of each localizer, a lower bound where no size was enough."""
    sizes = {name: found.size(name) for name in found.localizers}
    return {"parameters": {name: float(round(10**value.mean)) for name, value in sizes.items() if value.units}}


def details(found: Smallest) -> dict[str, Any]:
    """Every number of the tables, by localizer."""
    return stored(tables(found))
