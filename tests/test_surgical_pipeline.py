"""The surgical pipeline under the real DVC: what it makes, and what it makes again after a change."""

import json

import pytest

from stages.lib import paths
from tests.dvc_project import TINY, clone, make_original

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FILE = "stages/surgical/dvc.yaml"
TINY_SURGICAL = {
    "fim": {"tasks": ["movies"], "scores": {"targets": ["label_logit", "empirical"], "examples": [4], "heads": 1}},
    "surgery": {
        "selections": ["all", "top_1"],
        "tasks": ["movies"],
        "test_max": 40,
        "draws": 2,
        "score": {"examples": 4},
        "training": {"max_steps": 5, "warmup_steps": 1},
    },
    "robustness": {"tasks": ["movies"], "every": 3},
}  # fmt: skip


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """A first run, one with another selection, and one that is refused."""
    copy = clone(make_original(tmp_path_factory.mktemp("surgical"), TINY | TINY_SURGICAL), "story")
    first = copy.repro(FILE)
    made = copy.files("metrics", "plots")
    copy.set("surgery.selections=[all,top_1,random_1]")
    more = copy.repro(FILE)
    after = copy.files("metrics", "plots")
    copy.set("surgery.training.warmup_steps=5")
    refused = copy.repro(f"{FILE}:surgery@all-13", fails=True)
    return {"first": first, "made": made, "more": more, "after": after, "refused": refused}


def test_one_command_scores_trains_and_reports(story):
    own = {"fim@13", "surgery@all-13", "surgery@top_1-13", "robustness@13", "surgical"}
    assert own <= {*story["first"].executed}
    assert "reference@13" not in story["first"].executed  # no need of it
    summary = json.loads(story["made"][str(paths.report_details("surgical"))])
    assert {*summary} == {"fim", "surgery", "robustness", "bridge"} and {*summary["surgery"]} == {"all", "top_1"}
    assert summary["surgery"]["all"]["trained"] > 1.9 * summary["surgery"]["top_1"]["trained"]
    plots = {name for name in story["made"] if name.startswith(f"{paths.report_plots('surgical')}/")}
    figures = {f"{paths.report_plots('surgical')}/{name}.png" for name in ("layers", "selections", "robustness")}
    assert figures <= plots and all(story["made"][name] for name in plots)


def test_another_selection_trains_its_own_layers_alone(story):
    assert {*story["more"].executed} == {"surgery@random_1-13", "surgical"}
    record = json.loads(story["after"][str(paths.reading_record("surgery", ("random_1",), "movies", 13))])
    assert sorted(row["layers"] for row in record["rows"]) == [[0], [1]]  # both that there are
    same = paths.reading_record("surgery", ("top_1",), "movies", 13)
    [top] = json.loads(story["after"][str(same)])["rows"]
    twin = next(row for row in record["rows"] if row["layers"] == top["layers"])
    assert (twin["curve"], twin["loss"]) == (top["curve"], top["loss"])  # however they were selected


def test_a_warm_up_as_long_as_training_is_refused_before_anything_runs(story):
    assert "surgery.training.warmup_steps: a warm-up of 5 steps is longer than training's 5" in story["refused"].text
