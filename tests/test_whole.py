"""The profile `whole` under the real DVC: all seven pipelines from nothing, and once more."""

import pytest
from ruamel.yaml import YAML

from stages.commands import profile
from tests.dvc_project import ROOT, Copy, Run, clone, make_original

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

PIPELINES = [".", *(f"stages/{path.parent.name}" for path in sorted((ROOT / "stages").glob("*/dvc.yaml")))]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Copy, Run]:
    """A copy with what the profile asks for, and what one command did: from sampling to the last report, as one graph."""
    original = make_original(tmp_path_factory.mktemp("whole"), profile.profile_settings("whole"))
    copy = clone(original, "copy")
    (copy.folder / "params.yaml").write_bytes((ROOT / "params.yaml").read_bytes())
    copy.run("python", "-m", "stages.commands.profile", "whole")
    return copy, copy.repro("--all-pipelines")


def stages_of(copy: Copy, folder: str) -> set[str]:
    """Names of all stages of a pipeline with these settings."""
    listed = copy.run("dvc", "stage", "list", "--name-only", f"{folder}/dvc.yaml").text.split()
    return {name.rpartition(":")[2] for name in listed}


def test_there_are_seven_pipelines():
    assert len(PIPELINES) == 7


@pytest.mark.parametrize("folder", PIPELINES)
def test_stages_of_every_kind_ran_and_left_all_that_they_declare(made, folder):
    copy, run = made
    names, lock = stages_of(copy, folder), copy.lock(folder)
    kinds = YAML(typ="safe").load(copy.folder / folder / "dvc.yaml")["stages"]
    assert {name.partition("@")[0] for name in names} == {*kinds}
    assert {*lock} == names <= {*run.run_at_all}
    outs = [out["path"] for stage in lock.values() for out in stage["outs"]]
    assert len(outs) >= len(names) and [path for path in outs if not (copy.folder / path).exists()] == []


def test_a_second_run_does_nothing(made):
    again = made[0].repro("--all-pipelines")
    assert (again.run_at_all, again.cached) == ([], [])
