"""Parts of DVC that a plan needs and that DVC offers nobody: all of its private functions that a plan calls are called here.

They are those of the version that requirements.txt pins; `tests/test_plan_edits.py` compares plans with what DVC then does.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dvc.dependency import Dependency
from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.repo.index import Index
from dvc.repo.reproduce import collect_stages
from dvc.scm import SCMError
from dvc.stage import Stage
from dvc.stage.cache import StageCache, _get_cache_hash
from dvc.stage.exceptions import StageFileDoesNotExistError, StageNotFound
from dvc.stage.serialize import to_single_stage_lockfile
from dvc_data.hashfile.hash_info import HashInfo
from dvc_data.hashfile.meta import Meta
from dvc_data.hashfile.obj import HashFile
from dvc_data.hashfile.tree import Tree

from stages.lib.errors import StorageError, did_you_mean
from stages.workflow.core.paths import PIPELINE

# where each file lies in an output, and its hash; an output that is a file itself lies at ()
Files = dict[tuple[str, ...], HashInfo]


@contextmanager
def opened() -> Iterator[Repo]:
    """This folder's repository; what DVC raises is a StorageError of one line, with what helps where there is none of Git."""
    try:
        with Repo() as repo:
            yield repo
    except DvcException as problem:
        remedy = (
            "; clone the project with git, or `git init` what you have of it" if isinstance(problem, SCMError) else ""
        )
        raise StorageError(" ".join(str(problem).split()) + remedy) from None


def index_of(repo: Repo, targets: Sequence[str]) -> Index:
    """DVC's index of the pipelines that targets are of, and of the main one, which is all that they take anything from."""
    files = {name for name, _, _ in (target.rpartition(":") for target in targets) if name}
    files |= {target for target in targets if target.endswith(PIPELINE.suffix)}
    there = sorted({path.absolute() for path in (PIPELINE, *map(Path, files)) if path.exists()})
    return Index.from_indexes(repo, [Index.from_file(repo, str(path)) for path in there])


def chosen_stages(repo: Repo, targets: list[str]) -> list[Stage]:
    """The stages that targets name; raises StorageError with the nearest name if there are none such."""
    try:
        return collect_stages(repo, targets)
    except StageNotFound as problem:
        names = (stage.name for stage in repo.index.stages if stage.relpath == problem.file)
        raise StorageError(f"{problem}{did_you_mean(problem.name, names)}") from None
    except StageFileDoesNotExistError as problem:
        file = os.path.relpath(problem.file)
        files = (stage.relpath for stage in repo.index.stages)
        raise StorageError(f"{file!r} does not exist{did_you_mean(file, files)}") from None


def files_there(dep: Dependency) -> Files:
    """The files of a dep as they are now."""
    there = dep.local_cache, dep.fs_path, dep.fs, dep.hash_name
    return files_of(dep._build(*there, ignore=dep.dvcignore, dry_run=True, no_progress_bar=True)[2])


def hash_of(files: Files) -> HashInfo | None:
    """DVC's hash of these files together, of an empty folder if there are none."""
    if () in files:
        return files[()]
    tree = Tree()
    for key, value in files.items():
        tree.add(key, None, value)
    tree.digest()
    return tree.hash_info


def files_of(content: Tree | HashFile) -> Files:
    """The files of a tree of DVC's, or of an object that is one file."""
    return {key: value for key, _, value in content} if isinstance(content, Tree) else {(): content.hash_info}


def earlier_run(stage: Stage, hashes: dict[Dependency, HashInfo | None], cache: StageCache) -> Stage | None:
    """The stage as an earlier run with the same command and inputs left it, all outputs in the cache; or None."""
    recorded = {dep: dep.hash_info for dep in stage.deps}
    same = not stage.changed_stage() and recorded == hashes and all(out.hash_info for out in stage.outs)
    for dep, hash_info in hashes.items():
        executable = not hasattr(dep, "params") and dep.isfile() and dep.get_meta().isexec
        dep.hash_info, dep.meta = hash_info, Meta(isexec=executable)  # the old hash is in the old meta, too
    state = to_single_stage_lockfile(stage)
    if not same:
        key = _get_cache_hash(state, key=True)
        runs = sorted(Path(cache._get_cache_dir(key)).glob("*"), key=lambda path: path.stat().st_mtime)
        state = cache._load_cache(key, runs[-1].name) if runs else None
    entry = cache._create_stage(state, wdir=stage.wdir) if state else None
    return entry if entry and entry.outs_cached() else None
