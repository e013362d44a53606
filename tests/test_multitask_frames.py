"""Gains and overlaps by kind of region, on a matrix whose values are known; the contrast of units that are on both sides."""

import pandas as pd
import pytest

from stages.multitask.frames import are_alike, kinds_of_gains, kinds_of_pairs, matrices, named, similarity
from stages.workflow.report.claims import _estimate, _means
from stages.workflow.report.spec import Claim

GROUPS = {"mood": ["a", "b"]}
MATRIX = {"paradigm": "sgd", "localizer": "learned", "sparsity": 0.01}


def gains():
    """Own region 1.0, that of the similar task 0.5, of another 0.1; a union of a and b brings 0.9 on them and 0.2 on c."""
    rows = []
    for seed in (1, 2):
        for target in "abc":
            for source in "abc":
                alike = are_alike(GROUPS, source, target)
                gain = 1.0 if source == target else 0.5 if alike else 0.1
                rows.append(
                    {
                        "kind": "single",
                        "source": source,
                        "target": target,
                        "inside": source == target,
                        "alike": alike,
                        "gain": gain,
                    }
                )
                rows[-1]["seed"] = seed
            inside = target in "ab"
            rows.append(
                {
                    "kind": "union",
                    "source": "mood",
                    "target": target,
                    "inside": inside,
                    "alike": False,
                    "gain": 0.9 if inside else 0.2,
                }
            )
            rows[-1]["seed"] = seed
    return named(pd.DataFrame(rows).assign(**MATRIX))


def contrast(first, second, units):
    claim = Claim(words="", value="gain", by="region", a=first, b=second, units=units, statistic="contrast")
    rows = kinds_of_gains(gains())
    sides = [rows[rows.region == side].set_index([*units, "seed"]).gain for side in (first, second)]
    return _estimate(claim, sides)[0], _means(claim, sides)


def test_a_gain_is_of_each_kind_that_its_region_is_of_and_has_a_rival_on_the_same_task():
    rows = kinds_of_gains(gains())
    means = rows.groupby("region").gain.mean()
    assert (
        means["own region"] == 1
        and means["regions of similar tasks"] == 0.5
        and means["regions of other tasks"] == pytest.approx(0.1)
    )
    assert (
        means["union, its tasks"] == 0.9
        and means["union, excluded tasks"] == 0.2
        and "purified, its tasks" not in means
    )
    similar = rows[rows.region == "regions of other tasks"]
    assert {*similar.target[similar.both]} == {"a", "b"}, "c has no similar task"
    assert len(kinds_of_gains(gains().assign(gain=None))) == 0


def test_sides_are_compared_by_their_own_means_and_an_interval_needs_two_tasks_on_each():
    value, means = contrast("own region", "other regions", ["source", "target"])
    assert means == pytest.approx({"a": 1, "b": (2 * 0.5 + 4 * 0.1) / 6}) and value.mean == pytest.approx(
        means["a"] - means["b"]
    )
    value, means = contrast("union, its tasks", "union, excluded tasks", ["target"])
    assert value.mean == pytest.approx(0.7) and value.error is None, "without c one side is empty"


def test_a_unit_on_both_sides_counts_on_each_and_is_left_out_of_both():
    index = pd.MultiIndex.from_tuples([("a", 1), ("a", 2), ("b", 1), ("b", 2)], names=["target", "seed"])
    more = pd.MultiIndex.from_tuples([("b", 1), ("b", 2), ("c", 1), ("c", 2)], names=["target", "seed"])
    sides = [pd.Series([0.8, 0.8, 0.6, 0.6], index), pd.Series([0.2, 0.2, 0.4, 0.4], more)]
    claim = Claim(words="", value="gain", a="in", b="out", units=["target"], statistic="contrast")
    value, _ = _estimate(claim, sides)
    # b has half of its rows on each side, so half the weight of a task that is on one side alone
    first, second = (0.8 + 0.5 * 0.6) / 1.5, (0.5 * 0.2 + 0.4) / 1.5
    assert value.mean == pytest.approx(first - second) and value.tasks == 3 and value.error > 0
    assert _means(claim, sides) == pytest.approx({"a": first, "b": second})


def test_pairs_are_of_one_model_or_of_two_seeds():
    rows = [
        {"first": first, "first_seed": one, "second": second, "second_seed": other, "alike": are_alike(GROUPS, first, second)}
        for first in "abc" for second in "abc" for one in (1, 2) for other in (1, 2) if (first, one) != (second, other)
    ]  # fmt: skip
    pairs = named(pd.DataFrame(rows).assign(**MATRIX, overlap=0.3, chance=0.01)).assign(
        seed=lambda frame: frame.first_seed
    )
    counts = kinds_of_pairs(pairs).kind.value_counts()
    assert counts.to_dict() == {
        "one model, two tasks": 12, "similar tasks": 4, "dissimilar tasks": 8, "two seeds, one task": 6, "two seeds, two tasks": 12,
    }  # fmt: skip
    beside = similarity(kinds_of_gains(gains()), kinds_of_pairs(pairs))
    assert len(beside) == 12 and beside.gain[beside.likeness == "similar tasks"].tolist() == [0.5] * 4


def test_a_matrix_says_where_another_region_is_better_and_what_is_left_out():
    levels = pd.DataFrame({"paradigm": "sgd", "task": [*"abc"], "seed": 1, "gained": [True, True, False]})
    changed = gains()
    changed.loc[(changed.source == "b") & (changed.target == "a"), "gain"] = 1.5
    [row] = matrices(changed, kinds_of_gains(changed), levels, 0.05).to_dict("records")
    assert (row["best"], row["cells"], row["beaten"]) == (4, 6, "a") and row[
        "size"
    ] == "SGD, learned, regions of 1.00 %"
    assert row["left_out"] == "; without 1 of 3 cells, in which the joint model gained less than 5 points"
