"""Copies of the project in which all pipelines run at the settings of the profile `whole`."""

from pathlib import Path

import psutil

from stages.commands import profile
from tests.dvc_project import Copy, clone, make_original
from tests.settings_files import lay_out_settings

# what task arithmetic costs is measured in seconds, too
TIMED = ("metrics/edit/", "metrics/talos", "plots/talos")
EVERYTHING = ("dvc", "repro", "--all-pipelines")
# sets a dvc.lock aside that a kill cut short, of any pipeline
READABLE = ("python", "-m", "stages.workflow.plan", "study")


def fresh_copies(folder: Path, *names: str) -> list[Copy]:
    """Copies of the project, in which nothing has run yet."""
    original = make_original(folder, profile.profile_settings("whole"))
    copies = [clone(original, name) for name in names]
    for copy in copies:
        lay_out_settings(folder=copy.folder)
        copy.run("python", "-m", "stages.commands.profile", "whole")
    return copies


def differences(one: Copy, other: Copy) -> list[str]:
    """Outputs that are not the same in both, but for those that say seconds, and files that are half-written in the second."""
    kept = ([out for out in outputs(copy) if not out["path"].startswith(TIMED)] for copy in (one, other))
    first, second = ({out["path"]: out["md5"] for out in outs} for outs in kept)
    partial = [str(path) for path in other.folder.rglob("*.partial") if ".dvc" not in path.parts]
    return sorted(path for path in first.keys() | second.keys() if first.get(path) != second.get(path)) + partial


def stages_at_work(folder: Path) -> list[tuple[int, str]]:
    """Number and words of processes of stages in a folder, by themselves or as forks of the runner."""
    found = [one for one in psutil.process_iter(["cmdline", "cwd"]) if one.info["cwd"] == str(folder.resolve())]
    words = {one.pid: " ".join(one.info["cmdline"] or ()) for one in found}
    forks = {one.pid for one in found if "forkserver" in words[one.pid] and "forkserver" in words.get(one.ppid(), "")}
    return [
        (pid, said) for pid, said in words.items() if pid in forks or ("-m stages." in said and "workflow" not in said)
    ]


def pipelines(copy: Copy) -> list[str]:
    """dvc.yaml of each."""
    return ["dvc.yaml", *(str(path.relative_to(copy.folder)) for path in sorted(copy.folder.glob("stages/*/dvc.yaml")))]


def locks(copy: Copy) -> dict[str, dict]:
    """The contents of dvc.lock, by the folder of the pipeline."""
    folders = [str(Path(name).parent) for name in pipelines(copy)]
    return {folder: copy.lock(folder) for folder in folders if (copy.folder / folder / "dvc.lock").exists()}


def outputs(copy: Copy) -> list[dict]:
    """The entry of each output in each dvc.lock."""
    return [out for lock in locks(copy).values() for entry in lock.values() for out in entry["outs"]]
