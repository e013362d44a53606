"""What lies at each path once the stages before have done what they will do, without doing it.

A dep of a stage may be part of what an earlier stage makes, or a folder that several of them fill.
Where such a stage comes back from the run cache, its content is known from the cache, and so is the
hash of everything that follows; where it has to run, nothing is known.
"""

from pathlib import Path
from typing import Any

from dvc_data.hashfile.hash_info import HashInfo
from dvc_data.hashfile.tree import Tree

Parts = tuple[str, ...]
# of a folder: where each file lies in it, with its meta and its hash
Files = dict[Parts, tuple[Any, HashInfo]]


class Ahead:
    """Paths of the outputs that will be made, with their content where it is known."""

    def __init__(self) -> None:
        self._made: dict[Parts, Any] = {}
        self._makers: dict[Parts, str] = {}

    def add(self, out: Any, content: Any, stage: str) -> None:
        """An output of `stage` will be made; `content` is an object of DVC's cache, None where it isn't known."""
        self._made[_parts(out)] = content
        self._makers[_parts(out)] = stage

    def makers(self, dep: Any) -> list[str]:
        """Stages that make a dep, or a part of it, and whose result isn't known."""
        return [self._makers[path] for path in self._touched(dep) if self._made[path] is None]

    def is_made(self, dep: Any) -> bool:
        """Whether a stage will write a dep or a part of it."""
        return bool(self._touched(dep))

    def hash_of(self, dep: Any) -> HashInfo | None:
        """Hash that a dep will have; None if nobody makes it and it isn't there."""
        touched = self._touched(dep)
        if not touched:
            return dep.get_hash() if dep.exists else None
        place = _parts(dep)
        files = _files_there(dep)
        for path in touched:
            inside = path[len(place) :]
            files = {key: value for key, value in files.items() if key[: len(inside)] != inside}
            files |= _laid_at(self._made[path], path, place)
        if () in files:
            return files[()][1]
        return _folder_hash(files)

    def _touched(self, dep: Any) -> list[Parts]:
        place = _parts(dep)
        return [path for path in self._made if path[: len(place)] == place[: len(path)]]


def _parts(entry: Any) -> Parts:
    return Path(entry.fs_path).parts


def _files_there(dep: Any) -> Files:
    """What lies at a dep now, if it is a folder."""
    if not dep.exists or not dep.isdir():
        return {}
    _, _, there = dep._build(
        dep.local_cache, dep.fs_path, dep.fs, dep.hash_name, ignore=dep.dvcignore, dry_run=True, no_progress_bar=True
    )
    return {key: (meta, hash_info) for key, meta, hash_info in there}


def _laid_at(content: Any, path: Parts, place: Parts) -> Files:
    """The part of an output at `path` that belongs to `place`, by the place of each file in it; () is `place` itself."""
    files = [*content] if isinstance(content, Tree) else [((), None, content.hash_info)]
    whole = {(*path, *key): (meta, hash_info) for key, meta, hash_info in files}
    return {key[len(place) :]: value for key, value in whole.items() if key[: len(place)] == place}


def _folder_hash(files: Files) -> HashInfo | None:
    if not files:
        return None
    tree = Tree()
    for key, (meta, hash_info) in files.items():
        tree.add(key, meta, hash_info)
    tree.digest()
    return tree.hash_info
