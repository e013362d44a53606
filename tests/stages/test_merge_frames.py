"""What the report of merged models adds to its records: names, means over the same tasks, and sizes."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from skill_grafting.merging import RULES, VECTORS
from skill_grafting.metrics.variants import FINETUNED, GRAFTED, PRETRAINED
from stages.merge.frames import COLUMNS, derive
from stages.merge.settings import KINDS, LOCALIZED, STITCHES, kind_of, read_localized

TASKS, SEEDS = ["a", "b"], [1, 2]
SCORES = {PRETRAINED: 0.5, GRAFTED: 0.8, FINETUNED: 0.9, "stitch_mean": 0.78, "average": 0.7}


@pytest.fixture
def frames() -> dict[str, pd.DataFrame]:
    scores = pd.DataFrame(product(["all"], SCORES, SEEDS, TASKS), columns=["group", "method", "seed", "task"])
    score = scores.method.map(SCORES)
    own = score / scores.method.map(lambda name: SCORES.get(KINDS.get(name), np.nan))
    scores = scores.assign(n=50, constant=0.6, score=score, accuracy=score, own=own, retained=score / 0.9, gain=np.nan)
    models = pd.DataFrame(product(["all"], ["stitch_mean", "average"], SEEDS), columns=["group", "method", "seed"])
    kinds = models.method.map(KINDS)
    models = models.assign(
        kind=kinds, bytes=2e6, head_bytes=1e6, single_bytes=4e6, alpha=np.where(kinds == FINETUNED, 0.5, np.nan)
    )
    others = {name: pd.DataFrame(columns=COLUMNS[name]) for name in ("dev", "collisions")}
    return {"scores": scores, "models": models, **others}


def test_a_mean_over_tasks_takes_those_that_every_seed_has(frames):
    rows = frames["scores"]
    missing = (rows.method == "average") & (rows.task == "b") & (rows.seed == 2)
    frames["scores"] = rows.assign(own=rows.own.mask(missing))
    found = derive(frames)["averaged"].dropna(subset="own")
    assert {*zip(found.method, found.task, strict=True)} == {
        ("average", "a"),
        ("stitch_mean", "a"),
        ("stitch_mean", "b"),
    }


def test_what_is_kept_beside_the_pretrained_model_is_heads_and_grafts_or_models(frames):
    sizes = derive(frames)["averaged"].groupby("method").megabytes.mean()
    assert sizes.to_dict() == {PRETRAINED: 1.0, GRAFTED: 5.0, FINETUNED: 5.0, "stitch_mean": 3.0, "average": 3.0}


def test_the_stitched_mean_stands_beside_every_other_and_the_control_above_both_baselines(frames):
    found = derive(frames)
    assert {(row.model, row.whole, row.stitched, row.rival) for row in found["rivals"].itertuples()} == {
        ("average of whole models", True, 0.78, 0.7)
    }
    assert found["scores"].above[found["scores"].method == GRAFTED].to_list() == pytest.approx([0.8 - 0.6] * 4)
    assert {*found["kept"].method} == {"stitch_mean"}
    frames["models"].replace({"stitch_mean": "stitch_sum"}, inplace=True)
    frames["scores"].replace({"stitch_mean": "stitch_sum"}, inplace=True)
    found = derive(frames)
    assert {*found["kept"].method} == {"stitch_sum"} and found["rivals"].empty


def test_a_name_says_what_a_method_merges():
    assert [*STITCHES] == [f"stitch_{rule}" for rule in RULES]
    assert [*KINDS] == [*STITCHES, "grafted_arithmetic", *VECTORS], "all ways that there are"
    assert all(read_localized(name) is None for name in (*KINDS, "stitch_0", "0.5", "a_2"))
    assert read_localized("stitch_0.01") == ("stitch", 0.01) and read_localized("attribution_learned_1")[1] == 1
    assert (kind_of("average"), kind_of("stitch_mean"), kind_of("stitch_0.01")) == (FINETUNED, GRAFTED, LOCALIZED)
