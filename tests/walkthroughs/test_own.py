"""The walk-throughs of docs/OWN.md under the real DVC, every block as it is printed, in one tiny copy of the project."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from ruamel.yaml import YAML

from stages.workflow.stage import paths
from tests.dvc_project import TINY, Copy, Run, clone, fenced, make_original
from tests.pico import save_bert
from tests.settings_files import lay_over

pytestmark = pytest.mark.timeout(900)

BLOCKS = fenced("docs/OWN.md")
MOST_LINES = 9
# the tests' own sizes; what a walk-through sets comes on top
SMALL = TINY | {"model": {"max_length": 32}, "localizer": {"learned": {"steps": 2}}}


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> tuple[Copy, list[tuple[str, Run]]]:
    """A copy through all blocks, and what each command did."""
    copy = clone(make_original(tmp_path_factory.mktemp("own"), SMALL), "own")
    save_bert(copy.folder / "models/local/mine")
    return copy, [*follow(copy, BLOCKS)]


def follow(copy: Copy, blocks: list[tuple[str, str]]) -> Iterator[tuple[str, Any]]:
    """Every block as it is printed: settings are laid over params.yaml, code and commands are run."""
    for language, block in blocks:
        if language == "yaml":
            lay_over(copy.folder, YAML(typ="safe").load(block))
        else:
            yield block, copy.run(*(("python", "-c") if language == "python" else ("bash", "-ec")), block)


def done(story: tuple[Copy, list[tuple[str, Run]]], words: str) -> Run:
    return next(run for block, run in story[1] if words in block)


def cells(*stages: str) -> set[str]:
    return {f"{stage}@reviews-13" for stage in stages}


def test_each_walk_through_takes_less_than_ten_lines_of_settings():
    assert max(block.count("\n") for language, block in BLOCKS if language == "yaml") <= MOST_LINES


def test_own_rows_are_read_checked_and_sampled(story):
    run = done(story, "workflow.run sample")
    assert {*run.executed} == {"fetch", *cells("sample")}
    assert '"sentence1"' in run.text and re.search(r"\d+ of \d+ stages to run", run.text)


def test_an_own_model_folder_is_taken_over(story):
    run = done(story, "workflow.run model")
    assert run.executed == ["model"] and "done model" in run.text


def test_an_own_prompt_ends_in_a_mask_and_a_report_of_this_run_alone(story):
    run = done(story, "masks/learned/13/reviews.safetensors")
    assert "masks/learned/13/reviews.safetensors" in run.text and f"page: {paths.PAGE}" in run.text
    assert cells("finetune", "mask", "evaluate") | {"summary", "model"} <= {*run.executed}
    html = (story[0].folder / paths.PAGE).read_text()
    assert "mine, prompt fine-tuning" in html and "made under other settings" not in html

