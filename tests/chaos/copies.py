"""Copies of the project in which all pipelines run at the settings of the profile `whole`."""

from pathlib import Path

from stages.commands import profile
from tests.dvc_project import Copy, clone, make_original
from tests.settings_files import lay_out_settings

# what task arithmetic costs is measured in seconds, too
TIMED = ("metrics/edit/", "metrics/talos", "plots/talos")
EVERYTHING = ("dvc", "repro", "--all-pipelines")
# as `make repro` does first: mends what a kill left of DVC's own files, and takes away what stages left half-written
MENDED = ("python", "-m", "stages.commands.plan", "--line")


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
