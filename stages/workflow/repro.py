"""What `dvc repro` does of each stage, asked of DVC in this process: has it changed, is it in the run cache, record what it made.

What dvc.lock doesn't say yet the run cache knows, so dvc.lock, which DVC reads and writes whole, is written once a minute.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.repo.index import Index
from dvc.repo.reproduce import collect_stages, get_active_graph, plan_repro
from dvc.rwlock import RWLockFileCorruptedError, RWLockFileFormatError, rwlock
from dvc.scm import SCMError
from dvc.stage import Stage
from dvc.stage.cache import RunCacheNotFoundError
from dvc.stage.exceptions import StageFileDoesNotExistError, StageNotFound
from dvc.utils.strictyaml import YAMLSyntaxError, YAMLValidationError
from dvc_data.hashfile.hash import hash_file

from stages.lib import paths
from stages.lib.errors import StorageError, did_you_mean

RECORD_EVERY = 60.0
NOTES = Path(".dvc/tmp/rwlock")


@contextmanager
def repository() -> Iterator[Repo]:
    """This folder's repository; what DVC raises is a StorageError of one line."""
    try:
        with Repo(_wait_for_lock=True) as repo:
            yield repo
    except DvcException as problem:
        remedy = "; clone the project with git, or `git init` it" if isinstance(problem, SCMError) else ""
        raise StorageError(" ".join(str(problem).split()) + remedy) from None


class Repro:
    """The stages of `dvc repro TARGETS`: those that may start, those that wait for others, and those that failed and why."""

    def __init__(self, repo: Repo, targets: Sequence[str] | None) -> None:
        self._repo = repo
        with rwlock(repo.tmp_dir, repo.fs, "", [], [], hardlink=False):  # or the first stage would find it torn
            pass
        self.graph, self.steps = _steps(repo, targets)
        self._missing = {stage: {*self.graph.successors(stage)} for stage in self.steps}
        self._ready = [stage for stage in self.steps if not self._missing[stage]]
        self.failed: dict[Stage, str] = {}
        self.finished = 0
        self._busy: dict[Stage, ExitStack] = {}
        self._unrecorded: list[Stage] = []
        self._recorded_at = time.monotonic()

    def begin(self) -> list[Stage]:
        """Stages whose commands are to run now.  Others that wait for nothing are done: unchanged, or taken from the run cache."""
        started = []
        with self._repo.lock, self._repo.scm_context(quiet=True):
            while self._ready:
                stage = self._ready.pop(0)
                with self._told(stage):
                    if self._has_to_run(stage):
                        self._busy[stage] = self._noted(stage)
                        started.append(stage)
                    else:
                        self._done(stage)
        return started

    def end(self, stage: Stage, failure: str | None) -> None:
        """The command of a stage has ended: record what it made, or why it failed."""
        with self._repo.lock, self._repo.scm_context(quiet=True):
            self._busy.pop(stage).close()
            if failure is not None:
                self.failed[stage] = failure
                return
            with self._told(stage):
                self._save(stage)
                self._done(stage)

    @contextmanager
    def _told(self, stage: Stage) -> Iterator[None]:
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
        try:
            self._repo.stage_cache.restore(stage)
        except RunCacheNotFoundError:
            stage.save_deps()
            return True
        self._save(stage)
        return False

    def _noted(self, stage: Stage) -> ExitStack:
        """DVC's own note that this stage runs, so that another `dvc repro` leaves it alone."""
        words = " ".join([*sys.argv, stage.addressing])
        places = [[part.fs_path for part in parts] for parts in (stage.deps, stage.outs)]
        stack = ExitStack()
        stack.enter_context(rwlock(self._repo.tmp_dir, self._repo.fs, words, *places, hardlink=False))
        return stack

    def _save(self, stage: Stage) -> None:
        stage.save(run_cache=is_kept(stage))
        stage.commit()
        self._unrecorded.append(stage)
        if time.monotonic() - self._recorded_at > RECORD_EVERY:
            self._write_locks()

    def _write_locks(self) -> None:
        for file in {stage.dvcfile.path for stage in self._unrecorded}:
            stages = [stage for stage in self._unrecorded if stage.dvcfile.path == file]
            stages[0].dvcfile.dump_stages(stages, update_pipeline=False)
        self._unrecorded, self._recorded_at = [], time.monotonic()

    def _done(self, stage: Stage) -> None:
        self.finished += 1
        for other in self.graph.predecessors(stage):
            if stage in self._missing.get(other, ()):
                self._missing[other].remove(stage)
                self._ready += [other] * (not self._missing[other])

    def close(self) -> None:
        """Leave nothing noted as running, and nothing unrecorded."""
        for stack in self._busy.values():
            stack.close()
        with self._repo.lock, self._repo.scm_context(quiet=True):
            self._write_locks()

    def held_back(self) -> list[Stage]:
        """Stages that never started, as they need what failed."""
        return [stage for stage in self.steps if self._missing[stage]]

    def hash_outputs(self, stage: Stage) -> None:
        """Have DVC know the hashes of a stage's outputs, in a thread of its own, so that recording them takes a moment."""
        for out in stage.outs:
            place = Path(out.fs_path)
            for file in [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]:
                hash_file(str(file), out.fs, out.hash_name, self._repo.state)


def is_kept(stage: Stage) -> bool:
    """Does DVC's run cache keep a run of this stage?  None with `outs` that git keeps, as those of reports."""
    return all(out.use_cache or out.is_metric or out.is_plot for out in stage.outs)


def _steps(repo: Repo, targets: Sequence[str] | None) -> tuple:
    """DVC's graph, and the stages of these targets (None for all) with what they need, in an order in which they may run."""
    try:
        chosen = None if targets is None else collect_stages(repo, targets)
    except StageNotFound as problem:
        names = [stage.name for stage in repo.index.stages if stage.relpath == problem.file]
        raise StorageError(f"{problem}{did_you_mean(problem.name, names)}") from None
    except StageFileDoesNotExistError as problem:
        files = [stage.relpath for stage in repo.index.stages]
        raise StorageError(f"{problem}{did_you_mean(Path(problem.file).as_posix(), files)}") from None
    main = str(paths.PIPELINE.absolute())
    # the main pipeline takes nothing of others, whose files needn't be read for it
    alone = chosen is not None and {stage.path for stage in chosen} == {main}
    graph = get_active_graph((Index.from_file(repo, main) if alone else repo.index).graph)
    return graph, plan_repro(graph, chosen)


def with_readable_locks(load: Callable[[], Repro]) -> Repro:
    """Load it; a dvc.lock, or DVC's note of who runs, that a kill cut short is set aside with one line."""
    try:
        return load()
    except (YAMLSyntaxError, YAMLValidationError, RWLockFileCorruptedError, RWLockFileFormatError) as problem:
        torn = Path(getattr(problem, "path", "") or getattr(problem, "relpath", NOTES))
        if torn.suffix not in (".lock", NOTES.suffix):
            raise
        aside = torn.rename(torn.with_name(f"{torn.name}.torn"))
        told = "finished stages come back from DVC's run cache"
        print(f"{torn} can't be read, as after a kill, and is now {aside}; {told}", file=sys.stderr)
        return with_readable_locks(load)
