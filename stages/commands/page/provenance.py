"""Where and when results were made: git, versions, the processor, and how long stages took."""

import json
import platform
import subprocess
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from stages.lib.errors import StorageError
from stages.workflow.core import paths

SHOWN_HASH = 10
PACKAGES = ("torch", "transformers", "dvc")


def git(*words: str) -> str | None:
    """Output of a git command, None if it fails."""
    result = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else None


def commit_of(revision: str) -> tuple[str, str]:
    """Short hash and first line of a commit; raises StorageError if git doesn't know it."""
    # of an annotated tag git would show the tag first
    shown = git("show", "--no-patch", "--format=%H %s", f"{revision}^{{commit}}")
    if shown is None and git("rev-parse", "--git-dir") is None:
        raise StorageError(
            "not in a git repository, and the report compares with a commit: unpack a clone (`git clone`)"
        )
    if shown is None:
        shallow = "; this clone is shallow (`git fetch --unshallow` brings all commits)" * is_shallow()
        raise StorageError(f"baseline: git knows no commit {revision!r}{shallow}")
    commit, _, subject = shown.partition(" ")
    return commit[:SHOWN_HASH], subject


def is_shallow() -> bool:
    """True in a clone that has only the last commits."""
    return git("rev-parse", "--is-shallow-repository") == "true"


def uncommitted() -> list[str]:
    """Tracked files that differ from the last commit."""
    changed = git("diff", "--name-only", "--relative", "HEAD")
    return changed.splitlines() if changed else []


def made_on(path: Path) -> str:
    """Day and commit of a file that is as git has it, if its history is here, else the day it was written."""
    known = git("log", "-1", "--format=%P|%cs (commit %h)", "--", str(path))
    if known and str(path) not in uncommitted():
        parents, _, told = known.partition("|")
        # git takes the oldest commit that a shallow clone has for the one that brought all its files
        return told if parents or not is_shallow() else "an unknown day (a shallow clone; `git fetch --unshallow`)"
    return f"{datetime.fromtimestamp(path.stat().st_mtime, UTC):%Y-%m-%d}"


def versions() -> str:
    """Python and the packages that results depend on, as installed here."""
    found = [f"Python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def processor() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.processor() or platform.machine()


def durations(cells: Iterable[str]) -> dict[str, float]:
    """Stage -> seconds of the last run of each of these cells on this computer; those that DVC took from its cache have none."""
    try:
        lines = [json.loads(line) for line in paths.DURATIONS.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        return {}
    last = {line["stage"]: line["seconds"] for line in lines}
    found: Counter[str] = Counter()
    for cell in filter(last.__contains__, cells):
        found[cell.partition("@")[0]] += last[cell]
    return found
