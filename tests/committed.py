"""What the last commit has: tests of results look there, since a run in this folder writes others over those in the working tree."""

import io
import shutil
import subprocess
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]


def committed(to: Path, *places: str, pages: Iterable[Path] = ()) -> Path:
    """A folder with these folders of the last commit, or of the last one that changed one of some pages: what these tell is about those results.

    Without a commit, as in an archive that was unpacked, with those that are there: DVC runs in no such folder, so nothing has changed them.
    """
    last = git("log", "-1", "--format=%H", "--", *map(str, pages)).stdout.decode().strip()
    packed = git("archive", "--format=zip", last or "HEAD", *places)
    if packed.returncode == 0:
        zipfile.ZipFile(io.BytesIO(packed.stdout)).extractall(to)
    else:
        for place in places:
            shutil.copytree(ROOT / place, to / place)
    return to


def git(*words: str) -> subprocess.CompletedProcess:
    """Git in the project's folder, which may lie in no repository."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)
