"""The report of merged models claims what its figures bear, and its settings are checked."""

from dataclasses import replace
from itertools import product

import pandas as pd
import pytest

from stages.lib import paths
from stages.lib.errors import ParamsError
from stages.lib.merging.names import KINDS, LOCALIZED, NAMES, TUNED, kind_of, read_localized
from stages.lib.metrics.gain import add_gain, scores_of_ends
from stages.lib.metrics.variants import FINETUNED, GRAFTED, PRETRAINED
from stages.lib.params import validate
from stages.lib.report.document import Claim
from stages.lib.yaml12 import load_yaml
from stages.merge.report import FRAMES, Merged, details, headline, model_table, report
from stages.merge.settings import SECTIONS

TASKS, SEEDS, LEAST = ["a", "b", "c"], [1, 2], 0.05
SCORES = {PRETRAINED: 0.5, GRAFTED: 0.8, FINETUNED: 0.9, "stitch_mean": 0.79, "stitch_sum": 0.6, "average": 0.7}


def merged(scores: dict[str, float] = SCORES, colliding: int = 30) -> Merged:
    """Scores that differ a little from cell to cell, alike for every method."""
    rows = []
    for method, seed, task in product(scores, SEEDS, TASKS):
        shift = 0.01 * TASKS.index(task) + 0.001 * seed * len(method)
        single = scores[KINDS.get(method, FINETUNED)]
        score = scores[method] + shift
        cell = {"group": "all", "method": method, "seed": seed, "task": task, "n": 100, "score": score, "accuracy": score}  # fmt: skip
        rows.append({**cell, "single": single, "own": score / (single + shift), "retained": score / scores[FINETUNED]})
    methods = [name for name in scores if name in KINDS]
    models = [
        {
            "group": "all",
            "method": method,
            "seed": seed,
            "kind": KINDS[method],
            "bytes": 100,
            "head_bytes": 1,
            "single_bytes": 300,
        }
        for method, seed in product(methods, SEEDS)
    ]
    counts = {"graftable": 1000, "union": 100, "colliding": colliding, "opposed": 5, "chance_union": 110}
    found = [{"group": "all", "seed": seed, "tasks": 3, **counts, "chance_colliding": 11 + seed} for seed in SEEDS]
    parts = {"scores": rows, "models": models, "dev": [], "collisions": found}
    frames = {name: pd.DataFrame(parts[name], columns=columns) for name, columns in FRAMES.items()}
    ends = scores_of_ends(frames["scores"].assign(variant=frames["scores"].method), ["seed", "task"])
    return Merged({"all": TASKS}, methods, SEEDS, frames | {"scores": add_gain(frames["scores"], ends, LEAST)}, LEAST)


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
    shown = claims(merged())
    assert {shown[text].verdict for text in (BETTER, RULE, KEPT)} == {"holds"}
    assert shown[BETTER].here == "some model; 3 tasks, 2 seeds" and shown[BETTER].paper and not shown[RULE].paper
    worse = claims(merged({**SCORES, "stitch_mean": 0.65}))
    assert (worse[BETTER].verdict, worse[RULE].verdict) == ("does not hold", "holds")
    assert worse[BETTER].exceptions == [f"{task} -4.4" for task in TASKS] and worse[KEPT].verdict == "does not hold"


def test_grafts_that_gained_nothing_have_nothing_to_keep():
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


def test_the_headline_is_short_and_the_details_have_the_rest():
    [shown] = headline(merged()).values()
    assert len(shown) == 5 and shown["stitch_mean"] > shown["average"]
    stored = details(merged())
    assert {*stored} == {"model", "task", "collisions", "stitched_minus"}
    assert stored["stitched_minus"]["all"]["average"]["tasks"] == 3 and stored["collisions"]["all"]["colliding"] == 30


def test_the_main_table_has_single_task_models_and_sizes():
    rows = {row.cells[0]: row.cells for row in model_table(merged()).text().rows}
    assert rows["stitch mean"][1].startswith("81.7") and rows["stitch mean"][-1] == "0.00"
    assert {"own graft of each task", "own fine-tuned model of each task", "pretrained, own heads"} <= {*rows}


# --- Settings --------------------------------------------------------------------------------------------------


def test_a_name_says_what_a_method_merges():
    assert {*TUNED} <= {*NAMES} and all(read_localized(name) is None for name in (*NAMES, "stitch_0", "0.5", "a_2"))
    assert read_localized("stitch_0.01") == ("stitch", 0.01) and read_localized("attribution_learned_1")[1] == 1
    assert (kind_of("average"), kind_of("stitch_mean"), kind_of("stitch_0.01")) == (FINETUNED, GRAFTED, LOCALIZED)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"merge": {"groups": {"two": ["movies", "movies"]}}}, "merge.groups.two: movies stands twice"),
        ({"merge": {"groups": {"two": ["movies", "tweet"]}}}, r"merge.groups: unknown task 'tweet' \(did you mean 'tweets'"),
        ({"combination": {"methods": ["stich_mean"]}}, r"combination.methods: unknown method 'stich_mean' \(did you mean 'stitch_mean'"),
        ({"combination": {"methods": ["stich_0.01"]}}, r"combination.methods: unknown localizer 'stich' \(did you mean 'stitch'"),
        ({"combination": {"search": {"alphas": [-0.5], "dev_max": 32}}}, "combination.search.alphas.0: -0.5 is not allowed"),
        ({"combination": {"shares": {"ties": 0.2, "dare": 0.0}}}, "combination.shares.dare: 0.0 is not allowed"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_named_with_what_is_allowed(change, message):
    raw = load_yaml(paths.PARAMS, ParamsError)
    for section, settings in change.items():
        raw[section] = {**raw[section], **settings}
    with pytest.raises(ParamsError, match=message):
        validate(raw, asked=SECTIONS)
