"""The report of merged models claims what its figures bear, and its settings are checked."""

from itertools import product

import pandas as pd
import pytest

from stages.lib import paths
from stages.lib.errors import ParamsError
from stages.lib.merging.names import KINDS, LOCALIZED, NAMES, TUNED, kind_of, read_localized
from stages.lib.metrics.variants import FINETUNED, GRAFTED, PRETRAINED
from stages.lib.params import validate
from stages.lib.yaml12 import load_yaml
from stages.merge.report import FRAMES, Merged, claims, model_table
from stages.merge.settings import SECTIONS

TASKS, SEEDS = ["a", "b", "c"], [1, 2]
SCORES = {PRETRAINED: 0.5, GRAFTED: 0.8, FINETUNED: 0.9, "stitch_mean": 0.79, "stitch_sum": 0.6, "average": 0.7}


def merged(scores: dict[str, float] = SCORES, colliding: int = 30) -> Merged:
    """Scores that differ a little from cell to cell, alike for every method."""
    rows = []
    for method, seed, task in product(scores, SEEDS, TASKS):
        shift = 0.01 * TASKS.index(task) + 0.001 * seed * len(method)
        single = scores[KINDS.get(method, FINETUNED)]
        score = scores[method] + shift
        cell = {
            "group": "all",
            "method": method,
            "seed": seed,
            "task": task,
            "n": 100,
            "score": score,
            "accuracy": score,
        }
        rows.append({**cell, "single": single, "own": score / (single + shift), "retained": score / scores[FINETUNED]})
    methods = [name for name in scores if name in KINDS]
    models = [
        {"group": "all", "method": method, "seed": seed, "bytes": 100, "head_bytes": 1, "single_bytes": 300}
        for method, seed in product(methods, SEEDS)
    ]
    counts = {"graftable": 1000, "union": 100, "colliding": colliding, "opposed": 5, "chance_union": 110}
    found = [{"group": "all", "seed": seed, "tasks": 3, **counts, "chance_colliding": 11 + seed} for seed in SEEDS]
    parts = {"scores": rows, "models": models, "dev": [], "collisions": found}
    frames = {name: pd.DataFrame(parts[name], columns=columns) for name, columns in FRAMES.items()}
    return Merged({"all": TASKS}, methods, SEEDS, frames)


def verdicts(data: Merged) -> dict[str, bool | None]:
    return {claim.text.removeprefix("all: "): claim.holds for claim in claims(data)}


BETTER = "stitch mean scores higher than average of whole models"
KEPT = "stitch mean keeps 95 % of the scores of the tasks' own grafts"
MORE = "grafts of different tasks select the same parameters more often than random masks"


def test_claims_follow_the_figures():
    shown = verdicts(merged())
    assert shown[BETTER] and shown[KEPT] and shown[MORE]
    assert shown["stitch mean scores higher than stitch sum"]
    worse = verdicts(merged({**SCORES, "stitch_mean": 0.65}, colliding=10))
    assert not worse[BETTER] and not worse[KEPT] and not worse[MORE]
    assert worse["stitch mean scores higher than stitch sum"]


def test_a_claim_names_the_tasks_that_go_against_it_and_its_interval():
    [claim] = [claim for claim in claims(merged({**SCORES, "stitch_mean": 0.65})) if BETTER in claim.text]
    assert claim.exceptions == TASKS and "95 % interval" in claim.figure and "0 of 6 cells" in claim.figure


def test_no_claim_is_made_about_methods_that_did_not_run():
    data = merged({name: SCORES[name] for name in (PRETRAINED, GRAFTED, FINETUNED, "average")})
    assert {*verdicts(data)} == {MORE}


def test_the_main_table_has_single_task_models_and_sizes():
    rows = {row.cells[0]: row.cells for row in model_table(merged()).text().rows}
    assert rows["stitch mean"][1] == "6" and rows["stitch mean"][-1] == "0.00"
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
