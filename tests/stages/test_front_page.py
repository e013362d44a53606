"""The commands of README.md under the real DVC, in the order in which they are printed, on a tiny project."""

import pytest

from tests.dvc_project import TINY, Copy, Run, bash_blocks, cell, clone, make_original

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

CELLS = ("movies-13", "movies-21", "domain-13", "domain-21")
SETTINGS = TINY | {"tasks": ["movies", "domain"], "seeds": [13, 21], "ood": {"sets": {}}}
# what makes and enters the environment, and what runs before these
ELSEWHERE = {"make setup", "make repro", ". .venv/bin/activate"}


def commands() -> list[str]:
    """Every line of the bash blocks, without its comment."""
    lines = [line for block in bash_blocks("README.md") for line in block.splitlines()]
    return [line.partition(" #")[0].strip() for line in lines if line.strip()]


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> tuple[Copy, dict[str, Run]]:
    """A copy that has run once, and every command with what it did."""
    copy = clone(make_original(tmp_path_factory.mktemp("front"), SETTINGS), "copy")
    copy.repro()
    copy.commit()
    return copy, {line: copy.run("bash", "-ec", line) for line in commands() if line not in ELSEWHERE}


def test_what_is_run_elsewhere_is_printed():
    assert {*commands()} >= ELSEWHERE


def test_everything_is_cached_and_a_changed_number_reruns_what_follows_from_it(story):
    _, runs = story
    assert runs["dvc repro"].executed == []
    cells = cell(*CELLS, stages=("mask", "evaluate"), of_seeds=("calibration", "ood"))
    assert {*runs["dvc exp run -S graft.sparsity=0.0005"].executed} == {"summary"} | cells
    assert "metrics/summary.json" in runs["dvc metrics diff"].text


def test_a_graft_is_localized_applied_and_inspected(story):
    copy, runs = story
    assert (copy.folder / "shared/movies/patch.safetensors").is_file()
    assert (copy.folder / "shared/movies-model/model.safetensors").is_file()
    [inspected] = [run.text for line, run in runs.items() if line.startswith("graft inspect")]
    assert "movies" in inspected
