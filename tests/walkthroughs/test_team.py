"""docs/TEAM.md under the real DVC: whoever ran the pipeline pushes, a colleague clones and pulls; a remote is a folder."""

import subprocess

import pytest

from tests.dvc_project import ROOT, TINY, Copy, Run, clone, fenced, make_original

pytestmark = pytest.mark.timeout(900)

OTHERS = "stages/merge/dvc.lock"
PUSHED, PULLED = (block for language, block in fenced("docs/TEAM.md") if language == "bash")


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> tuple[Copy, Run, Run, Run]:
    """A colleague's clone of a copy that has run: a plain pull, the page's commands, and what is stale afterwards."""
    ours = clone(make_original(tmp_path_factory.mktemp("team"), TINY | {"ood": {"sets": {}}}), "ours")
    ours.repro()
    authors = subprocess.run(["git", "show", f"HEAD:{OTHERS}"], cwd=ROOT, capture_output=True, check=True).stdout
    (ours.folder / OTHERS).write_bytes(authors)  # as in every clone of this project
    ours.commit()
    ours.run("bash", "-ec", PUSHED)
    theirs = clone(ours, "theirs")
    theirs.run("git", "config", "remote.origin.url", str(ours.folder))
    return theirs, theirs.run("dvc", "pull", fails=True), theirs.run("bash", "-ec", PULLED), theirs.run("dvc", "status", "dvc.yaml")


def test_a_colleague_gets_the_run_by_naming_its_pipeline_and_goes_on_from_it(story):
    theirs, plain, followed, _ = story
    assert "missing-files" in plain.text, "the control: results of other pipelines are in no remote of theirs"
    assert (theirs.folder / "masks/learned/13/movies.safetensors").is_file()
    ran = [name.partition("@")[0] for name in followed.executed]
    assert ran and "finetune" not in ran and {"mask", "evaluate", "summary"} <= {*ran}, "only what follows from the size"


def test_what_was_pulled_is_up_to_date_but_for_the_experiment(story):
    assert "finetune" not in story[3].text
