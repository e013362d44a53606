"""What the paper's claims compare, as means over cells and as paired differences.

What two kinds of regions do is compared on the same task, since relative gains on different tasks have
different scales: a cell is a (target task, seed), for unions a (union, target task, seed).
"""

import pandas as pd

from stages.lib.report.stats import Difference, paired
from stages.multitask.report.collecting import PURIFIED, SINGLE, UNION, Multitask
from stages.multitask.report.matrices import Key, of_matrix, same_seed, same_task

OWN, OTHERS, ALIKE, UNALIKE = "own region", "other regions", "regions of similar tasks", "regions of other tasks"
UNION_IN, UNION_OUT = "union, its tasks", "union, other tasks"
PURIFIED_IN, PURIFIED_OUT = "purified, its tasks", "purified, other tasks"
GAIN_KINDS = (OWN, OTHERS, ALIKE, UNALIKE, UNION_IN, UNION_OUT, PURIFIED_IN, PURIFIED_OUT)

SAME_MODEL, SAME_MODEL_ALIKE, SAME_MODEL_UNALIKE = "one model, two tasks", "similar tasks", "dissimilar tasks"
TWO_SEEDS, TWO_SEEDS_OTHER = "two seeds, one task", "two seeds, two tasks"
OVERLAP_KINDS = (SAME_MODEL, SAME_MODEL_ALIKE, SAME_MODEL_UNALIKE, TWO_SEEDS, TWO_SEEDS_OTHER)

# what is compared in the verdict and in the numbers
DOMINANCE = OWN, OTHERS
PURIFYING = PURIFIED_IN, UNION_IN
LIKENESS = SAME_MODEL_ALIKE, SAME_MODEL_UNALIKE

CELL = ["target", "seed"]


def gain_rows(found: Multitask, key: Key, kind: str) -> pd.DataFrame:
    """The relative gains of one of GAIN_KINDS, those that can't be said left out."""
    rows = of_matrix(found.gains, key).dropna(subset=["gain"])
    single, union, purified = (rows.kind == name for name in (SINGLE, UNION, PURIFIED))
    inside, alike = rows.inside.astype(bool), rows.alike.astype(bool)
    chosen = {
        OWN: single & inside,
        OTHERS: single & ~inside,
        ALIKE: single & ~inside & alike,
        UNALIKE: single & ~inside & ~alike,
        UNION_IN: union & inside,
        UNION_OUT: union & ~inside,
        PURIFIED_IN: purified & inside,
        PURIFIED_OUT: purified & ~inside,
    }
    return rows[chosen[kind]]


def gain_by_cell(found: Multitask, key: Key, kind: str) -> pd.Series:
    """Their means by (target, seed); of unions by (source, target, seed)."""
    by = ["source", *CELL] if kind in GAIN_KINDS[4:] else CELL
    return gain_rows(found, key, kind).groupby(by, sort=False)["gain"].mean()


def gain_difference(found: Multitask, key: Key, first: str, second: str) -> Difference:
    """first - second, over the cells that have both."""
    return paired(gain_by_cell(found, key, first), gain_by_cell(found, key, second))


def overlap_rows(found: Multitask, key: Key, kind: str) -> pd.DataFrame:
    """The pairs of regions of one of OVERLAP_KINDS."""
    rows = of_matrix(found.overlaps, key)
    one_model, one_task, alike = same_seed(rows), same_task(rows), rows.alike.astype(bool)
    chosen = {
        SAME_MODEL: one_model,
        SAME_MODEL_ALIKE: one_model & alike,
        SAME_MODEL_UNALIKE: one_model & ~alike,
        TWO_SEEDS: ~one_model & one_task,
        TWO_SEEDS_OTHER: ~one_model & ~one_task,
    }
    return rows[chosen[kind]]


def overlap_difference(found: Multitask, key: Key, first: str, second: str) -> Difference:
    """first - second, by the second region's task and seed."""
    sides = [
        overlap_rows(found, key, kind).groupby(["second", "second_seed"])["overlap"].mean() for kind in (first, second)
    ]
    return paired(*sides)


def highest_own(found: Multitask, key: Key) -> tuple[int, int]:
    """(cells in which the own region gains more than every other, cells where relative gains can be said)."""
    own = gain_by_cell(found, key, OWN)
    best = gain_rows(found, key, OTHERS).groupby(CELL)["gain"].max()
    both = pd.concat({"own": own, "best": best}, axis=1).dropna()
    return int((both.own > both.best).sum()), len(both)
