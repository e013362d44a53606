"""The design page draws the pipelines that there are, and has all folders of the library."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from tests.test_dvc_yaml import EXTENSIONS, STAGES, data_deps, lies_in, output_paths

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "stages/README.md").read_text(encoding="utf-8")
DRAWN = re.findall(r"^```mermaid\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PIPELINES = {"summary": STAGES, **EXTENSIONS}


def chains(block: str) -> list[list[str]]:
    return [re.split(r"\s*-->\s*", line.strip()) for line in block.splitlines() if "-->" in line]


def edges(block: str) -> set[tuple[str, str]]:
    return {edge for chain in chains(block) for edge in pairwise(chain)}


def reach(found: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Everything that follows from these edges."""
    while more := {(a, d) for a, b in found for c, d in found if b == c} - found:
        found = found | more
    return found


def needed(stages: dict) -> set[tuple[str, str]]:
    """Which stage of a pipeline reads what another one of it makes."""
    made = [(stage, path) for stage in stages for path in output_paths(stage, "outs")]
    read = [(stage, dep) for stage in stages for dep in data_deps(stage)]
    return {(a, b) for a, path in made for b, dep in read if lies_in(dep, path) or lies_in(path, dep)}


def drawing(name: str) -> str:
    """The picture in which a pipeline's report stands last."""
    [block] = [block for block in DRAWN if name in {chain[-1] for chain in chains(block)}]
    return block


@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_is_drawn_as_its_dvc_yaml_has_it(name):
    assert reach(edges(drawing(name))) == reach(needed(PIPELINES[name]))


def test_no_more_is_drawn_than_there_is():
    assert len(DRAWN) == len(PIPELINES)
    assert reach({("a", "b"), ("b", "c")}) == {("a", "b"), ("b", "c"), ("a", "c")}
    assert edges("x --> y --> z\n  a --> z") == {("x", "y"), ("y", "z"), ("a", "z")}


def test_every_folder_of_the_library_is_in_the_table():
    table = PAGE.split("## Folders of")[1].split("\n## ")[0]
    folders = {path.parent.name for path in (ROOT / "stages/lib").glob("*/__init__.py")}
    assert folders <= {*re.findall(r"`lib/(\w+)`", table)}
