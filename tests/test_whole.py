"""The profile `whole` under the real DVC: all pipelines from nothing, and once more."""

import pytest
from ruamel.yaml import YAML

from stages.workflow.settings import PIPELINES
from tests.chaos.copies import EVERYTHING, fresh_copies
from tests.dvc_project import Copy, Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Copy, Run]:
    """A copy with what the profile asks for, and what one command did: from sampling to the last report, as one graph."""
    [copy] = fresh_copies(tmp_path_factory.mktemp("whole"), "copy")
    return copy, copy.run(*EVERYTHING)


@pytest.mark.parametrize("folder", [f"stages/{name}" if name else "." for name in PIPELINES])
def test_stages_of_every_kind_ran_and_left_all_that_they_declare(made, folder):
    copy, run = made
    listed = copy.run("dvc", "stage", "list", "--name-only", f"{folder}/dvc.yaml").text.split()
    names, lock = {name.rpartition(":")[2] for name in listed}, copy.lock(folder)
    kinds = YAML(typ="safe").load(copy.folder / folder / "dvc.yaml")["stages"]
    assert {name.partition("@")[0] for name in names} == {*kinds}
    assert {*lock} == names <= {*run.run_at_all}
    outs = [out["path"] for stage in lock.values() for out in stage["outs"]]
    assert len(outs) >= len(names) and [path for path in outs if not (copy.folder / path).exists()] == []


def test_a_second_run_does_nothing(made):
    again = made[0].run(*EVERYTHING)
    assert (again.run_at_all, again.cached) == ([], [])
