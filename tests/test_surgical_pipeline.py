"""The surgical pipeline under the real DVC: what it makes, and what it makes again after a change."""

import json
from io import BytesIO

import pandas as pd
import pytest

from stages.workflow.core import paths
from tests.dvc_project import TINY, clone, make_original

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FILE = "stages/surgical/dvc.yaml"
TINY_SURGICAL = {
    "fim": {"tasks": ["movies"], "scores": {"targets": ["label_logit", "empirical"], "examples": [4], "heads": 1}},
    "surgery": {
        "selections": ["all", "top_1"], "tasks": ["movies"], "test_max": 40, "draws": 2, "score": {"examples": 4},
        "training": {"max_steps": 5, "warmup_steps": 1},
    },
    "robustness": {"tasks": ["movies"], "every": 3},
}  # fmt: skip


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """The stages that ran and the files after it, of a first run and of one with another selection."""
    copy = clone(make_original(tmp_path_factory.mktemp("surgical"), TINY | TINY_SURGICAL), "story")
    first = copy.repro(FILE), copy.files("metrics", "plots")
    copy.set("surgery.selections=[all,top_1,random_1]")
    return first, (copy.repro(FILE), copy.files("metrics", "plots"))


def test_one_command_scores_trains_and_reports(story):
    run, files = story[0]
    assert {"fim@13", "surgery@all-13", "surgery@top_1-13", "robustness@13", "surgical"} <= {*run.executed}
    assert "reference@13" not in run.executed  # no need of it
    plots = paths.report_plots("surgical")
    runs = pd.read_csv(BytesIO(files[f"{plots}/surgery.csv"])).groupby("selection").trained.mean()
    assert {*runs.index} == {"all", "top_1"} and runs["all"] > 1.9 * runs["top_1"]
    assert all(files[f"{plots}/{name}.png"] for name in ("layers", "selections", "robustness"))


def test_another_selection_trains_its_own_layers_alone(story):
    run, files = story[1]
    assert {*run.executed} == {"surgery@random_1-13", "surgical"}
    random, top = (
        json.loads(files[str(paths.stage_record("surgery", (name,), "movies", 13))])["rows"]
        for name in ("random_1", "top_1")
    )
    assert sorted(row["layers"] for row in random) == [[0], [1]]  # both that there are
    twin = next(row for row in random if row["layers"] == top[0]["layers"])
    assert (twin["curve"], twin["loss"]) == (top[0]["curve"], top[0]["loss"])  # however they were selected
