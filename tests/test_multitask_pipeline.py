"""Multi-task learning under the real DVC: a task more computes its own cells and the joint model, one less leaves nothing."""

import json
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import pandas as pd
import pytest

from stages.workflow.core import paths
from tests.dvc_project import TINY, clone, make_original

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FILE = "stages/multitask/dvc.yaml"
TASKS, ADDED = ["movies", "products"], "tweets"
SETTINGS = TINY | {
    "tasks": TASKS,
    "ood": {"sets": {}},
    "multitask": {"tasks": TASKS, "test_max": 30, "groups": {"reviews": TASKS}},
    # enough for a joint model that gains, else there is no relative gain
    "data": TINY["data"] | {"k": 32},
    "finetune": {"max_steps": 40, "learning_rates": [0.2]},
    "joint": {"paradigms": ["sgd"], "step_factor": 16.0, "eval_steps": 0},
    "skill": {"localizers": ["movement"], "sparsities": [0.01]},
    "transfer": {"unions": {}, "purify_steps": 1, "purify_batch_size": 8},
}
MATRIX = {"joint@sgd-13", "skill@sgd-movement-13", "level@sgd-13", "transfer@sgd-movement-0.01-13", "multitask"}
MAIN = ("sample", "finetune")


@dataclass(frozen=True)
class Step:
    """One run: what it executed, the report it left, and everything the pipeline has stored."""

    executed: set[str]
    numbers: dict[str, Any]
    files: dict[str, bytes]

    def about(self, task: str) -> set[str]:
        """Stored files that have the task in their name or, as text, in what they say."""
        text = {name for name in self.files if name.endswith((".json", ".csv", ".md"))}
        return {name for name, data in self.files.items() if task in name or (name in text and task.encode() in data)}


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> dict[str, Step]:
    copy, steps = clone(make_original(tmp_path_factory.mktemp("multitask"), SETTINGS), "story"), {}
    for name, tasks in (("first", TASKS), ("more", [*TASKS, ADDED]), ("less", TASKS)):
        copy.set(*(f"{place}=[{','.join(tasks)}]" for place in ("tasks", "multitask.tasks")))
        run, report = copy.repro(FILE), copy.folder / paths.report("multitask")
        files = copy.files("models/joint", "masks/skill", "metrics/level", "metrics/transfer", "plots/multitask")
        files |= {path.name: path.read_bytes() for path in (report, report.with_suffix(".md"))}
        numbers = json.loads(report.read_text())
        steps[name] = Step({*run.executed}, numbers, files)
    return steps


def tasks_of(step: Step) -> set[str]:
    """The tasks that the report is about."""
    return {*pd.read_csv(BytesIO(step.files["plots/multitask/level.csv"])).task}


def test_one_command_makes_the_joint_model_and_all_that_follows_from_it(story):
    before = {"fetch", "model", "reference@13", *(f"{stage}@{task}-13" for stage in MAIN for task in TASKS)}
    assert story["first"].executed == before | MATRIX
    assert {"joint_minus_single"} <= {*story["first"].numbers}
    assert tasks_of(story["first"]) == {*TASKS}


def test_another_task_computes_its_own_cells_and_the_joint_model_with_its_regions(story):
    own = {f"{stage}@{ADDED}-13" for stage in MAIN}
    assert story["more"].executed == own | {"fetch", "reference@13"} | MATRIX
    assert tasks_of(story["more"]) == {*TASKS, ADDED}
    assert len(story["more"].about(ADDED)) > 5


def test_a_task_less_leaves_no_trace_of_it_and_everything_else_is_as_it_was(story):
    assert story["less"].about(ADDED) == set()
    assert story["less"].files == story["first"].files and story["less"].numbers == story["first"].numbers
    # rows and models of the dropped task stay in the folders of its seed, so DVC does not know the joint model again
    assert story["less"].executed <= {"reference@13"} | MATRIX
