"""Rules that the clones of a cluster have to agree on before a stage runs in one of them."""

import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.lib import paths
from stages.lib.differences import flat
from stages.lib.errors import ParamsError, StorageError, shown
from stages.lib.yaml12 import load_yaml

if TYPE_CHECKING:
    from dvc.config import Config

# what each machine has of its own, and what stages write
NO_CODE = (":(exclude)params.yaml", ":(exclude).dvc", ":(exclude)metrics", ":(exclude)plots")
OF_MACHINE = "runtime.resources."


@dataclass(frozen=True)
class State:
    """Commit, settings by their dotted keys, and DVC's cache where it is shared in place of a remote."""

    commit: str
    settings: dict[str, Any]
    cache: str | None


def state() -> State:
    """Of the clone that this process stands in; raises StorageError where code was edited since the commit."""
    if edited := _git("diff", "--name-only", "HEAD", "--", "*.py", "*.yaml", *NO_CODE):
        raise StorageError(f"{edited.splitlines()[0]} is edited and not committed")
    values = load_yaml(paths.PARAMS, ParamsError)
    entries = flat(values if isinstance(values, dict) else {"": values})
    settings = {key: value for key, value in entries.items() if not key.startswith(OF_MACHINE)}
    cache = None if has_remote() else str(Path(_config()["cache"].get("dir") or ".dvc/cache").resolve())
    return State(_git("rev-parse", "HEAD"), settings, cache)


def difference(head: State) -> str:
    """One line that says where the clone here is another than the head's; empty if it isn't."""
    try:
        here = state()
    except (StorageError, ParamsError) as problem:
        return _line(str(problem))
    if here.commit != head.commit:
        return _line(f"it is at commit {here.commit[:10]}, the head at {head.commit[:10]}")
    for key in sorted(here.settings.keys() | head.settings.keys()):
        mine, theirs = (shown(side.settings[key]) if key in side.settings else "missing" for side in (here, head))
        if mine != theirs:
            return _line(f"{key} is {mine} in its params.yaml, {theirs} in the head's")
    if here.cache != head.cache:
        return _line("it has neither the head's DVC remote nor its cache (stages/SCALING.md)")
    return ""


def _line(problem: str) -> str:
    return f"worker in {socket.gethostname()}:{Path.cwd()} refused: {problem}"


def has_remote() -> bool:
    """True if DVC has a default remote here."""
    return bool(_config()["core"].get("remote"))


def _config() -> "Config":
    from dvc.config import Config

    return Config(dvc_dir=str(Path(".dvc").absolute()))


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise StorageError(f"git {words[0]} fails: {done.stderr.strip()}")
    return done.stdout.strip()
