"""Settings and numbers as a commit of git has them, to compare the present ones with."""

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.lib import paths
from stages.lib.errors import ParamsError, StorageError
from stages.lib.io import read_json
from stages.lib.yaml12 import load_yaml

SHOWN_HASH = 10


@dataclass(frozen=True)
class Baseline:
    """A commit: its short hash and first line, its params.yaml, its metrics by file name."""

    commit: str
    subject: str
    params: dict[str, Any]
    metrics: dict[str, dict[str, Any]]


def read_baseline(revision: str) -> Baseline:
    """What a commit has; raises StorageError if git doesn't know it."""
    known = _git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if known is None:
        raise StorageError(f"baseline: git knows no commit {revision!r}")
    commit = known.strip()
    listed = (_git("ls-tree", "-r", "--name-only", commit, str(paths.PARAMS), f"{paths.METRICS}/") or "").split()
    with tempfile.TemporaryDirectory() as folder:
        for name in listed:
            if name == str(paths.PARAMS) or (name.endswith(".json") and name.count("/") == 1):
                target = Path(folder, name)
                target.parent.mkdir(exist_ok=True)
                target.write_text(_git("show", f"{commit}:{name}") or "", encoding="utf-8")
        params = Path(folder, paths.PARAMS)
        metrics = {path.name: read_json(path, StorageError) for path in sorted(Path(folder).glob("metrics/*.json"))}
        return Baseline(
            commit[:SHOWN_HASH],
            (_git("show", "--no-patch", "--format=%s", commit) or "").strip(),
            load_yaml(params, ParamsError) if params.is_file() else {},
            metrics,
        )


def uncommitted() -> list[str]:
    """Tracked files that differ from the last commit."""
    lines = (_git("status", "--porcelain", "--untracked-files=no") or "").splitlines()
    return [line[3:] for line in lines]


def _git(*words: str) -> str | None:
    """Output of a git command, None if it fails."""
    result = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    return result.stdout if result.returncode == 0 else None
