"""Gains and overlaps by kind of region, on a matrix whose values are known; the contrast of units that are on both sides."""

from itertools import product

import pandas as pd
import pytest

from stages.multitask.multitask import are_similar, kinds_of_gains, kinds_of_pairs, matrices, named, similarity
from stages.workflow.report.claims import judge
from stages.workflow.report.spec import Spec

GROUPS = {"mood": ["a", "b"]}
MATRIX = {"paradigm": "sgd", "localizer": "learned", "sparsity": 0.01}


def gains():
    """Own region 1.0, that of the similar task 0.5, of another 0.1; a union of a and b brings 0.9 on them and 0.2 on c."""
    names = ["kind", "source", "target", "inside", "similar", "gain"]
    rows = [("union", "mood", target, target in "ab", False, 0.9 if target in "ab" else 0.2) for target in "abc"]
    for source, target in product("abc", "abc"):
        similar, own = are_similar(GROUPS, source, target), source == target
        rows.append(("single", source, target, own, similar, 1.0 if own else 0.5 if similar else 0.1))
    frame = pd.DataFrame(rows, columns=names).assign(**MATRIX)
    return named(pd.concat([frame.assign(seed=seed) for seed in (1, 2)], ignore_index=True))


def contrast(rows, first, second, units):
    """The claim that the first is higher: its value, the figures of both sides, and what is said of it."""
    about = {"words": "", "data": "rows", "value": "gain", "statistic": "contrast", "figure": "{a:.4f} {b:.4f}"}
    sides = {"by": "region", "a": first, "b": second, "units": units}
    [claim] = judge(Spec(title="", sentence="", setting="", claims=[about | sides]), {"rows": rows})
    return claim.value, [float(word) for word in claim.figure.partition(";")[0].split()], claim.figure


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
    rows = kinds_of_gains(gains())
    value, means, _ = contrast(rows, "own region", "other regions", ["source", "target"])
    assert means == pytest.approx([1, (2 * 0.5 + 4 * 0.1) / 6], abs=1e-4) and value.mean == pytest.approx(1 - 1.4 / 6)
    value, _, told = contrast(rows, "union, its tasks", "union, excluded tasks", ["target"])
    assert value.mean == pytest.approx(0.7) and value.error is None, "without c one side is empty"
    assert "one side rests on a single task" in told


def test_a_unit_on_both_sides_counts_on_each_and_is_left_out_of_both():
    sides = {"in": {"a": 0.8, "b": 0.6}, "out": {"b": 0.2, "c": 0.4}}
    rows = [
        {"region": side, "target": target, "seed": seed, "gain": gain}
        for side, gains_of in sides.items() for target, gain in gains_of.items() for seed in (1, 2)
    ]  # fmt: skip
    value, means, _ = contrast(pd.DataFrame(rows), "in", "out", ["target"])
    assert means == pytest.approx([0.7, 0.3]) and value.mean == pytest.approx(0.4) and value.tasks == 3
    # without a, b and c: 0.6 - 0.3, 0.8 - 0.4 and 0.7 - 0.2
    pseudo = [3 * 0.4 - 2 * left for left in (0.3, 0.4, 0.5)]
    assert value.error == pytest.approx(pd.Series(pseudo).std() / 3**0.5)


def test_pairs_are_of_one_model_or_of_two_seeds():
    rows = [
        {"first": first, "first_seed": one, "second": second, "second_seed": other, "similar": are_similar(GROUPS, first, second)}
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
    assert len(beside) == 12 and beside.overlap.tolist() == [0.3] * 12


def test_a_matrix_says_where_another_region_is_better_and_what_is_left_out():
    levels = pd.DataFrame({"paradigm": "sgd", "task": [*"abc"], "seed": 1, "gained": [True, True, False]})
    changed = gains()
    changed.loc[(changed.source == "b") & (changed.target == "a"), "gain"] = 1.5
    [row] = matrices(changed, kinds_of_gains(changed), levels, 0.05).to_dict("records")
    assert row["best"] == "4 of 6 runs"
    assert {*changed["matrix"]} == {"SGD, learned, 1.00 %"}
    assert row["left_out"] == "; without 1 of 3 runs (task and seed), in which the joint model gained less than 5 points"
