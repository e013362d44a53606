"""verify: hash what the cache holds for the lock files, and remove what is no longer what was stored.

python -m stages.commands.verify

DVC trusts a file in its cache by its name and mode, and gives back a damaged one without a word; one that is missing is made
anew by the stage that it belongs to.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from hashlib import file_digest
from pathlib import Path

from stages.commands.mend import lock_files, mend_locks
from stages.lib.entry import guarded
from stages.lib.errors import StorageError
from stages.lib.progress import progress
from stages.lib.words import counted
from stages.lib.yaml12 import load_yaml

FOLDER = ".dir"
# object of the cache, by its hash -> the stages and the outputs that it is of
Objects = dict[str, list[tuple[str, str]]]


def main() -> None:
    """Parse the command line, verify, and leave with a non-zero exit code where something was damaged."""
    argparse.ArgumentParser(
        prog="python -m stages.commands.verify", description="Hash the cache, and remove what is damaged."
    ).parse_args()
    mend_locks()
    from stages.commands.plan.dvc_internals import opened

    with opened() as repo:
        cache = Path(repo.cache.local.path)
    objects = named_objects(cache)
    damaged = find_damaged(cache, objects)
    for name in damaged:
        _place(cache, name).unlink()
    print(told(len(objects), {name: objects[name] for name in damaged}))
    sys.exit(1 if damaged else 0)


def named_objects(cache: Path) -> Objects:
    """The cache's state of all that dvc.lock names, of every pipeline, files in folders among it."""
    found: Objects = {}
    for lock in lock_files():
        for stage, entry in load_yaml(lock, StorageError)["stages"].items():
            for out in entry.get("outs", []):
                for name, path in _parts(cache, out["md5"], out["path"]):
                    found.setdefault(name, []).append((stage, path))
    return {name: owners for name, owners in found.items() if _place(cache, name).is_file()}


def _parts(cache: Path, name: str, path: str) -> Iterator[tuple[str, str]]:
    """Hash and path of an output; of a folder those of its files, too."""
    yield name, path
    if name.endswith(FOLDER) and _is_sound(cache, name):
        for file in json.loads(_place(cache, name).read_bytes()):
            yield file["md5"], f"{path}/{file['relpath']}"


def find_damaged(cache: Path, objects: Objects) -> list[str]:
    """Those of these objects whose content is another than their name says."""
    sizes = {name: _place(cache, name).stat().st_size for name in objects}
    damaged = []
    with progress("verify", sum(sizes.values()), "B") as bar:
        for name, size in sizes.items():
            if not _is_sound(cache, name):
                damaged.append(name)
            bar.update(size)
    return damaged


def told(number: int, damaged: Objects) -> str:
    """The outcome in words."""
    if not damaged:
        return f"verify: {counted(number, 'object')} of the cache, all as they were stored"
    lines = [f"  {path} of {stage}" for owners in damaged.values() for stage, path in dict.fromkeys(owners)]
    again = ", ".join(sorted({stage for owners in damaged.values() for stage, _ in owners}))
    head = f"verify: {len(damaged)} of {counted(number, 'object')} of the cache were damaged, and are removed:"
    return "\n".join([head, *lines, f"`dvc repro` will run again: {again}"])


def _place(cache: Path, name: str) -> Path:
    return cache / name[:2] / name[2:]


def _is_sound(cache: Path, name: str) -> bool:
    """True if an object is there and has the hash that it is named after."""
    try:
        with _place(cache, name).open("rb") as file:
            return file_digest(file, "md5").hexdigest() == name.removesuffix(FOLDER)
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    guarded("verify", main)
