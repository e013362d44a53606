"""Copies of this project in which tests run the real pipeline with the real DVC, small enough for a minute."""

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

import psutil
import pytest
from dvc.cli import main as dvc
from dvc.utils.hydra import apply_overrides
from ruamel.yaml import YAML

from stages.commands import profile
from stages.workflow.stage.settings import owner_of, params_file
from tests.settings_files import lay_out_settings

ROOT = Path(__file__).parents[1]
CELL_STAGES = ("sample", "finetune", "movement", "mask", "evaluate")
SEED_STAGES = ("reference", "controls", "calibration", "ood")
RUNNER = ("python", "-m", "stages.workflow.run", "--workers", "2")
# what DVC and the runner say of a stage that runs, and DVC of one that comes back from its cache
FATES = {
    "runs": (r"^Running stage '(?:[^':]+:)?([^']+)':", r"^done (?:\S+:)?(\S+) \("),
    "cached": (r"^Stage '(?:[^':]+:)?([^']+)' is cached",),
}

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

# Python imports this by itself where it is on the path; with TEST_LOG a stage, also as a fork of the runner, notes which files it opens.
HOOK = """
import os, sys

notes = None

def note(path):
    global notes
    modules = (word.removeprefix("stages.") for word in sys.orig_argv if word.startswith("stages."))  # the runner sets it in forks
    stage = next((name for name in modules if not name.startswith("workflow.")), None)
    if notes is None and stage:
        notes = False  # this file is none of those
        notes = open(os.path.join(os.environ["TEST_LOG"], f"{stage}.{os.getpid()}"), "w", buffering=1)
    if notes:
        notes.write(os.path.relpath(os.fsdecode(path)) + "\\n")

def hear(event, details):
    if event == "open" and isinstance(details[0], str | bytes | os.PathLike) and details[1]:
        note(details[0])

def safe_open(path, *others, **named):  # which opens files behind Python's back
    note(path)
    return opens(path, *others, **named)

if os.environ.get("TEST_LOG"):
    import safetensors

    opens, safetensors.safe_open = safetensors.safe_open, safe_open
    sys.addaudithook(hear)
"""


@dataclass(frozen=True)
class Run:
    """The outcome of one command."""

    code: int
    text: str
    seconds: float

    def stages(self, fate: str) -> list[str]:
        """The stages that it says this of, without the file that they stand in."""
        return [name for words in FATES[fate] for name in re.findall(words, self.text, re.MULTILINE)]

    @property
    def executed(self) -> list[str]:
        """Stages whose command ran."""
        return self.stages("runs")

    @property
    def cached(self) -> list[str]:
        """Stages whose outputs came back from the run cache."""
        return self.stages("cached")


