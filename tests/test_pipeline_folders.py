"""A pipeline is a folder and its sections of params.yaml: one can be taken away, and a new one is found everywhere."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from stages.commands.settings_reference import markdown
from stages.lib.params import PIPELINES
from tests.dvc_project import ROOT, TINY, TINY_STUDY, Copy, make_original

REFERENCE = "from stages.commands.settings_reference import markdown; print(markdown(open('params.yaml').read()))"
OTHERS = [name for name in PIPELINES if name]
QUICK = "talos"

TOY = {
    "__init__.py": "",
    "settings.py": """
from pydantic import Field
from stages.lib.settings import Section

class ToyParams(Section):
    sizes: list[int] = Field(description="how large the toys are")

SECTIONS = {"toy": ToyParams}

def problems(values):
    return [] if "toy" not in values or values["toy"].sizes else ["toy.sizes: there is no toy"]
""",
    "toy.py": '''
"""toy: how large toys are."""

from pathlib import Path

from stages.lib.entry import stage
from stages.lib.params import load_params

@stage
def main() -> None:
    """Report the sizes."""
    params = load_params("toy")

    import pandas as pd

    from stages.workflow.report.publish import publish

    publish("toy", {"toys": pd.DataFrame({"toy": "all", "size": params.toy.sizes})}, Path("stages/toy"), Path("plots/toy"))

if __name__ == "__main__":
    main()
''',
    "frames.py": """
def derive(frames):
    return frames
""",
    "report.yaml": """
title: Toys
sentence: Toys have a size of {size}
setting: all toys
facts: {size: {data: toys, number: size, format: .1f}}
headline: {size: {data: toys, number: size}}
tables: {sizes: {title: Sizes of toys, data: toys, by: [toy], columns: {size: {number: size, format: .1f}}}}
""",
    "dvc.yaml": """
vars:
  - ../../params.yaml
stages:
  toy_code:
    wdir: ../..
    cmd: exec python -m stages.code --file stages/toy/dvc.yaml
    deps:
      - stages/code.py
      - stages/lib
      - stages/workflow
      - stages/toy/report.yaml
      - stages/toy/toy.py
    outs:
      - metrics/code/toy

  toy:
    wdir: ../..
    cmd: exec python -m stages.toy.toy
    deps:
      - metrics/code/toy/toy.json
    params: [toy]
    metrics:
      - metrics/toy.json:
          cache: false
    outs:
      - metrics/toy.md:
          cache: false
      - plots/toy:
          cache: false
""",
}


def whole_copy(folder: Path) -> Copy:
    """A copy of the project with the settings that it comes with."""
    copy = make_original(folder, TINY | TINY_STUDY)
    shutil.copy(ROOT / "params.yaml", copy.folder)
    return copy


def run_own_tests(copy: Copy, which: str = "") -> None:
    """The tests of every dvc.yaml, as the copy has them; they have to pass."""
    quiet = ("--noconftest", "-p", "no:cacheprovider")
    copy.run(sys.executable, "-m", "pytest", *quiet, "-k", which, "tests/test_dvc_yaml.py")


def change_params(folder: Path, drop: tuple[str, ...] = (), **new: object) -> None:
    yaml = YAML()
    params = yaml.load(folder / "params.yaml")
    for section in drop:
        del params[section]
    yaml.dump({**params, **new}, folder / "params.yaml")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name != QUICK else []) for name in OTHERS]
)
def test_a_pipeline_can_be_taken_away(tmp_path, name):
    copy = whole_copy(tmp_path)
    sections = tuple(PIPELINES[name].SECTIONS)
    assert f"`{sections[0]}." in markdown((ROOT / "params.yaml").read_text()), "control"
    copy.run("rm", "-r", f"stages/{name}")
    change_params(copy.folder, drop=sections)
    assert f"`{sections[0]}." not in copy.run("python", "-c", REFERENCE).text
    rest = [other for other in OTHERS if other != name]
    assert "stages to run" in copy.run("python", "-m", "stages.commands.plan", *rest, "--line").text
    run_own_tests(copy)


@pytest.mark.timeout(300)
def test_a_new_pipeline_is_found_in_the_plan_the_page_and_the_reference(tmp_path):
    copy = whole_copy(tmp_path)
    assert "toy" not in markdown((ROOT / "params.yaml").read_text()), "control"
    (copy.folder / "stages/toy").mkdir()
    for name, text in TOY.items():
        (copy.folder / "stages/toy" / name).write_text(text.lstrip())
    change_params(copy.folder, toy={"sizes": [2, 3]})
    copy.commit()
    row = "| `toy.sizes` | list of (whole number) | how large the toys are |"
    assert row in copy.run("python", "-c", REFERENCE).text
    plan = ("python", "-m", "stages.commands.plan", "toy", "--line")
    assert "2 stages to run" in copy.run(*plan).text
    assert copy.repro("stages/toy/dvc.yaml").run_at_all == ["toy_code", "toy"]
    assert "Nothing to run" in copy.run(*plan).text
    assert json.loads((copy.folder / "metrics/toy.json").read_text()) == {"size": 2.5}
    copy.run("python", "-m", "stages.workflow.page")
    html = (copy.folder / "metrics/report.html").read_text()
    assert "Toys have a size of 2.5" in html
    run_own_tests(copy, "toy")
