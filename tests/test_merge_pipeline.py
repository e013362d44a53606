"""Merged models under the real DVC: a method more or less computes only its own cells and leaves no stale one."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from stages.lib import paths
from stages.merge.report import SINGLES
from tests.dvc_project import TINY, Copy, Run, clone, make_original

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FILE = "stages/merge/dvc.yaml"
TASKS = ["movies", "products"]
SETTINGS = TINY | {
    "tasks": TASKS,
    "ood": {"sets": {}},
    "merge": {"groups": {"reviews": TASKS}, "test_max": 30},
    "combination": {"methods": ["stitch_mean"], "search": {"alphas": [0.0, 1.0], "dev_max": 8}},
}


@dataclass(frozen=True)
class Step:
    """One run, with the report it left."""

    run: Run
    numbers: dict[str, Any]
    text: str


def repro(copy: Copy) -> Step:
    run = copy.repro(FILE)
    report = copy.folder / paths.report("merge")
    numbers = json.loads((copy.folder / paths.report_details("merge")).read_text())
    return Step(run, numbers, report.with_suffix(".md").read_text())


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> dict[str, Step]:
    copy = clone(make_original(tmp_path_factory.mktemp("merge"), SETTINGS), "story")
    first = repro(copy)
    copy.set("combination.methods=[average]")
    return {"first": first, "other": repro(copy)}


def test_one_command_makes_the_merged_models_and_the_report(story):
    cells = {f"{stage}@{task}-13" for task in TASKS for stage in ("sample", "finetune", "movement", "mask", "evaluate")}
    merging = {"combination@stitch_mean-13", "merge"}
    assert {*story["first"].run.executed} == {"fetch", "model", "reference@13", "controls@13"} | cells | merging
    assert {*story["first"].numbers["model"]["reviews"]} == {*SINGLES, "stitch_mean"}
    assert "## Parameters that several grafts select" in story["first"].text


def test_another_method_computes_its_own_cell_and_one_less_leaves_nothing(story):
    assert {*story["other"].run.executed} == {"combination@average-13", "merge"}
    before, after = (story[name].numbers["model"]["reviews"] for name in ("first", "other"))
    assert {*after} == {*SINGLES, "average"} and "stitch mean" not in story["other"].text
    assert "stitch mean" in story["first"].text  # the control
    assert {name: after[name] for name in SINGLES} == {name: before[name] for name in SINGLES}
