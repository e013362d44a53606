"""What `dvc repro` does with each stage except for its command, by DVC's own methods in this process.

dvc.lock, which DVC reads and writes whole, is written once a minute; the run cache has what it lacks.
"""

import glob
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dvc.exceptions import DvcException
from dvc.lock import LockError
from dvc.repo import Repo
from dvc.repo.index import Index
from dvc.repo.reproduce import collect_stages, get_active_graph, plan_repro
from dvc.rwlock import RWLockFileCorruptedError, RWLockFileFormatError, rwlock
from dvc.stage import Stage
from dvc.stage.cache import RunCacheNotFoundError
from dvc.stage.exceptions import StageFileDoesNotExistError, StageNotFound
from dvc.utils.strictyaml import YAMLSyntaxError, YAMLValidationError
from dvc_data.hashfile.hash import hash_file

from skill_grafting.support.errors import StorageError, did_you_mean
from stages.workflow.stage import paths

RECORD_EVERY = 60.0
NOTES = Path(".dvc/tmp/rwlock")


@contextmanager
def repository() -> Iterator[Repo]:
    """This folder's repository, locked; DVC's errors become a StorageError of one line."""
    logging.getLogger("dvc").setLevel(logging.WARNING)
    try:
        with Repo() as repo, repo.lock, repo.scm_context(quiet=True):
            yield repo
    except LockError:
        raise StorageError("DVC or another run is at work in this folder: wait until it has ended") from None
    except DvcException as problem:
        raise StorageError(" ".join(str(problem).split())) from None


class Repro:
    """The stages of `dvc repro TARGETS`: what may start, what waits, what failed and why."""

    def __init__(self, repo: Repo, targets: Sequence[str]) -> None:
        self._repo = repo
        self.graph, self.steps = _steps(repo, targets)
        self.waits_for = {stage: {*self.graph.successors(stage)} for stage in self.steps}
        self._ready = [stage for stage in self.steps if not self.waits_for[stage]]
        self.finished = 0
        self.failed: dict[Stage, str] = {}
        self._unrecorded: list[Stage] = []
        self._recorded_at = time.monotonic()

    def takes(self, settings: str) -> bool:
        """True if a stage depends on a setting whose name begins so."""
        names = (name for stage in self.steps for dep in stage.deps for name in getattr(dep, "params", ()))
        return any(name.startswith(settings) for name in names)

    def begin(self) -> list[Stage]:
        """Stages whose commands have to run now.  Other ready stages are done: unchanged, or taken from the run cache."""
        to_run = []
        while self._ready:
            stage = self._ready.pop(0)
            with self._noting_failure(stage):
                if self._has_to_run(stage):
                    to_run.append(stage)
                else:
                    self._let_others_start(stage)
        return to_run

    def end(self, stage: Stage, failure: str | None) -> None:
        """Record what a stage's command made, or why it failed."""
        if failure is not None:
            self.failed[stage] = failure
            return
        with self._noting_failure(stage):
            self._save(stage)
            self._let_others_start(stage)

    @contextmanager
    def _noting_failure(self, stage: Stage) -> Iterator[None]:
        try:
            yield
        except (DvcException, OSError) as problem:
            self.failed[stage] = str(problem)

    def _has_to_run(self, stage: Stage) -> bool:
        if not stage.cmd or stage.frozen:
            self._unrecorded += [stage] * bool(stage.reproduce())
            return False
        if not stage.changed():
            return False
        stage.remove_outs(ignore_remove=False, force=False)
        _remove_partial(stage)
        try:
            self._repo.stage_cache.restore(stage)
        except RunCacheNotFoundError:
            stage.save_deps()
            return True
        self._save(stage)
        return False

    def _save(self, stage: Stage) -> None:
        stage.save(run_cache=is_kept(stage))
        stage.commit()
        self._unrecorded.append(stage)
        if time.monotonic() - self._recorded_at > RECORD_EVERY:
            self.write_locks()

    def write_locks(self) -> None:
        """Write dvc.lock for all stages that have ended since it was written."""
        for file in {stage.dvcfile.path for stage in self._unrecorded}:
            stages = [stage for stage in self._unrecorded if stage.dvcfile.path == file]
            stages[0].dvcfile.dump_stages(stages, update_pipeline=False)
        self._unrecorded, self._recorded_at = [], time.monotonic()

    def _let_others_start(self, stage: Stage) -> None:
        self.finished += 1
        for other in self.graph.predecessors(stage):
            if stage in self.waits_for.get(other, ()):
                self.waits_for[other].remove(stage)
                self._ready += [other] * (not self.waits_for[other])

    def hash_outputs(self, stage: Stage) -> None:
        """Hash a stage's outputs in advance, so that recording them is fast."""
        for out in stage.outs:
            for file in out.fs.find(out.fs_path):
                hash_file(file, out.fs, out.hash_name, self._repo.state)


def _remove_partial(stage: Stage) -> None:
    """Remove what runs that were killed left beside a stage's outputs; nobody else writes there, since this run has the lock."""
    for out in stage.outs:
        for folder in Path(out.fs_path).parent.glob(f"{glob.escape(Path(out.fs_path).name[:50])}.????????.partial"):
            shutil.rmtree(folder, ignore_errors=True)


def is_kept(stage: Stage) -> bool:
    """True if DVC's run cache keeps runs of this stage; it keeps none with `outs` in git, such as reports."""
    return all(out.use_cache or out.is_metric or out.is_plot for out in stage.outs)


def _steps(repo: Repo, targets: Sequence[str]) -> tuple:
    """DVC's graph, and the chosen stages with all that they need, in an order in which they may run."""
    try:
        chosen = collect_stages(repo, targets)
    except (StageNotFound, StageFileDoesNotExistError) as problem:
        names = [name for stage in repo.index.stages for name in (stage.name, stage.relpath)]
        known = [*names, *dict.fromkeys(name.partition("@")[0] for name in names)]  # a cell, or all of a stage
        wanted = getattr(problem, "name", None) or os.path.relpath(problem.file)
        raise StorageError(f"{wanted}: there is no such target{did_you_mean(wanted, known)}") from None
    main = str(paths.PIPELINE.absolute())
    # the main pipeline takes nothing of others, so it can do without DVC reading them
    index = Index.from_file(repo, main) if {stage.path for stage in chosen} == {main} else repo.index
    graph = get_active_graph(index.graph)
    return graph, plan_repro(graph, chosen)


def with_readable_notes(repo: Repo, load: Callable[[], Repro]) -> Repro:
    """Load it; a dvc.lock or DVC's rwlock that a kill cut short is set aside with one line."""
    try:
        with rwlock(repo.tmp_dir, repo.fs, "", [], [], hardlink=False):
            return load()
    except (YAMLSyntaxError, YAMLValidationError, RWLockFileCorruptedError, RWLockFileFormatError) as problem:
        torn = Path(getattr(problem, "path", getattr(problem, "relpath", NOTES)))
        if torn not in (NOTES, torn.with_suffix(".lock")):
            raise
        aside = torn.replace(torn.with_name(f"{torn.name}.torn"))
        found = "what has run comes back from DVC's run cache"
        print(f"{torn} can't be read, as after a kill, and is now {aside}; {found}", file=sys.stderr)
        return with_readable_notes(repo, load)
