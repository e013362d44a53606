"""What the study computes of its rows, by hand."""

import pandas as pd
import pytest

from stages.study.frames import bitfit, nearest, region_overlaps, saturation


def test_the_nearest_size_is_the_smaller_of_two_as_near():
    assert nearest([0.01, 0.001, float("nan")]) == 0.001
    assert nearest([0.0002, 0.0]) == 0.0
    assert nearest([]) is None


def test_bitfit_is_of_all_biases():
    sizes = {0.001: 10, 0.01: 60, 0.1: 60}
    rows = [
        {"readout": "retrain", "localizer": "bias", "sparsity": size, "selected": n, "graftable": 10_000}
        for size, n in sizes.items()
    ]
    assert [*bitfit(pd.DataFrame(rows)).sparsity] == [0.01], "10 of 10 may be some of them, 60 of 100 are all"


def test_regions_are_compared_between_tasks_and_between_seeds_of_one():
    shared = {"localizer": "learned", "sparsity": 0.01, "chance": 0.01}
    own = [
        shared | {"task": task, "first": 1, "second": 2, "overlap": share}
        for task, share in (("one", 0.4), ("two", 0.2))
    ]
    other = [shared | {"seed": 1, "first": "one", "second": "two", "overlap": 0.1}]
    frames = {"seed_overlap": pd.DataFrame(own), "task_overlap": pd.DataFrame(other)}
    [line] = region_overlaps(frames).itertuples()
    assert (line.own, line.overlap) == pytest.approx((0.3, 0.1))
    [line] = region_overlaps(frames | {"seed_overlap": pd.DataFrame(own[:1])}).itertuples()
    assert line.own != line.own, "without its own there is nothing to compare"


def test_saturation_is_of_the_largest_graft_in_cells_that_gain():
    start = {"variant": "pretrained", "score": 0.5}
    scores = {
        ("checkpoint", None): (0.6, 0.7, 0.9),
        ("grafted", 0.1): (0.69, 0.7, 0.7),
        ("grafted", 0.01): (0.5, 0.5, 0.6),
    }
    rows = [
        {"variant": variant, "sparsity": size, "step": step, "score": score}
        for (variant, size), row in scores.items()
        for step, score in zip((10, 20, 40), row, strict=True)
    ]
    cell = {"task": "one", "seed": 1, "where": "id"}
    frames = {"anchor": pd.DataFrame([start | cell]), "trajectory": pd.DataFrame([row | cell for row in rows])}
    [line] = saturation(frames, 0.05).itertuples()
    assert (line.graft, line.model) == (0.25, 1.0)
    assert saturation(frames, 0.3).empty, "the graft gains 20 points"
