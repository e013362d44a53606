"""Copies of this project in which tests run the real pipeline with the real DVC, small enough for a minute."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from dvc.cli import main as dvc
from dvc.utils.hydra import apply_overrides
from ruamel.yaml import YAML

from stages.commands import profile
from stages.workflow.core.settings import owner_of, params_file
from tests.settings_files import lay_out_settings

ROOT = Path(__file__).parents[1]
CELL_STAGES = ("sample", "finetune", "movement", "mask", "evaluate")
SEED_STAGES = ("reference", "controls", "calibration", "ood")
RUNS, CACHED, UNCHANGED = "runs", "cached", "unchanged"
WORDS = {RUNS: "Running stage '%s':", CACHED: "Stage '%s' is cached", UNCHANGED: "Stage '%s' didn't change"}
BY_RUNNER = r"done (?:\S+:)?(\S+) \("
PLAN = """
import json, sys
from stages.workflow.plan import reasons_of
print(json.dumps(reasons_of(sys.argv[1:])))
"""

# The profile bert_tiny, made smaller.
TINY = {
    "tasks": ["movies"],
    "seeds": [13],
    "data": {"k": 8, "test_max": 60},
    "runtime": {"threads": 1},
    "finetune": {"max_steps": 20},
    "localizer": {"learned": {"steps": 4}},
    "ood": {"sets": {"movies": ["products"]}, "test_max": 60},
}

# Python imports this module by itself wherever it is on the path.  Without the variables it does nothing; with them
# a stage notes which files it opens, also as a fork of the runner, or a stage that is no fork is torn apart where it is about to
# give an output its final name.
HOOK = """
import os, signal, sys

notes = None

def stage():
    modules = (word.removeprefix("stages.") for word in sys.orig_argv if word.startswith("stages."))  # the runner sets it in forks
    return next((name for name in modules if not name.startswith("workflow.")), None)

def note(path):
    global notes
    if notes is None and os.environ.get("TEST_LOG") and stage():
        notes = False  # this file is none of those
        notes = open(os.path.join(os.environ["TEST_LOG"], f"{stage()}.{os.getpid()}"), "w", buffering=1)
    if notes:
        notes.write(os.path.relpath(os.fsdecode(path)) + "\\n")

def hear(event, details):
    if event == "open" and isinstance(details[0], str | bytes | os.PathLike) and details[1]:
        note(details[0])

def safe_open(path, *others, **named):
    note(path)
    return opens(path, *others, **named)

if os.environ.get("TEST_LOG"):
    import safetensors

    opens, safetensors.safe_open = safetensors.safe_open, safe_open  # which opens files behind Python's back
    sys.addaudithook(hear)

def tear(place):
    inside = (os.path.join(folder, name) for folder, _, names in os.walk(place) for name in names)
    for path in [place] if os.path.isfile(place) else inside:
        os.truncate(path, os.path.getsize(path) // 2)
    os.kill(os.getpid(), signal.SIGKILL)

replace, target = os.replace, os.environ.get("TEST_TARGET")

def hooked(source, destination, **rest):
    if os.fspath(destination) == target:
        tear(source)
    return replace(source, destination, **rest)

if stage() and target:
    os.replace = hooked
"""


@dataclass(frozen=True)
class Run:
    """The outcome of one command of DVC."""

    code: int
    text: str
    seconds: float

    @property
    def fates(self) -> dict[str, str]:
        """The outcome of each stage, without the file that it stands in."""
        words = {line.replace("%s", "(?:[^':]+:)?([^']+)"): fate for fate, line in WORDS.items()} | {BY_RUNNER: RUNS}
        return {name: fate for line, fate in words.items() for name in re.findall(f"^{line}", self.text, re.MULTILINE)}

    @property
    def executed(self) -> list[str]:
        """Stages whose command ran."""
        return [name for name, fate in self.fates.items() if fate == RUNS]

    @property
    def cached(self) -> list[str]:
        """Stages whose outputs came back from the run cache."""
        return [name for name, fate in self.fates.items() if fate == CACHED]


@dataclass(frozen=True)
class Step:
    """One run of a copy, and the state after it."""

    run: Run
    lock: dict[str, Any]
    files: dict[str, bytes]


@dataclass(frozen=True)
class Copy:
    """One copy of the project, with a cache of its own."""

    folder: Path
    environment: dict[str, str] = field(repr=False)

    def start(self, *words: str, **more: str) -> subprocess.Popen:
        """Start a command in this copy; its output goes to output.txt beside the copy."""
        variables = self.environment | more
        with self.folder.with_suffix(".txt").open("w") as output:
            pipes = {"stdout": output, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
            return subprocess.Popen(words, cwd=self.folder, env=variables, **pipes)

    def run(self, *words: str, fails: bool = False, **more: str) -> Run:
        """Run a command to its end; unless it `fails`, it has to succeed."""
        before = time.monotonic()
        with self.start(*words, **more) as process:
            code = process.wait(timeout=7200)
        text = self.folder.with_suffix(".txt").read_text()
        assert (code != 0) == fails, text
        return Run(code, text, time.monotonic() - before)

    def repro(self, *targets: str, fails: bool = False, **more: str) -> Run:
        """`dvc repro`, of everything in dvc.yaml or of these targets and what they need."""
        return self.run("dvc", "repro", *targets, fails=fails, **more)

    def plan(self, *files: str) -> dict[str, list[str]]:
        """Why each stage of these pipelines would be looked at again."""
        return json.loads(self.run("python", "-c", PLAN, *files).text.splitlines()[-1])

    def set(self, *overrides: str) -> None:
        """Change settings as `dvc exp run -S` does, each in the file that has it."""
        for override in overrides:
            section = re.split(r"[.=]", override.lstrip("+~"))[0]
            apply_overrides(self.folder / params_file(owner_of(section)), [override])

    def commit(self) -> None:
        """Commit everything that git doesn't ignore."""
        self.run("git", "add", "-A")
        self.run("git", "commit", "-qm", "state")

    def lock(self, folder: str = ".") -> dict[str, Any]:
        """The entry of each stage in dvc.lock: command, settings, and MD5 of everything that went in and came out."""
        return YAML(typ="safe").load(self.folder / folder / "dvc.lock")["stages"]

    def files(self, *places: str) -> dict[str, bytes]:
        """Content of every file under these folders, but for those that keep a folder in git."""
        found = (path for place in places for path in (self.folder / place).rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in found if path.name != ".gitkeep"}


def environment(folder: Path) -> dict[str, str]:
    """This process's environment with the tests' own Python first and nothing of the user's git or DVC settings."""
    hook = folder / "hook"
    hook.mkdir(exist_ok=True)
    (hook / "sitecustomize.py").write_text(HOOK)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("DVC", "GIT", "PYTHON", "PYTEST"))}
    return kept | of_tests(folder) | {
        "PYTHONPATH": str(hook), "HF_HUB_OFFLINE": "1", "COLUMNS": "100",
    }  # fmt: skip


