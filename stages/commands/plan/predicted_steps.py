"""The steps of `dvc repro` for every stage, in its order, found by DVC's own rules and without doing them.

DVC's `repro --dry` can't tell: it stops at the first dep that an earlier stage has yet to make.  Here the content of that
is taken from the run cache; what follows other stages that run, will run.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dvc.dependency import Dependency
from dvc.repo.reproduce import get_active_graph, plan_repro
from dvc.stage import Stage
from dvc.stage.cache import StageCache
from dvc_data.hashfile.hash_info import HashInfo

from stages.commands.mend import mending
from stages.commands.parallel.quick_dvc import settings_read_once
from stages.commands.plan import dvc_internals as internals
from stages.commands.plan.dvc_internals import Files, files_of
from stages.commands.plan.stage_status import CACHED, RUNS, UNCHANGED, Step

if TYPE_CHECKING:
    import networkx as nx

# outputs that will be made: the stage, and the files if they are known
Made = dict[tuple[str, ...], tuple[str, Files | None]]


@mending
def predict_steps(files: Sequence[Path]) -> list[Step]:
    """Steps of `dvc repro FILE ...`, the main pipeline's first; raises StorageError if DVC can't read the pipelines."""
    with prediction(files) as (steps, graph):
        places = sorted(graph, key=lambda stage: len(Path(stage.path).parts))
        return [steps[stage] for stage in sorted(steps, key=places.index)]


@contextmanager
def prediction(targets: Sequence[Path | str]) -> Iterator[tuple[dict[Stage, Step], "nx.DiGraph"]]:
    """The step of each stage that has a command, in an order in which DVC could take them; and DVC's graph of all stages."""
    # without DVC's lock: a run that waits for it gives up after three seconds, and plans only read
    with internals.opened() as repo, settings_read_once():
        names, made = [*map(str, targets)], {}
        chosen, graph = internals.chosen_stages(repo, names), internals.index_of(repo, names).graph
        order = plan_repro(get_active_graph(graph), chosen)
        steps = {stage: _step(stage, made, repo.stage_cache) for stage in order if stage.cmd}
        if any(step.fate != UNCHANGED for step in steps.values()):
            repo.index.check_graph()  # before it runs anything DVC reads all pipelines, and refuses what is wrong in any
        yield steps, graph


def _touching(dep: Dependency, made: Made) -> Made:
    """Outputs that are a dep, a part of it, or a folder that it lies in."""
    place = Path(dep.fs_path).parts
    return {path: output for path, output in made.items() if path[: len(place)] == place[: len(path)]}


def _hash(dep: Dependency, made: Made) -> HashInfo | None:
    """Hash that a dep will have; None if nobody makes it and it isn't there."""
    outputs = _touching(dep, made)
    if not outputs:
        return dep.get_hash() if dep.exists else None
    place = Path(dep.fs_path).parts
    files = internals.files_there(dep) if dep.exists else {}
    for path, (_, output) in outputs.items():
        inside = path[len(place) :]
        files = {key: value for key, value in files.items() if key[: len(inside)] != inside}
        laid = {(*path, *key): value for key, value in output.items()}
        files |= {key[len(place) :]: value for key, value in laid.items() if key[: len(place)] == place}
    return internals.hash_of(files)


def _step(stage: Stage, made: Made, cache: StageCache) -> Step:
    """The step of a stage once those before it have done theirs; its outputs are added to `made`."""
    missing = tuple(str(dep) for dep in stage.deps if not dep.exists and not _touching(dep, made))
    makers = (maker for dep in stage.deps for maker, files in _touching(dep, made).values() if files is None)
    reasons, entry = tuple(f"after {maker}" for maker in sorted({*makers})), None
    if not (missing or reasons):
        hashes = {dep: _hash(dep, made) for dep in stage.deps}
        reasons = _reasons(stage, hashes)
        if not reasons:
            return Step(stage.name, UNCHANGED)
        entry = internals.earlier_run(stage, hashes, cache)
    for out in entry.outs if entry else stage.outs:
        made[Path(out.fs_path).parts] = stage.name, files_of(out.get_obj()) if entry else None
    return Step(stage.name, CACHED if entry else RUNS, reasons, missing)


def _reasons(stage: Stage, hashes: dict[Dependency, HashInfo | None]) -> tuple[str, ...]:
    """The changes since dvc.lock was written; empty if there are none."""
    if not any(out.hash_info for out in stage.outs):
        return ("not run yet",)
    if stage.changed_stage():
        return ("its command changed",)
    changed = [part for dep in stage.deps if hashes[dep] != dep.hash_info for part in _changed_parts(dep)]
    changed += [f"{place} is {state}" for out in stage.outs for place, state in out.status().items()]
    return tuple(dict.fromkeys(changed))


def _changed_parts(dep: Dependency) -> list[str]:
    """A dep by its path; settings by their names."""
    settings = dep.status().values() if hasattr(dep, "params") else ()
    return [name for names in settings for name in names] or [str(dep)]
