"""What `dvc repro` would do with every stage, in its order, found by DVC's own rules and without doing it.

DVC's `repro --dry` can't tell: it stops at the first dep that an earlier stage has yet to make.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stages.commands.plan.predicted_outputs import Ahead
from stages.lib.errors import StorageError

RUNS, CACHED, UNCHANGED = "runs", "cached", "unchanged"


@dataclass(frozen=True)
class Step:
    """What will happen to one stage, and why.

    runs: its command is executed.  cached: its outputs come back from an earlier run with the same
    inputs.  unchanged: nothing.  A stage that runs because an earlier one does may turn out to be
    unchanged or cached, where that one makes what it made before.
    """

    name: str
    fate: Literal["runs", "cached", "unchanged"]
    reasons: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def stage(self) -> str:
        """Its name without the cell."""
        return self.name.partition("@")[0]


def outlook(files: Sequence[Path]) -> list[Step]:
    """Steps of `dvc repro FILE ...`, where each file is a dvc.yaml; the main pipeline's first, as they stand there.

    Raises StorageError if DVC can't read the pipelines.
    """
    with _pipeline(files) as (order, places, cache):
        ahead = Ahead()
        steps = {stage: _step(stage, ahead, cache) for stage in order if stage.cmd}
        return [steps[stage] for stage in sorted(steps, key=places.index)]


@contextmanager
def _pipeline(files: Sequence[Path]) -> Iterator[tuple[list[Any], list[Any], Any]]:
    """Stages of these files with those that they need, as `dvc repro` takes them; all stages as they stand; the run cache."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo
    from dvc.repo.reproduce import collect_stages, get_active_graph, plan_repro

    try:
        # without DVC's lock: a run that waits for it gives up after three seconds, and plans only read
        with Repo() as repo:
            graph = get_active_graph(repo.index.graph)
            order = plan_repro(graph, collect_stages(repo, [str(file) for file in files]))
            places = sorted(repo.index.stages, key=lambda stage: len(Path(stage.path).parts))
            yield order, places, repo.stage_cache
    except DvcException as problem:
        raise StorageError(" ".join(str(problem).split())) from None


def _step(stage: Any, ahead: Ahead, cache: Any) -> Step:
    name = stage.name
    missing = tuple(str(dep) for dep in stage.deps if not dep.exists and not ahead.is_made(dep))
    waits = sorted({maker for dep in stage.deps for maker in ahead.makers(dep)})
    if missing or waits:
        _will_make(stage, ahead)
        return Step(name, RUNS, tuple(f"after {maker}" for maker in waits), missing)
    hashes = {dep: ahead.hash_of(dep) for dep in stage.deps}
    reasons = _why(stage, hashes)
    if not reasons:
        return Step(name, UNCHANGED)
    entry = _earlier(stage, hashes, cache)
    if entry is None:
        _will_make(stage, ahead)
        return Step(name, RUNS, reasons)
    for out in entry.outs:
        ahead.add(out, out.get_obj(), name)
    return Step(name, CACHED, reasons)


def _will_make(stage: Any, ahead: Ahead) -> None:
    for out in stage.outs:
        ahead.add(out, None, stage.name)


def _why(stage: Any, hashes: dict[Any, Any]) -> tuple[str, ...]:
    """What has changed since dvc.lock was written; empty if nothing has."""
    if not any(out.hash_info for out in stage.outs):
        return ("not run yet",)
    if stage.changed_stage():
        return ("its command changed",)
    changed = [part for dep in stage.deps if hashes[dep] != dep.hash_info for part in _changed_parts(dep)]
    changed += [f"{place} is {state}" for out in stage.outs for place, state in out.status().items()]
    return tuple(dict.fromkeys(changed))


def _changed_parts(dep: Any) -> list[str]:
    """A dep by its path, or its settings by their names."""
    found = dep.status() if hasattr(dep, "params") else {}
    return [name for names in found.values() for name in names] or [str(dep)]


def _earlier(stage: Any, hashes: dict[Any, Any], cache: Any) -> Any:
    """The stage as an earlier run with the same command and inputs left it, all outputs in the cache; or None."""
    from dvc.stage.cache import _get_cache_hash
    from dvc.stage.serialize import to_single_stage_lockfile

    recorded = {dep: dep.hash_info for dep in stage.deps}
    same = not stage.changed_stage() and recorded == hashes and all(out.hash_info for out in stage.outs)
    for dep, found in hashes.items():
        dep.hash_info = found
    state = to_single_stage_lockfile(stage)
    if not same:
        state = _newest(cache, _get_cache_hash(state, key=True))
    entry = cache._create_stage(state, wdir=stage.wdir) if state else None
    return entry if entry and entry.outs_cached() else None


def _newest(cache: Any, key: str) -> Any:
    folder = Path(cache._get_cache_dir(key))
    entries = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime) if folder.is_dir() else []
    return cache._load_cache(key, entries[-1].name) if entries else None
