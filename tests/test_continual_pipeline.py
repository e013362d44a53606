"""Continual learning under the real DVC: what it makes, and what another order, setting or method makes anew."""

from io import BytesIO

import pandas as pd
import pytest

from stages.workflow.core import paths
from tests.dvc_project import TINY, Copy, Run, clone, make_original

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FILE = "stages/continual/dvc.yaml"
TASKS = ["movies", "products"]
# Two methods on one order of two tasks.
SEQUENCES = {
    "tasks": TASKS,
    "sequence": {
        "methods": ["grafting", "ewc"],
        "orders": ["there"],
        "max_steps": 6,
        "rate_factors": [1.0, 4.0],
        "test_max": 40,
    },
    "order": {"there": TASKS, "back": TASKS[::-1]},
    "method": {"ewc": {"examples": 4}},
}
BEFORE = {f"{stage}@{task}-13" for stage in ("sample", "finetune", "movement", "mask") for task in TASKS}


def files(copy: Copy) -> dict[str, bytes]:
    report = paths.report("continual").with_suffix(".md")
    return copy.files("metrics/sequence", "plots/continual") | {str(report): (copy.folder / report).read_bytes()}


def measured(found: dict[str, bytes]) -> pd.DataFrame:
    return pd.read_csv(BytesIO(found["plots/continual/measure.csv"]))


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> dict[str, tuple[Run, dict[str, bytes]]]:
    """A copy through its changes: step -> (run, files)."""
    copy = clone(make_original(tmp_path_factory.mktemp("continual"), TINY | SEQUENCES), "story")
    changes = {
        "first": (),
        "more": ("sequence.orders=[there,back]", "method.ewc.strength=10.0"),
        "fewer": ("sequence.methods=[grafting]",),
    }
    steps = {}
    for name, settings in changes.items():
        copy.set(*settings)
        steps[name] = copy.repro(FILE), files(copy)
    return steps


def test_one_command_runs_the_sequences_and_what_they_need_of_the_main_pipeline(story):
    run, found = story["first"]
    cells = {"sequence@grafting-there-13", "sequence@ewc-there-13"}
    assert {*run.executed} == BEFORE | {"fetch", "model", "reference@13", "continual"} | cells
    plots = {name.rpartition("/")[2] for name in found if name.startswith("plots/")}
    assert plots >= {"accuracy.csv", "measure.csv", "memory.csv", "steps_there.png"}
    assert b"Table 4" in found[str(paths.report("continual").with_suffix(".md"))]


def test_another_order_and_another_setting_of_a_method_make_only_their_own_cells_and_the_report(story):
    run, found = story["more"]
    cells = {"sequence@grafting-back-13", "sequence@ewc-back-13", "sequence@ewc-there-13"}
    assert {*run.executed} == cells | {"continual"}
    before = {name: data for name, data in story["first"][1].items() if "/grafting/there/" in name}
    assert len(before) == 4 and all(found[name] == data for name, data in before.items())
    measure = measured(found)
    assert {*measure.order} == {"there", "back"} and (measure.method == "ewc").sum() == 2


def test_a_method_that_is_dropped_is_in_no_table_although_its_files_are_there(story):
    run, found = story["fewer"]
    assert run.executed == ["continual"] and any("/ewc/" in name for name in found)
    assert {*measured(found).method} == {"grafting"} and "ewc" not in found["plots/continual/accuracy.csv"].decode()
