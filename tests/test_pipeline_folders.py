"""A pipeline is a folder: one can be taken away, and a new one is found everywhere."""

import json
import sys
from pathlib import Path

import pytest

from stages.workflow.core.settings import PIPELINES
from tests.dvc_project import TINY, TINY_STUDY, Copy, make_original
from tests.settings_files import lay_out_settings

SETTINGS = ("python", "-m", "stages.workflow.core.settings")
OTHERS = [name for name in PIPELINES if name]
QUICK = "talos"

TOY = {
    "__init__.py": "",
    "settings.py": """
from stages.lib.settings import Section

class ToyParams(Section):
    sizes: list[int]

SECTIONS = {"toy": ToyParams}

def problems(values):
    return [] if values["toy"].sizes else ["toy.sizes: there is no toy"]
""",
    "params.yaml": """
toy:
  sizes:
  - 2
  - 3
""",
    "toy.py": '''
"""toy: how large toys are."""

from pathlib import Path

from stages.workflow.core.settings import load_params
from stages.workflow.core.stage import stage

@stage
def main() -> None:
    """Report the sizes."""
    params = load_params("toy")

    from stages.toy.frames import collect
    from stages.workflow.report.publish import publish

    publish("toy", collect(params), Path("stages/toy"), Path("plots/toy"))

if __name__ == "__main__":
    main()
''',
    "frames.py": """
import pandas as pd

def collect(params):
    return {"toys": pd.DataFrame({"toy": "all", "size": params.toy.sizes})}

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
  toy:
    wdir: ../..
    cmd: exec python -m stages.toy.toy
    deps:
      - stages/toy/toy.py
      - stages/toy/frames.py
      - stages/toy/report.yaml
      - stages/toy/settings.py
      - stages/workflow/core
      - stages/workflow/report
      - stages/lib
    params: [{stages/toy/params.yaml: [toy]}]
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
    lay_out_settings(folder=copy.folder)
    return copy


def run_own_tests(copy: Copy, which: str = "") -> None:
    """The tests of every dvc.yaml, as the copy has them; they have to pass."""
    quiet = ("--noconftest", "-p", "no:cacheprovider")
    copy.run(sys.executable, "-m", "pytest", *quiet, "-k", which, "tests/test_dvc_yaml.py")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name != QUICK else []) for name in OTHERS]
)
def test_a_pipeline_can_be_taken_away(tmp_path, name):
    copy = whole_copy(tmp_path)
    section = next(iter(PIPELINES[name].SECTIONS))
    assert f'"{section}": {{' in copy.run(*SETTINGS).text, "control"
    copy.run("rm", "-r", f"stages/{name}")
    assert f'"{section}": {{' not in copy.run(*SETTINGS).text
    rest = [other for other in OTHERS if other != name]
    assert "stages to run" in copy.run("python", "-m", "stages.workflow.plan", *rest).text
    run_own_tests(copy)


@pytest.mark.timeout(300)
def test_a_new_pipeline_is_found_in_the_plan_the_page_and_the_settings(tmp_path):
    copy = whole_copy(tmp_path)
    assert '"toy": {' not in copy.run(*SETTINGS).text, "control"
    (copy.folder / "stages/toy").mkdir()
    for name, text in TOY.items():
        (copy.folder / "stages/toy" / name).write_text(text.lstrip())
    copy.commit()
    assert '"toy": {' in copy.run(*SETTINGS).text
    plan = ("python", "-m", "stages.workflow.plan", "toy")
    assert "1 of 1 stages to run" in copy.run(*plan).text
    assert copy.repro("stages/toy/dvc.yaml").run_at_all == ["toy"]
    assert "Nothing to run" in copy.run(*plan).text
    assert json.loads((copy.folder / "metrics/toy.json").read_text()) == {"size": 2.5}
    copy.run("python", "-m", "stages.workflow.page")
    html = (copy.folder / "metrics/report.html").read_text()
    assert "Toys have a size of 2.5" in html
    run_own_tests(copy, "toy")
