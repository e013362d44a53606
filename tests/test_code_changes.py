"""The stages that a change of code makes anew: by the digests of a copy, and by DVC, with stages that only pretend to compute."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stages.commands.plan.stage_status import CACHED, RUNS
from tests.dvc_project import ROOT, TINY, TINY_STUDY, Copy, Run, bash_blocks
from tests.pretended import pretended

FILES = ("dvc.yaml", "stages/study/dvc.yaml")
# an axis, a value of it, the pipeline that has it, and how the plan calls that
SHELL = (("seeds", "13", "dvc.yaml"), ("sweep.localizers", "learned", "stages/study/dvc.yaml", "study"))
DIGESTS = """
import json
from pathlib import Path
from stages.code import code_digests
files = [Path("dvc.yaml"), *sorted(Path("stages").glob("*/dvc.yaml"))]
print(json.dumps({str(place): digests for file in files for place, digests in code_digests(file).items()}))
"""


def digests(folder: Path) -> dict[str, dict[str, str]]:
    command = [sys.executable, "-c", DIGESTS]
    return json.loads(subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout)


def append(file: Path, text: str = "MORE = 1\n") -> None:
    file.write_text(file.read_text(encoding="utf-8") + text, encoding="utf-8")


def reword(file: Path) -> None:
    """Another docstring at the top, a comment, and lines put apart."""
    text = re.sub(r'\A""".*?"""\n', '"""In other words."""\n', file.read_text(encoding="utf-8"), flags=re.DOTALL)
    file.write_text(text + "\n\n# a remark\n", encoding="utf-8")


def add_localizer(folder: Path) -> None:
    """A localizer in a file of its own."""
    file = folder / "stages/lib/localizers/random.py"
    shutil.copy(file, file.with_name("drawn.py"))


@pytest.fixture
def copy(tmp_path) -> Path:
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "stages", tmp_path / "stages", ignore=shutil.ignore_patterns("__pycache__", "dvc.lock"))
    return tmp_path


def changed(folder: Path, before: dict[str, dict[str, str]]) -> set[str]:
    after = digests(folder)
    return {place for place in before | after if before.get(place) != after.get(place)}


def test_other_words_change_no_digest_and_an_edit_those_of_its_stages(copy):
    before = digests(copy)
    for file in ("stages/talos/task_vectors.py", "stages/lib/graft/select.py", "stages/mask.py"):
        reword(copy / file)
    assert changed(copy, before) == set()
    append(copy / "stages/talos/task_vectors.py")
    edits = {place for place in before if place.startswith("metrics/code/talos/edit/")}
    assert changed(copy, before) == edits != set()
    append(copy / "stages/talos/report.yaml", "\n")
    assert changed(copy, before) == edits | {"metrics/code/talos/talos.json"}


def test_a_new_localizer_changes_no_digest_but_adds_its_own(copy):
    before, params = digests(copy), copy / "params.yaml"
    add_localizer(copy)
    text = params.read_text(encoding="utf-8")
    for change in (("  random: {}", "  drawn: {}\n  random: {}"), ("  - random\n", "  - random\n  - drawn\n")):
        assert change[0] in text
        text = text.replace(*change, 1)
    params.write_text(text, encoding="utf-8")
    assert changed(copy, before) == {f"metrics/code/study/{stage}/drawn.json" for stage in ("rank", "sweep")}


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> dict[str, Any]:
    """A copy through edits of its code: each with what was planned, and what DVC then did."""
    copy = pretended(tmp_path_factory.mktemp("code"), TINY | TINY_STUDY)
    steps: dict[str, Any] = {"first": copy.planned(*FILES), "nothing": copy.planned(*FILES)}
    for file in ("readouts.py", "wise.py"):
        reword(copy.folder / "stages/study" / file)
    steps["words"] = copy.planned(*FILES)
    append(copy.folder / "stages/study/readouts.py")
    steps["code"] = copy.planned(*FILES)
    add_localizer(copy.folder)
    copy.set("+localizer.drawn={}", "sweep.localizers=[learned,random,drawn]")
    steps["localizer"] = copy.planned(*FILES)
    copy.commit()
    append(copy.folder / "stages/lib/graft/select.py")
    steps["due"] = copy.plan(*FILES)
    # the commands that accept an edit which changes no result
    [recipe] = [block for block in bash_blocks("CONTRIBUTING.md") if "dvc commit" in block]
    steps["accepted"] = copy.run("bash", "-ec", recipe).text
    steps["committed"] = copy.planned(*FILES)
    steps["shell"] = {axis: refused(copy, axis, *words) for axis, *words in SHELL}
    return steps


def refused(copy: Copy, axis: str, value: str, file: str, *plan: str) -> tuple[bool, Run, Run]:
    """Is a command on an axis executed, and the runs of `dvc repro` of a file and of the plan that should refuse it."""
    params, marker = copy.folder / "params.yaml", copy.folder / "touched"
    before = params.read_bytes()
    copy.set(f"{axis}=['{value} $(touch {marker})']")
    runs = copy.repro(file, fails=True), copy.run("python", "-m", "stages.commands.plan", *plan, "--line", fails=True)
    params.write_bytes(before)
    return marker.exists(), *runs


EXPECTED = {
    "nothing": set(),
    "words": {"study_code"},
    "code": {"study_code", "readout@reset-learned-0.01-13", "readout@retrain-learned-0.01-13", "study"},
    "localizer": {"code", "study_code", "rank@drawn-13", "sweep@drawn-0.01-13", "study"},
    "committed": set(),
}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("step", "expected"), EXPECTED.items())
def test_exactly_what_an_edit_concerns_is_planned_and_made_anew(story, step, expected):
    plan, run = story[step]
    assert {stage for stage, (fate, _) in plan.items() if fate == RUNS} == {*run.run_at_all} == expected
    assert CACHED not in run.fates.values()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_what_stands_on_an_axis_never_reaches_a_shell_also_where_nothing_else_changed(story):
    for axis, (touched, run, planned) in story["shell"].items():
        assert len(run.run_at_all) == 1 and run.run_at_all[0].endswith("code") and not touched
        assert all(f"{axis}.0: '" in said.text and "Traceback" not in said.text for said in (run, planned))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_first_plan_names_all_that_runs_and_a_later_one_the_files_that_changed(story):
    plan, run = story["first"]
    assert {*plan} == {*run.run_at_all} and len(plan) > 20
    assert story["code"][0]["readout@reset-learned-0.01-13"] == [RUNS, ["stages/study/readouts.py"]]
    assert len([name for name, (fate, _) in story["due"].items() if fate == RUNS]) > 10
    assert "up to date" in story["accepted"]