def of_tests(folder: Path) -> dict[str, str]:
    """An environment in which git and DVC run with the tests' own Python, and with nothing of the user's or of other tests."""
    names = {f"GIT_{who}_{what}": "test@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    site = {"DVC_SITE_CACHE_DIR": str(folder / "site"), "DVC_NO_ANALYTICS": "1"}
    return names | site | {"PATH": path, "PYTHONPATH": str(ROOT), "GIT_CONFIG_GLOBAL": os.devnull}


def lay_out_toy(patch: pytest.MonkeyPatch, files: dict[str, str]) -> Path:
    """Have the folder that a test stands in be a project under git and DVC with these files."""
    for name, value in of_tests(Path.cwd()).items():
        patch.setenv(name, value)
    for name, text in files.items():
        Path(name).write_text(text)
    subprocess.run(["git", "init", "-q", "-b", "main"], check=True)
    assert dvc(["init", "-q"]) == 0  # in this process, which spares its start
    return Path.cwd()


def lay_out_cell(cell: Any) -> dict[str, Any]:
    """Have the folder that a test stands in be a project with all code and the pico cell toy-13; gives its settings."""
    from tests.pico import TOY

    shutil.copytree(ROOT / "stages", "stages", ignore=shutil.ignore_patterns("__pycache__", "dvc.lock"))
    shutil.copyfile(ROOT / "dvc.yaml", "dvc.yaml")
    cell.lay_out(13)
    values = YAML().load(ROOT / "params.yaml")
    values["ood"]["sets"] = {}
    return values | {"tasks": ["toy"], "seeds": [13], "task": {"toy": TOY.model_dump()}}


def start_stage(stage: str, values: dict[str, Any]) -> subprocess.Popen:
    """Start a stage of the cell toy-13 with these settings."""
    YAML().dump(values, Path("params.yaml"))
    variables = {key: value for key, value in os.environ.items() if not key.startswith("DVC")}
    return subprocess.Popen(
        [sys.executable, "-m", f"stages.{stage}", "--task", "toy", "--seed", "13"], text=True,
        env=variables | {"PYTHONPATH": os.getcwd()}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def wait_for(condition: Callable[[], Any], seconds: float = 300) -> Any:
    """The value of a condition as soon as it is true; it has to be within so many seconds."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def bash_blocks(page: str) -> list[str]:
    """The blocks of commands on a page of the project."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def make_original(folder: Path, settings: dict[str, Any] = TINY) -> Copy:
    """Copy the project as it stands, also what isn't committed yet, with tiny settings, into a repository of its own."""
    original = Copy(folder / "original", environment(folder))
    command = ["git", "ls-files", "-coz", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [name for name in listed.split("\0") if (ROOT / name).is_file()]
    kept = [name for name in names if name.endswith("/.gitkeep")]
    made = {name for name in names if name.startswith(("metrics/", "plots/")) or Path(name).name == "dvc.lock"}
    for name in [*kept, *(name for name in names if name not in made)]:
        (original.folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, original.folder / name)
    lay_out_settings(profile.profile_settings("bert_tiny"), settings, folder=original.folder)
    original.run("git", "init", "-q", "-b", "main")
    original.run("git", "add", "-f", *kept)  # in folders that git ignores otherwise
    original.commit()
    return original


def clone(original: Copy, name: str) -> Copy:
    """A copy with an empty cache and nothing made yet."""
    copy = Copy(original.folder.with_name(name), original.environment)
    original.run("git", "clone", "-q", str(original.folder), str(copy.folder))
    return copy


def twin(copy: Copy, name: str) -> Copy:
    """A copy of a copy, with its cache and everything made so far."""
    other = Copy(copy.folder.with_name(name), copy.environment)
    shutil.copytree(copy.folder, other.folder, symlinks=True)
    return other


def cell(*names: str, stages: tuple[str, ...] = CELL_STAGES, of_seeds: tuple[str, ...] = SEED_STAGES) -> set[str]:
    """Stage names of these cells, such as movies-13, and those of their seeds."""
    of_cells = {f"{stage}@{name}" for name in names for stage in stages}
    return of_cells | per_seed(*{name.rpartition("-")[2] for name in names}, stages=of_seeds)


def per_seed(*seeds: str, stages: tuple[str, ...] = SEED_STAGES) -> set[str]:
    """Names of the stages that take all tasks of a seed at once."""
    return {f"{stage}@{seed}" for stage in stages for seed in seeds}
