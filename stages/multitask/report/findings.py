"""Which effects of section 5.1 show and which don't, with the figures behind each."""

from stages.lib.report.document import Claim, Verdict
from stages.lib.report.format import percent
from stages.lib.report.stats import Difference, paired
from stages.multitask.report import contrasts
from stages.multitask.report.collecting import SINGLE, Multitask
from stages.multitask.report.matrices import Key, called, gain_grid, similarity

# the joint model counts as comparable if it loses no more than this
COMPARABLE = 0.02


def claims(found: Multitask) -> list[Claim]:
    """The effects as claims.  A difference shows where its whole 95 % interval is above zero; one cell can't tell."""
    joint = [_comparable(found, paradigm) for paradigm in found.levels.paradigm.unique()]
    checks = (_diagonal, _isolated, _alike, _overlap, _ceiling, _unions, _purified, _similarity)
    return joint + [claim for key in found.matrices for check in checks for claim in check(found, key)]


def _comparable(found: Multitask, paradigm: str) -> Claim:
    levels = found.levels[found.levels.paradigm == paradigm]
    difference = paired(levels.joint, levels.single)
    cells = levels.groupby("task", sort=False)[["joint", "single"]].mean()
    worse = [task for task, row in cells.iterrows() if row.joint < row.single - COMPARABLE]
    text = f"{paradigm}: the joint model is at most {percent(COMPARABLE, 0)} points less accurate than single-task ones"
    return Claim(text, difference.above(-COMPARABLE), difference.words(), worse)


def _claim(key: Key, text: str, difference: Difference, exceptions: list[str]) -> list[Claim]:
    if not difference.n:
        return []
    return [Claim(f"{called(key)}: {text}", difference.above_zero, difference.words(), exceptions)]


def _diagonal(found: Multitask, key: Key) -> list[Claim]:
    """Figure 8b."""
    difference = contrasts.gain_difference(found, key, *contrasts.DOMINANCE)
    best, cells = contrasts.highest_own(found, key)
    grid = gain_grid(found, key, SINGLE).mean
    beaten = [task for task in found.tasks if grid[task].max() > grid.loc[task, task]]
    made = _claim(key, "the diagonal dominates: a task gains most from its own region", difference, beaten)
    more = f"; highest of all regions in {best} of {cells}"
    return [Claim(claim.text, claim.verdict, claim.figure + more, claim.exceptions) for claim in made]


def _isolated(found: Multitask, key: Key) -> list[Claim]:
    """Section 5.1: a region helps its own task and few others."""
    rows = contrasts.gain_rows(found, key, contrasts.OTHERS)
    elsewhere = rows.groupby(["source", "seed"])["gain"].mean().rename_axis(contrasts.CELL)
    difference = paired(contrasts.gain_by_cell(found, key, contrasts.OWN), elsewhere)
    return _claim(key, "a region does more for its own task than for others", difference, [])


def _alike(found: Multitask, key: Key) -> list[Claim]:
    difference = contrasts.gain_difference(found, key, contrasts.ALIKE, contrasts.UNALIKE)
    return _claim(key, "a task gains more from the regions of similar tasks than from others", difference, [])


def _overlap(found: Multitask, key: Key) -> list[Claim]:
    """Figure 8a."""
    difference = contrasts.overlap_difference(found, key, *contrasts.LIKENESS)
    return _claim(key, "regions of similar tasks overlap more than those of dissimilar ones", difference, [])


def _ceiling(found: Multitask, key: Key) -> list[Claim]:
    kinds = contrasts.TWO_SEEDS, contrasts.TWO_SEEDS_OTHER
    difference = contrasts.overlap_difference(found, key, *kinds)
    text = "of two joint models, regions of one task overlap more than those of two tasks"
    return _claim(key, text, difference, [])


def _unions(found: Multitask, key: Key) -> list[Claim]:
    """Figure 8c."""
    made = _by_task(found, key, contrasts.UNION_IN, contrasts.UNION_OUT)
    return _claim(key, "a union does more for its own tasks than for others, by union and seed", made, [])


def _purified(found: Multitask, key: Key) -> list[Claim]:
    """Figure 8d."""
    difference = contrasts.gain_difference(found, key, *contrasts.PURIFYING)
    return _claim(key, "a purified union does more for its tasks than the union did", difference, [])


def _by_task(found: Multitask, key: Key, first: str, second: str) -> Difference:
    sides = [contrasts.gain_by_cell(found, key, kind).groupby(["source", "seed"]).mean() for kind in (first, second)]
    return paired(*sides)


def _similarity(found: Multitask, key: Key) -> list[Claim]:
    value = similarity(found, key)
    if value.rho is None:
        return []
    interval = "no interval" if value.low is None else f"95 % interval {value.low:+.2f} to {value.high:+.2f}"
    figure = f"rho {value.rho:+.2f}, {interval}, {value.pairs} pairs of tasks"
    verdict = Verdict.of_interval(value.low, value.high)
    return [Claim(f"{called(key)}: regions that overlap more transfer more", verdict, figure, [])]
