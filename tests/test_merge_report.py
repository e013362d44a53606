"""The report of merged models claims what its figures bear, and its settings are checked."""

from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest

from stages.lib.merging.names import KINDS, LOCALIZED, NAMES, TUNED, kind_of, read_localized
from stages.lib.metrics.gain import add_gain, scores_of_ends
from stages.lib.metrics.variants import FINETUNED, GRAFTED, PRETRAINED
from stages.lib.report.document import Claim
from stages.merge.report import FRAMES, Merged, details, headline, model_table, report

TASKS, SEEDS, LEAST = ["a", "b", "c"], [1, 2], 0.05
SCORES = {PRETRAINED: 0.5, GRAFTED: 0.8, FINETUNED: 0.9, "stitch_mean": 0.79, "stitch_sum": 0.6, "average": 0.7}


def merged(scores: dict[str, float] = SCORES) -> Merged:
    """Scores that differ a little from cell to cell, alike for every method."""
    methods = [name for name in scores if name in KINDS]
    cells = pd.DataFrame(product(["all"], scores, SEEDS, TASKS), columns=["group", "method", "seed", "task"])
    shift = 0.01 * cells.task.map(TASKS.index) + 0.001 * cells.seed * cells.method.str.len()
    score, single = cells.method.map(scores) + shift, cells.method.map(lambda name: scores[KINDS.get(name, FINETUNED)])
    shares = {"own": score / (single + shift), "retained": score / scores[FINETUNED]}
    rows = cells.assign(n=100, constant=0.1, score=score, accuracy=score, single=single, **shares)
    ends = scores_of_ends(rows.assign(variant=rows.method), ["seed", "task"])
    models = pd.DataFrame(product(["all"], methods, SEEDS), columns=["group", "method", "seed"])
    models = models.assign(kind=models.method.map(KINDS), bytes=100, head_bytes=1, single_bytes=300, alpha=np.nan)
    counts = {"graftable": 1000, "union": 100, "colliding": 30, "opposed": 5, "chance_union": 110}
    found = [{"group": "all", "seed": seed, "tasks": 3, **counts, "chance_colliding": 11 + seed} for seed in SEEDS]
    frames = {"scores": add_gain(rows, ends, LEAST), "models": models, "collisions": pd.DataFrame(found)}
    return Merged({"all": TASKS}, methods, SEEDS, {"dev": pd.DataFrame(columns=FRAMES["dev"]), **frames}, LEAST)


def test_the_gain_stands_beside_what_is_kept():
    ends = {name: SCORES[name] for name in (PRETRAINED, FINETUNED)}
    cells = model_table(merged()).numbers()["all"]
    for name, score in SCORES.items():
        expected = (score - ends[PRETRAINED]) / (ends[FINETUNED] - ends[PRETRAINED])
        assert cells[name]["gain"]["mean"] == pytest.approx(expected, abs=0.05), name
    assert cells[PRETRAINED]["gain"]["mean"] == 0 < 0.5 < cells[PRETRAINED]["retained"]["mean"], "the control"
    weak = model_table(merged(SCORES | {FINETUNED: ends[PRETRAINED] + 0.02}))
    assert "without 6 of 6 cells, in which fine-tuning gained less than 5 points" in weak.notes[-1]
    assert weak.numbers()["all"]["stitch_mean"]["gain"] == {"n": 0}


def claims(data: Merged) -> dict[str, Claim]:
    return {claim.text.removeprefix("all: "): claim for claim in report(data, "some model").claims}


BETTER = "stitch mean scores higher than average of whole models"
RULE = "stitch mean scores higher than stitch sum"
KEPT = "stitch mean keeps 95 % of the scores of the tasks' own grafts"


def test_claims_follow_the_figures():
    shown, worse = claims(merged()), claims(merged({**SCORES, "stitch_mean": 0.65}))
    assert {shown[text].verdict for text in (BETTER, RULE, KEPT)} == {"holds"}
    assert shown[BETTER].here == "some model; 3 tasks, 2 seeds" and shown[BETTER].paper and not shown[RULE].paper
    assert [worse[text].verdict for text in (BETTER, RULE, KEPT)] == ["does not hold", "holds", "does not hold"]
    assert worse[BETTER].exceptions == [f"{task} -4.4" for task in TASKS]
    # grafts that gained nothing have nothing to keep
    assert claims(merged({**SCORES, PRETRAINED: 0.8}))[KEPT].verdict == "not measurable"


def test_no_claim_is_made_about_methods_that_did_not_run_and_one_about_each_that_did():
    data = merged({name: SCORES[name] for name in (PRETRAINED, GRAFTED, FINETUNED, "average")})
    assert not claims(data)
    more = merged()
    for frame in more.frames.values():
        if "method" in frame:
            frame.replace({"average": "a_new_method"}, inplace=True)
    found = claims(replace(more, methods=["stitch_mean", "stitch_sum", "a_new_method"]))
    assert "stitch mean scores higher than a new method of whole models" in found


def test_one_seed_gives_numbers_and_no_verdict():
    whole = merged()
    frames = {name: frame[frame.seed == 1] for name, frame in whole.frames.items()}
    found = claims(replace(whole, seeds=[1], frames=frames))
    assert {claim.verdict for claim in found.values()} == {"not measurable"} and "+9.4 points" in found[BETTER].figure


def test_the_headline_is_short_and_the_details_and_the_main_table_have_the_rest():
    [shown] = headline(merged()).values()
    assert len(shown) == 5 and shown["stitch_mean"] > shown["average"]
    stored = details(merged())
    assert {*stored} == {"model", "task", "collisions", "stitched_minus"}
    assert stored["stitched_minus"]["all"]["average"]["tasks"] == 3 and stored["collisions"]["all"]["colliding"] == 30
    rows = {row.cells[0]: row.cells for row in model_table(merged()).text().rows}
    assert rows["stitch mean"][1].startswith("81.7") and rows["stitch mean"][-1] == "0.00"
    assert {"own graft of each task", "own fine-tuned model of each task", "pretrained, own heads"} <= {*rows}


def test_a_name_says_what_a_method_merges():
    assert {*TUNED} <= {*NAMES} and all(read_localized(name) is None for name in (*NAMES, "stitch_0", "0.5", "a_2"))
    assert read_localized("stitch_0.01") == ("stitch", 0.01) and read_localized("attribution_learned_1")[1] == 1
    assert (kind_of("average"), kind_of("stitch_mean"), kind_of("stitch_0.01")) == (FINETUNED, GRAFTED, LOCALIZED)
