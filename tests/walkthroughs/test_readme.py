"""The commands of README.md under the real DVC, in the order in which they are printed, on a tiny project."""

import pytest

from tests.dvc_project import TINY, Copy, Run, clone, fenced, make_original, stages_of

pytestmark = pytest.mark.timeout(1800)

SETTINGS = TINY | {"ood": {"sets": {}}}
# what gets the project, makes and enters the environment, and what runs before these
ELSEWHERE = {"git clone REPOSITORY skill-grafting", "cd skill-grafting", "make setup", "make repro", ". .venv/bin/activate"}
COMMANDS = [
    command
    for language, block in fenced("README.md")
    for line in block.replace("\\\n", "").splitlines()
    if language == "bash" and (command := line.partition(" #")[0].strip())
]


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> tuple[Copy, dict[str, Run]]:
    """A copy that has run once, and every command with what it did."""
    copy = clone(make_original(tmp_path_factory.mktemp("readme"), SETTINGS), "copy")
    copy.repro()
    copy.commit()
    return copy, {line: copy.run("bash", "-ec", line) for line in COMMANDS if line not in ELSEWHERE}


def test_everything_is_cached_and_a_changed_number_reruns_what_follows_from_it(story):
    _, runs = story
    assert {*COMMANDS} >= ELSEWHERE and runs["dvc repro"].executed == []
    follows = stages_of("movies-13", of_cell=("movement", "mask", "evaluate"), of_seed=("calibration", "ood"))
    assert {*runs["python -m stages.workflow.run -S graft.sparsity=0.0005"].executed} == {"summary"} | follows
    assert "metrics/summary.json" in runs["dvc metrics diff"].text


def test_a_graft_is_localized_applied_and_inspected(story):
    copy, runs = story
    assert (copy.folder / "shared/movies/patch.safetensors").is_file()
    assert (copy.folder / "shared/movies-model/model.safetensors").is_file()
    assert any("parameters" in run.text for line, run in runs.items() if line.startswith("graft inspect"))
    assert any("makes the state" in run.text for line, run in runs.items() if line.startswith("graft diff"))
    assert any("positive (%)" in run.text for line, run in runs.items() if "stages.commands.predict" in line)
