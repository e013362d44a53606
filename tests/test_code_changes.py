"""What a change of code makes anew: by the digests of a copy, and by DVC, with stages that only pretend to compute.

A pretended stage writes what its entry promises, and the digests of its own code into it: so what follows from an edit is
made anew, as if the edit had changed a result.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stages.commands.plan.stage_status import RUNS
from tests.dvc_project import TINY, TINY_STUDY, Copy, Run, make_original

ROOT = Path(__file__).parents[1]
FILES = ("dvc.yaml", "stages/study/dvc.yaml")
STUDY_CODE = "metrics/code/study"
# an axis, a value of it, the pipeline that has it, and how the plan calls that
SHELL = (("seeds", "13", "dvc.yaml"), ("sweep.localizers", "learned", "stages/study/dvc.yaml", "study"))
DIGESTS = """
import json
from pathlib import Path
from stages.code import code_digests
files = [Path("dvc.yaml"), *sorted(Path("stages").glob("*/dvc.yaml"))]
print(json.dumps({str(place): digests for file in files for place, digests in code_digests(file).items()}))
"""
PLAN = """
import json
from pathlib import Path
from stages.commands.plan.predicted_steps import predict_steps
print(json.dumps({step.name: [step.fate, step.reasons] for step in predict_steps([Path("dvc.yaml"), Path("stages/study/dvc.yaml")])}))
"""
ENTRIES = """
import json
from dvc.repo import Repo
stages = Repo().index.stages
print(json.dumps({stage.addressing: [[out.def_path for out in stage.outs],
                                     [dep.def_path for dep in stage.deps if not hasattr(dep, "params")]] for stage in stages}))
"""
PRETEND = f"""#!{sys.executable} -S
import json, os, sys
if sys.argv[1] == "-c" or sys.argv[2] in ("stages.code", "stages.commands.plan"):
    os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])
with open(os.environ["ENTRIES"]) as file:
    entries = json.load(file)
outs, deps = entries[os.environ["DVC_STAGE"]]
says = "".join(open(dep).read() for dep in deps if dep.startswith("metrics/code/"))
asked_for = {{dep for _, deps in entries.values() for dep in deps}}
for out in outs:
    for path in [out, *(dep for dep in asked_for if dep.startswith(out + "/"))]:
        if "." in os.path.basename(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write(says)
        else:
            os.makedirs(path, exist_ok=True)
            with open(path + "/content.txt", "w") as file:
                file.write(says)
"""


def digests(folder: Path) -> dict[str, dict[str, str]]:
    command = [sys.executable, "-c", DIGESTS]
    return json.loads(subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout)


def edit(file: Path, *change: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert change[0] in text
    file.write_text(text.replace(*change, 1), encoding="utf-8")


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
    with (copy / "stages/talos/task_vectors.py").open("a", encoding="utf-8") as file:
        file.write("MORE = 1\n")
    edits = {place for place in before if place.startswith("metrics/code/talos/edit/")}
    assert changed(copy, before) == edits != set()
    with (copy / "stages/talos/claims.yaml").open("a", encoding="utf-8") as file:
        file.write("\n")
    assert changed(copy, before) == edits | {"metrics/code/talos/talos.json"}


def test_a_new_localizer_changes_no_digest_but_adds_its_own(copy):
    before = digests(copy)
    add_localizer(copy)
    edit(copy / "params.yaml", "  random: {}", "  drawn: {}\n  random: {}")
    edit(copy / "params.yaml", "  - random\n", "  - random\n  - drawn\n")
    assert changed(copy, before) == {f"{STUDY_CODE}/{stage}/drawn.json" for stage in ("rank", "sweep")}


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> dict[str, Any]:
    """A copy through edits of its code: each with what was planned, and what DVC then did."""
    folder = tmp_path_factory.mktemp("code")
    original = make_original(folder, TINY | TINY_STUDY)
    (folder / "bin").mkdir()
    (folder / "bin/python").write_text(PRETEND)
    (folder / "bin/python").chmod(0o755)
    path = f"{folder / 'bin'}{os.pathsep}{original.environment['PATH']}"
    copy = Copy(original.folder, original.environment | {"PATH": path, "ENTRIES": str(folder / "entries.json")})
    steps: dict[str, Any] = {"copy": copy}

    def repro(name: str) -> None:
        (folder / "entries.json").write_text(json.dumps(said(copy, ENTRIES)))
        plan = said(copy, PLAN)
        steps[name] = {stage: reasons for stage, (fate, reasons) in plan.items() if fate == RUNS}, copy.repro(*FILES)

    repro("first")
    repro("nothing")
    for file in ("readouts.py", "wise.py"):
        reword(copy.folder / "stages/study" / file)
    repro("words")
    with (copy.folder / "stages/study/readouts.py").open("a") as file:
        file.write("MORE = 1\n")
    repro("code")
    add_localizer(copy.folder)
    copy.set("+localizer.drawn={}", "sweep.localizers=[learned,random,drawn]")
    repro("localizer")
    copy.commit()
    with (copy.folder / "stages/lib/graft/select.py").open("a") as file:
        file.write("MORE = 1\n")
    steps["due"] = said(copy, PLAN)
    steps["accepted"] = copy.run("bash", "-ec", recipe()).text
    repro("committed")
    steps["shell"] = {axis: refused(copy, axis, *words) for axis, *words in SHELL}
    return steps


def refused(copy: Copy, axis: str, value: str, file: str, *plan: str) -> tuple[bool, Run, Run]:
    """Whether a command on an axis was executed, and what `dvc repro` of a file and the plan say of it."""
    params, marker = copy.folder / "params.yaml", copy.folder / "touched"
    before = params.read_bytes()
    copy.set(f"{axis}=['{value} $(touch {marker})']")
    runs = copy.repro(file, fails=True), copy.run("python", "-m", "stages.commands.plan", *plan, "--line", fails=True)
    params.write_bytes(before)
    return marker.exists(), *runs


def said(copy: Copy, program: str) -> Any:
    return json.loads(copy.run("python", "-c", program).text.splitlines()[-1])


def recipe() -> str:
    """The commands of CONTRIBUTING.md that accept an edit which changes no result."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return next(block for block in blocks if "dvc commit" in block)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("nothing", set()),
        ("words", {"study_code"}),
        ("code", {"study_code", "readout@reset-learned-0.01-13", "readout@retrain-learned-0.01-13", "study"}),
        ("localizer", {"code", "study_code", "rank@drawn-13", "sweep@drawn-0.01-13", "study"}),
        ("committed", set()),
    ],
)
def test_exactly_what_an_edit_concerns_is_planned_and_made_anew(story, step, expected):
    planned, run = story[step]
    assert {*planned} == {*run.run_at_all} == expected
    assert run.cached == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("axis", [axis for axis, *_ in SHELL])
def test_what_stands_on_an_axis_never_reaches_a_shell_also_where_nothing_else_changed(story, axis):
    touched, run, planned = story["shell"][axis]
    assert len(run.run_at_all) == 1 and run.run_at_all[0].endswith("code") and not touched
    assert all(f"{axis}.0: '" in said.text and "Traceback" not in said.text for said in (run, planned))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_first_plan_names_all_that_runs_and_a_later_one_the_files_that_changed(story):
    planned, run = story["first"]
    assert {*planned} == {*run.run_at_all} and len(planned) > 20
    assert story["code"][0]["readout@reset-learned-0.01-13"] == ["stages/study/readouts.py"]
    assert len([name for name, (fate, _) in story["due"].items() if fate == RUNS]) > 10
    assert "up to date" in story["accepted"]