@dataclass(frozen=True)
class Copy:
    """One copy of the project, with a cache of its own."""

    folder: Path
    environment: dict[str, str] = field(repr=False)

    def start(self, *words: str, **more: str) -> subprocess.Popen:
        """Start a command in this copy; its output goes to a file beside the copy."""
        with self.folder.with_suffix(".txt").open("w") as output:
            pipes = {"stdout": output, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
            return subprocess.Popen(words, cwd=self.folder, env=self.environment | more, **pipes)

    def end(self, process: subprocess.Popen, fails: bool = False) -> Run:
        """Wait for a command; unless it `fails`, it has to succeed."""
        before = time.monotonic()
        code, text = process.wait(timeout=7200), self.folder.with_suffix(".txt").read_text()
        assert (code != 0) == fails, text
        return Run(code, text, time.monotonic() - before)

    def run(self, *words: str, fails: bool = False, **more: str) -> Run:
        """Run a command to its end."""
        return self.end(self.start(*words, **more), fails)

    def repro(self, *targets: str, fails: bool = False, **more: str) -> Run:
        """`dvc repro`, of everything in dvc.yaml or of these targets and what they need."""
        return self.run("dvc", "repro", *targets, fails=fails, **more)

    def set(self, *overrides: str) -> None:
        """Change settings as `dvc exp run -S` does, each in the file that has it."""
        for override in overrides:
            section = re.split(r"[.=]", override.lstrip("+~"))[0]
            apply_overrides(self.folder / params_file(owner_of(section)), [override])

    def commit(self) -> None:
        """Commit everything that git doesn't ignore."""
        self.run("git", "add", "-A")
        self.run("git", "commit", "-qm", "state")

    def lock(self) -> dict[str, Any]:
        """The entry of each stage in dvc.lock: command, settings, and MD5 of everything that went in and came out."""
        return YAML(typ="safe").load(self.folder / "dvc.lock")["stages"]

    def files(self, *places: str) -> dict[str, bytes]:
        """Content of every file under these folders, but for those that keep a folder in git."""
        found = (path for place in places for path in (self.folder / place).rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in found if path.name != ".gitkeep"}

    def at_work(self, words: str) -> list[psutil.Process]:
        """Processes that stand in this copy's folder and have these words in their command."""
        found = psutil.process_iter(["cmdline", "cwd"])
        here = (one for one in found if one.info["cwd"] == str(self.folder.resolve()))
        return [one for one in here if words in " ".join(one.info["cmdline"] or ())]


def of_tests(folder: Path) -> dict[str, str]:
    """An environment in which git and DVC run with the tests' own Python, and with nothing of the user's or of other tests."""
    names = {f"GIT_{who}_{what}": "test@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    site = {"DVC_SITE_CACHE_DIR": str(folder / "site"), "DVC_NO_ANALYTICS": "1"}
    return names | site | {"PATH": path, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'stages'}", "GIT_CONFIG_GLOBAL": os.devnull}


def lay_out_toy(patch: pytest.MonkeyPatch, files: dict[str, str]) -> Path:
    """Have the folder that a test stands in be a project under git and DVC with these files."""
    for name, value in of_tests(Path.cwd()).items():
        patch.setenv(name, value)
    for name, text in files.items():
        Path(name).write_text(text)
    subprocess.run(["git", "init", "-q", "-b", "main"], check=True)
    assert dvc(["init", "-q"]) == 0  # in this process, which spares its start
    return Path.cwd()


def wait_for(condition: Callable[[], Any], seconds: float = 300) -> Any:
    """The value of a condition as soon as it is true; it has to be within so many seconds."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def make_original(folder: Path, settings: dict[str, Any] = TINY) -> Copy:
    """Copy the project as it stands, also what isn't committed yet, with these settings, into a repository of its own."""
    (folder / "hook").mkdir()
    (folder / "hook/sitecustomize.py").write_text(HOOK)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("DVC", "GIT", "PYTHON", "PYTEST"))}
    own = {"PYTHONPATH": str(folder / "hook"), "HF_HUB_OFFLINE": "1", "COLUMNS": "100"}
    original = Copy(folder / "original", kept | of_tests(folder) | own)
    subprocess.run(["git", "init", "-q", "-b", "main", original.folder], check=True)
    # asked of the copy's own repository, since the project may lie in none
    command = ["git", f"--git-dir={original.folder / '.git'}", f"--work-tree={ROOT}", "ls-files", "-oz", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip("\0").split("\0")
    kept_folders = [str(file.relative_to(ROOT)) for file in ROOT.glob("m*/*/.gitkeep")]
    made = {name for name in names if name.startswith(("metrics/", "plots/")) or Path(name).name == "dvc.lock"}
    for name in {*names} - made | {*kept_folders}:
        (original.folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, original.folder / name)
    lay_out_settings(profile.profile_settings("bert_tiny"), settings, folder=original.folder)
    original.run("git", "add", "-f", *kept_folders)  # in folders that git ignores otherwise
    original.commit()
    return original


def clone(original: Copy, name: str) -> Copy:
    """A copy with an empty cache and nothing made yet."""
    copy = Copy(original.folder.with_name(name), original.environment)
    original.run("git", "clone", "-q", str(original.folder), str(copy.folder))
    return copy


def stages_of(*cells: str, of_cell: tuple[str, ...] = CELL_STAGES, of_seed: tuple[str, ...] = SEED_STAGES) -> set[str]:
    """Names of the stages of these cells, such as movies-13, and of those that take all tasks of their seeds at once."""
    seeds = {name.rpartition("-")[2] for name in cells}
    return {f"{stage}@{name}" for stage in of_cell for name in cells} | {
        f"{stage}@{seed}" for stage in of_seed for seed in seeds
    }


def fenced(page: str) -> list[tuple[str, str]]:
    """Language and content of every fenced block on a page of the project."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
