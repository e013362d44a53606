"""A stage in a clone of its own: DVC takes from the run cache what it needs, runs it, and shares what it made.

python -m stages.commands.parallel.in_clone TARGET        on a worker

`dvc push --run-cache` writes first what a stage did and then its outputs, none of those that git keeps, and nothing that the
stage needed; `share` brings all that another clone needs to take it over, outputs first.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stages.commands.mend import mend_locks, mend_notes
from stages.commands.parallel.clone import has_remote
from stages.commands.parallel.lock import WORKER, held
from stages.commands.parallel.quick_dvc import run
from stages.lib.command import guarded
from stages.lib.errors import StorageError

if TYPE_CHECKING:
    from dvc.repo import Repo
    from dvc.stage import Stage
    from dvc.stage.cache import StageCache


def main() -> None:
    """Run the stage of the command line; leaves with DVC's exit code."""
    [target] = sys.argv[1:]
    # one stage at a time in a clone, also where a killed worker's last one has yet to end
    with held(WORKER, waits=True):
        mend_notes()
        mend_locks()
        if code := reproduce(target):
            sys.exit(code)
        share([target])


def reproduce(*targets: str) -> int:
    """`dvc repro` of targets with all that they need, for which it looks at the remote, too, if there is one; gives its exit code."""
    return run(["--wait-for-lock", "repro", *["--pull"] * has_remote(), *targets])


def share(targets: Sequence[str]) -> None:
    """Bring to the remote, if there is one, what there is of these stages and of those that they need: outputs, then run cache."""
    if not has_remote():
        return
    from dvc.repo import Repo
    from dvc.repo.reproduce import collect_stages, get_active_graph, plan_repro

    with Repo() as repo:
        stages = plan_repro(get_active_graph(repo.index.graph), collect_stages(repo, [*targets]))
        entries = [*_entries(stages, repo.stage_cache)]
        outputs = {one for entry, _ in entries for found in entry.get_used_objs().values() for one in found}
        if repo.cloud.push(outputs).failed:
            raise StorageError("DVC's remote did not take all outputs")
        for _, record in entries:
            _copy(record, repo)


def _entries(stages: Sequence["Stage"], cache: "StageCache") -> Iterator[tuple["Stage", Path]]:
    """Of each stage that has run, as dvc.lock has it: a stage with all outputs, and the file of the run cache on it."""
    from dvc.stage.cache import _get_cache_hash
    from dvc.stage.serialize import to_single_stage_lockfile

    for stage in stages:
        if not stage.cmd or not all(part.hash_info for part in [*stage.deps, *stage.outs]):
            continue
        state = to_single_stage_lockfile(stage)
        entry, value = cache._create_stage(state, wdir=stage.wdir), _get_cache_hash(state)
        record = Path(cache._get_cache_path(_get_cache_hash(state, key=True), value))
        if record.is_file() and entry.outs_cached():
            yield entry, record


def _copy(record: Path, repo: "Repo") -> None:
    from dvc_objects.fs.generic import copy

    local = repo.cache.legacy
    remote = repo.cloud.get_remote_odb(None, "push --run-cache", hash_name="md5-dos2unix")
    place = remote.fs.join(remote.path, *record.relative_to(local.path).parts)
    if not remote.fs.exists(place):
        copy(local.fs, str(record), remote.fs, place)


if __name__ == "__main__":
    guarded("worker", main)
