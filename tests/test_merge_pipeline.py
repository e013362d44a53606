"""Merged models under the real DVC: a method more or less computes only its own cells and leaves no stale one."""

import pandas as pd
import pytest

from stages.merge.frames import SINGLES
from stages.workflow.core import paths
from tests.dvc_project import TINY, clone, make_original

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FILE = "stages/merge/dvc.yaml"
TASKS = ["movies", "products"]
SETTINGS = TINY | {
    "tasks": TASKS,
    "ood": {"sets": {}},
    "merge": {"groups": {"reviews": TASKS}, "test_max": 30},
    "combination": {"methods": ["stitch_mean"], "search": {"alphas": [0.0, 1.0], "dev_max": 8}},
}


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> dict[str, tuple[set[str], pd.DataFrame, str]]:
    """Two runs: what each executed, and the report that it left, as numbers and as text."""
    copy, found = clone(make_original(tmp_path_factory.mktemp("merge"), SETTINGS), "story"), {}
    for name, methods in (("first", "stitch_mean"), ("other", "average")):
        copy.set(f"combination.methods=[{methods}]")
        run, report = copy.repro(FILE), copy.folder / paths.report("merge")
        scores = pd.read_csv(copy.folder / paths.report_plots("merge") / "scores.csv")
        found[name] = {*run.executed}, scores, report.with_suffix(".md").read_text()
    return found


def test_one_command_makes_the_merged_models_and_the_report(story):
    executed, scores, text = story["first"]
    cells = {f"{stage}@{task}-13" for task in TASKS for stage in ("sample", "finetune", "movement", "mask", "evaluate")}
    merging = {"combination@stitch_mean-13", "merge"}
    assert executed == {"fetch", "model", "reference@13", "controls@13"} | cells | merging
    assert {*scores.group} == {"reviews"} and {*scores.method} == {*SINGLES, "stitch_mean"}
    assert "## Parameters that several grafts select" in text


def test_another_method_computes_its_own_cell_and_one_less_leaves_nothing(story):
    executed, scores, text = story["other"]
    assert executed == {"combination@average-13", "merge"}
    before, after = (rows[rows.method.isin([*SINGLES])] for rows in (story["first"][1], scores))
    assert {*scores.method} == {*SINGLES, "average"} and "stitch mean" not in text
    assert "stitch mean" in story["first"][2]  # the control
    assert after.reset_index(drop=True).equals(before.reset_index(drop=True))
