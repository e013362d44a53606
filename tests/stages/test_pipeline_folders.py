"""A pipeline is a folder: one can be taken away, and a new one is found everywhere.  What DVC records of a stage is what it ran with."""

import json
import re
import sys
from contextlib import nullcontext
from pathlib import Path

import networkx as nx
import pytest
from dvc.repo import Repo
from dvc.utils.hydra import apply_overrides

from skill_grafting.errors import GraftError
from stages.workflow.core import settings, stage
from stages.workflow.core.settings import PIPELINES
from tests.dvc_project import ROOT, Copy, make_original
from tests.imports import imports
from tests.settings_files import lay_out_settings

SETTINGS = ("python", "-m", "stages.workflow.core.settings")
# several modules in one process, which spares imports
MODULES = "import json, runpy, sys\nfor sys.argv in json.loads(sys.argv[1]): runpy.run_module(sys.argv[0], run_name='__main__')"
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]  # of a library of DVC

OTHERS = [name for name in PIPELINES if name]

TOY = {
    "__init__.py": "",
    "settings.py": """
from skill_grafting.settings import Section

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

import os
from pathlib import Path

import pandas as pd

from stages.workflow.core.settings import load_params
from stages.workflow.core.stage import stage
from stages.workflow.report.publish import publish

def derive(frames):
    return frames

@stage
def main() -> None:
    """Report the sizes."""
    params = load_params("toy")
    params.localizer = None  # stages that are about one localizer put its settings there
    frames = {"toys": pd.DataFrame({"toy": "all", "size": params.toy.sizes})}
    if edit := os.environ.get("TEST_EDIT"):
        file, old, new = edit.split("|")
        text = Path(file).read_text()
        assert old in text
        Path(file).write_text(text.replace(old, new, 1))
    publish("toy", frames, Path("stages/toy"), Path("plots/toy"))

if __name__ == "__main__":
    main()
''',
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
      - stages/toy/report.yaml
      - stages/toy/settings.py
      - stages/workflow/core
      - stages/workflow/report
      - stages/skill_grafting
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
    copy = make_original(folder)
    lay_out_settings(folder=copy.folder)
    return copy


def run_own_tests(copy: Copy, which: str = "") -> None:
    """The tests of every dvc.yaml, as the copy has them; they have to pass."""
    quiet = ("--noconftest", "-p", "no:cacheprovider")
    copy.run(sys.executable, "-m", "pytest", *quiet, "-k", which, "tests/test_dvc_yaml.py")


@pytest.mark.parametrize("name", OTHERS)
def test_nothing_outside_a_pipeline_s_folder_imports_it(name):
    folder, modules = Path("stages", name), [path.relative_to(ROOT) for path in (ROOT / "stages").rglob("*.py")]
    into = {path for path in modules if any(folder in other.parents for other in imports(path))}
    assert into and {path for path in into if folder not in path.parents} == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_a_pipeline_can_be_taken_away(tmp_path, name):
    copy = whole_copy(tmp_path)
    assert f"of {len(OTHERS)} more pipelines" in copy.run(*SETTINGS).text, "control"
    copy.run("rm", "-r", f"stages/{name}")
    assert f"of {len(OTHERS) - 1} more pipelines" in copy.run(*SETTINGS).text
    rest = [other for other in OTHERS if other != name]
    assert "stages to run" in copy.run("python", "-m", "stages.workflow.plan", *rest).text
    run_own_tests(copy)


# stages of the main pipeline that each needs
MODELS = {"fetch", "model", "sample", "finetune"}
MASKS = MODELS | {"movement", "mask", "reference"}
NEEDS = {
    "study": MASKS,
    "multitask": MODELS | {"reference"},
    "continual": MASKS,
    "merge": MASKS | {"controls", "evaluate"},
    "talos": MASKS,
    "surgical": MASKS - {"reference"},
}


@pytest.mark.parametrize("name", OTHERS)
def test_one_command_needs_a_pipeline_s_own_stages_and_few_of_the_main_one(graph, name):
    own = [stage for stage in graph if stage.path_in_repo == f"stages/{name}/dvc.yaml"]
    before = {needed for stage in own for needed in nx.descendants(graph, stage)} - {*own}
    assert own and {stage.name.partition("@")[0] for stage in before} == NEEDS[name]
    assert {stage.path_in_repo for stage in before} == {"dvc.yaml"}, "no stage of another pipeline"


@pytest.fixture(scope="module")
def graph() -> nx.DiGraph:
    with Repo(str(ROOT)) as repo:
        return repo.index.graph


# --- A pipeline more -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Copy:
    """A copy with a pipeline of its own, which has run."""
    copy = whole_copy(tmp_path_factory.mktemp("toy"))
    (copy.folder / "stages/toy").mkdir()
    for name, text in TOY.items():
        (copy.folder / "stages/toy" / name).write_text(text.lstrip())
    assert copy.repro("stages/toy/dvc.yaml").executed == ["toy"]
    copy.commit()
    return copy


@pytest.fixture
def copy(toy) -> Copy:
    toy.run("git", "checkout", "-q", ".")
    return toy


def test_a_new_pipeline_is_found_in_the_plan_the_page_and_the_settings(copy):
    words = [["stages.workflow.core.settings"], ["stages.workflow.plan", "toy"], ["stages.workflow.page"]]
    told = copy.run("python", "-c", MODULES, json.dumps(words)).text
    assert f"of {len(OTHERS) + 1} more pipelines" in told and "Nothing to run: 1 stages are up to date." in told
    assert json.loads((copy.folder / "metrics/toy.json").read_text()) == {"size": 2.5}
    assert "Toys have a size of 2.5" in (copy.folder / "metrics/report.html").read_text()


@pytest.mark.slow
def test_the_tests_of_every_dvc_yaml_are_of_a_new_one_too(copy):
    run_own_tests(copy, "toy")


# --- Edits in the course of a stage ----------------------------------------------------------------------------

SETTING = "stages/toy/params.yaml|sizes:\n  - 2|sizes:\n  - 9"
SAID = "edited while this ran; nothing is recorded, run `dvc repro` again"
SPARSITY, BINS = "graft.sparsity=0.02", "calibration.bins=10"
EDITS = {
    "a setting": (SPARSITY, "params.yaml: graft"),
    "a module": ("stages/skill_grafting/errors.py", "stages/skill_grafting/errors.py"),
    "a table of tasks": ("stages/skill_grafting/data/tasks.yaml", "stages/skill_grafting/data/tasks.yaml"),
    "code that it has not read": ("stages/commands/profile.py", ""),
    "a setting that it has not read": (BINS, ""),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_of_what_a_stage_has_read_is_an_error_and_any_other_is_none(project, monkeypatch, edit):
    what, place = EDITS[edit]
    lay_out_settings()
    monkeypatch.setattr(settings, "READ", [])
    monkeypatch.delitem(sys.modules, "stages.commands.profile")
    settings.load_params("graft")
    before = stage.code_digests()
    stage.require_unchanged(before)
    if "=" in what:
        apply_overrides("params.yaml", [what])
    else:
        monkeypatch.setattr(stage, "code_digests", lambda: before | {str(ROOT / what): "another"})
    with pytest.raises(GraftError, match=f"^{re.escape(f'{place}: {SAID}')}$") if place else nullcontext():
        stage.require_unchanged(before)


@pytest.mark.parametrize("by_dvc", [True, False])
def test_a_stage_that_dvc_started_looks_for_edits_and_one_that_nobody_records_does_not(project, monkeypatch, by_dvc):
    looked = []
    monkeypatch.setattr(stage, "require_unchanged", looked.append)
    monkeypatch.setattr(settings, "require_known", lambda *_: None)
    monkeypatch.delenv("DVC_STAGE", raising=False)
    if by_dvc:
        monkeypatch.setenv("DVC_STAGE", "toy")
    stage._run(lambda: None, "stages.toy.toy", "toy", {})
    assert looked == [stage.code_digests()] * by_dvc


def test_dvc_records_nothing_of_a_run_under_settings_that_changed_on_its_way(copy):
    before = copy.lock("stages/toy")
    file = copy.folder / "stages/toy/params.yaml"
    file.write_text(file.read_text().replace("3", "4"))
    stopped = copy.repro("stages/toy/dvc.yaml", fails=True, TEST_EDIT=SETTING)
    assert f"stages/toy/params.yaml: toy: {SAID}" in stopped.text and copy.lock("stages/toy") == before
    assert copy.repro("stages/toy/dvc.yaml").executed == ["toy"]
    assert json.loads((copy.folder / "metrics/toy.json").read_text()) == {"size": 6.5}
    assert copy.lock("stages/toy")["toy"]["params"]["stages/toy/params.yaml"] == {"toy": {"sizes": [9, 4]}}
