"""A killed training, mask learning, joint training, sequence or sparse training goes on, and ends in the same bytes."""

import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor

from skill_grafting.api import localize
from skill_grafting.errors import StorageError
from skill_grafting.fields import Params
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.io import read_rows, write_rows
from skill_grafting.loops import State
from skill_grafting.models.evidence import objective_of
from skill_grafting.training.finetuning import finetune, train_again
from skill_grafting.training.training import train
from stages.workflow.core import resume as checkpoint
from stages.workflow.core import settings as params
from stages.workflow.core import stage as entry
from stages.workflow.core.cells import GraftCell
from stages.workflow.core.resume import KeptLoop, keeping
from tests.pico import change_one_value, finetune_settings, localizer_settings, random_mask, same, values_of
from tests.stages import test_continual, test_multitask

STEPS, SECONDS = 14, 5
HARD = {"max_steps": STEPS, "dropout": 0.2, "eval_steps": 4, "learning_rates": [3e-3, 1e-2], "schedule": "linear"}
MOMENTUM = {**HARD, "optimizer": "sgd", "learning_rates": [0.05, 0.2], "momentum": 0.9, "weight_decay": 0.01}
Outcome = tuple[dict[str, Tensor], Any]


class Killed(BaseException):
    """An exception that no stage catches."""


def tune(
    cell: Any, only: GraftMask | None = None, rows: Any = None, folder: Path | None = None, **more: Any
) -> Outcome:
    where = replace(cell.to_train(), rows=rows or cell.rows, pretrained=folder or cell.pretrained_folder)
    done = finetune(where, finetune_settings(**more), only=only)
    return values_of(done.model), done.record


def learn(cell: Any, **more: Any) -> Outcome:
    """A mask by mini-batches, chosen by dev."""
    opened = GraftCell.of(cell.load(), 0, ["layers"], cell.pretrained_folder)
    loss = objective_of(opened.model, opened.region.shapes, cell.rows["train"], cell.rows["dev"], ("mask", "toy", 0))
    settings = localizer_settings(
        "learned", **{"select": "authors", "steps": STEPS, "eval_steps": 4, "batch_size": 8} | more
    )
    found = localize(opened.pretrained, opened.finetuned, sparsity=0.02, method=settings, loss=loss)
    return found.indices, found.record


def learn_in_turn(after_main: Any) -> Outcome:
    """Two tasks one after the other, the second with a penalty."""
    after_main("standard")
    made = test_continual.learner("ewc", "standard")
    done = test_continual.learn_in_order(made, "ewc", test_continual.TEST)
    return test_continual.weights_of(made), [made.kept(), done.facts]


def join(cell: Any) -> Outcome:
    changes = {**HARD, "max_steps": 6}
    shared, record = test_multitask.train(cell.pretrained_folder, "standard", **changes)
    return {name: weight.detach().clone() for name, weight in shared.parameters().items()}, record


RUNS: dict[str, Callable[[Any, Any], Outcome]] = {
    "adamw": lambda make, _: tune(make("prompt"), l1=0.01, **HARD),
    "mask": lambda make, _: learn(make("prompt")),
    "joint": lambda make, _: join(make("standard")),
    "sequence": lambda _, after_main: learn_in_turn(after_main),
    "sparse": lambda make, _: tune(
        make("standard"), random_mask(make("standard").region, 300, 2), **{**MOMENTUM, "learning_rates": [0.05]}
    ),
}


@pytest.fixture
def clock(monkeypatch):
    """A second passes whenever somebody looks."""
    ticks = count()
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=lambda: next(ticks)))


def live(
    run: Callable[[], Outcome], folder: Path, kill_at: int = 0, words: Any = "same", seconds: float = SECONDS
) -> tuple[Outcome | None, int]:
    """The result of a run, None if it is killed at a step, and the number of its steps."""
    steps, keep = [], KeptLoop.keep

    def counted(loop: KeptLoop, state: Any) -> None:
        steps.append(loop)
        if len(steps) == kill_at:
            raise Killed
        keep(loop, state)

    with pytest.MonkeyPatch.context() as patch, suppress(Killed):
        patch.setattr(KeptLoop, "keep", counted)
        with keeping(folder, "toy", lambda: (seconds, words)):
            return run(), len(steps)
    return None, len(steps)


def equal(one: Outcome, other: Outcome) -> bool:
    return same(one[0], other[0]) and one[1] == other[1]


@pytest.mark.parametrize("kind", RUNS)
def test_killed_at_any_step_and_run_again_it_ends_in_the_same_bytes(kind, make_cell, after_main, tmp_path, clock):
    def run() -> Outcome:
        return RUNS[kind](make_cell, after_main)

    folder, undisturbed = tmp_path / "kept", run()
    watched, steps = live(run, folder)
    assert equal(watched, undisturbed) and not folder.exists()
    kill = random.Random(kind).randint(2 * SECONDS, steps)
    assert live(run, folder, kill) == (None, kill)
    outcome, left = live(run, folder)
    assert equal(outcome, undisturbed), f"killed at step {kill} of {steps}"
    assert not folder.exists()
    done = steps - left
    assert kill - 2 * SECONDS <= done and done > 0, "nearly all that was done before is not done again"


@pytest.mark.parametrize("lost", ["random", "optimizer", "nothing"])
def test_without_a_part_of_the_state_the_bytes_would_differ(make_cell, tmp_path, clock, monkeypatch, lost):
    def run() -> Outcome:
        return tune(make_cell("standard"), **{**MOMENTUM, "learning_rates": [0.5], "eval_steps": 1})

    undisturbed = run()
    live(run, tmp_path / "kept", STEPS - 2)
    part = State.part
    monkeypatch.setattr(State, "part", lambda state, name: {} if name == lost else part(state, name))
    resumed, left = live(run, tmp_path / "kept")
    assert left < STEPS
    assert equal(resumed, undisturbed) == (lost == "nothing")


# --- Whose checkpoint it is ----------------------------------------------------------------------------------------


def another_row(folder: Path, split: str) -> None:
    first, *others = read_rows(folder / f"{split}.jsonl")
    write_rows(folder / f"{split}.jsonl", [first | {"sentence1": "so good"}, *others])


CHANGES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda _: None,
    "settings or code": lambda _: None,
    "train row": lambda folder: another_row(folder, "train"),
    "dev row": lambda folder: another_row(folder, "dev"),
    "frozen weight": lambda folder: change_one_value(
        folder / "pretrained", "bert.embeddings.position_embeddings.weight"
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_checkpoint_of_other_inputs_is_never_used(make_cell, tmp_path, clock, capsys, change):
    cell = make_cell("standard")
    shutil.copytree(cell.pretrained_folder, tmp_path / "pretrained")
    cell = replace(cell, pretrained_folder=tmp_path / "pretrained")
    for split in ("train", "dev"):
        write_rows(tmp_path / f"{split}.jsonl", cell.rows[split])

    def run() -> Outcome:
        rows = {split: read_rows(tmp_path / f"{split}.jsonl") for split in ("train", "dev")}
        return tune(cell, rows=cell.rows | rows, **{**MOMENTUM, "learning_rates": [0.05]})

    live(run, tmp_path / "kept", STEPS)
    assert capsys.readouterr().err == ""
    CHANGES[change](tmp_path)
    words = "other" if change == "settings or code" else "same"
    outcome, left = live(run, tmp_path / "kept", words=words)
    assert equal(outcome, run())
    assert left == STEPS if change != "nothing" else left < STEPS
    said = [f"toy: resumes at step {STEPS - left} of {STEPS}"] if change == "nothing" else []
    assert capsys.readouterr().err.splitlines() == said


def test_a_stage_is_told_by_its_arguments_settings_and_code(project, monkeypatch):
    """What it hands to its checkpoints, for arguments, settings and code of its own."""
    told: list[Any] = []

    @contextmanager
    def noting(folder: Path, label: str, identify: Callable[[], Any], lock: Path | None) -> Iterator[None]:
        yield
        told.append(identify())

    monkeypatch.setattr(checkpoint, "keeping", noting)
    monkeypatch.setattr(params, "READ", [(Path("params.yaml"), ("seeds",), Params(seeds=[1]))])
    monkeypatch.setattr(params, "checkpoint_seconds", lambda: 120)
    monkeypatch.setattr(params, "require_known", lambda module, arguments: None)

    def run(task: str = "movies") -> None:
        entry._run(lambda task: None, "stages.finetune", "finetune", {"task": task})

    run(), run(), run("tweets")
    params.READ[0] = (Path("params.yaml"), ("seeds",), Params(seeds=[2]))
    run()
    digests = entry.AT_START
    course = next(path for path in digests if path.endswith("training/course.py"))
    monkeypatch.setattr(entry, "AT_START", digests | {course: "edited"})
    run()
    assert told[0] == told[1] and told[0][0] == 120  # the control
    assert len({repr(one) for one in told}) == len(told) - 1


def test_a_watcher_with_a_state_of_its_own_sees_every_step(make_cell, tmp_path, clock):
    cell, seen = make_cell("prompt"), []

    def tuned() -> Outcome:
        return values_of(finetune(cell.to_train(), finetune_settings(**HARD), lambda: seen.append(1)).model), None

    def again() -> Outcome:
        seen.clear()
        settings = finetune_settings(**HARD)
        return values_of(train_again(cell.to_train(), settings, lambda _: lambda: seen.append(1))), None

    assert live(again, tmp_path / "kept")[1] == 0 and len(seen) == STEPS  # no step that a checkpoint could follow
    live(tuned, tmp_path / "kept", STEPS + 3)
    seen.clear()
    live(tuned, tmp_path / "kept")
    assert len(seen) == 2 * STEPS  # a bar that is at its end


# --- Files ---------------------------------------------------------------------------------------------------------


def test_a_damaged_checkpoint_is_ignored_with_one_line(make_cell, tmp_path, clock, capsys):
    def run() -> Outcome:
        return tune(make_cell("prompt"), **{**HARD, "learning_rates": [3e-3]})

    live(run, tmp_path / "kept", STEPS)
    [file] = (tmp_path / "kept").iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    outcome, left = live(run, tmp_path / "kept")
    assert left == STEPS and equal(outcome, run())
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{file}: damaged (") and line.endswith("so this starts from the beginning")


def test_a_full_disk_stops_the_checkpoints_and_not_the_training(make_cell, tmp_path, clock, capsys, monkeypatch):
    def full(_: Path) -> None:
        raise StorageError("no space left")

    monkeypatch.setattr(checkpoint, "replacing", full)
    cell, once = make_cell("prompt"), {**HARD, "learning_rates": [3e-3]}
    assert equal(live(lambda: tune(cell, **once), tmp_path / "kept")[0], tune(cell, **once))
    assert capsys.readouterr().err == "toy: goes on without checkpoints: no space left\n"
    assert live(lambda: tune(cell, **once), tmp_path / "kept", seconds=0)[1] == 0, "nor are there any without seconds"


def test_a_loop_that_took_long_is_kept_as_it_ended_and_a_short_one_is_not(make_cell, tmp_path, monkeypatch):
    now, cell = [0.0], make_cell("prompt")  # made before, since that trains, too
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=lambda: now[0]))

    course = train.__globals__["TrainerState"]
    step = course.step

    def run(took: float) -> None:
        def slow(*given: Any) -> None:
            now[0] += took / STEPS
            step(*given)

        with suppress(Killed), keeping(tmp_path / "kept", "toy", lambda: (100, "")):
            monkeypatch.setattr(course, "step", slow)
            tune(cell, **{**HARD, "learning_rates": [3e-3]})
            raise Killed

    run(9.0)
    assert not (tmp_path / "kept").exists()
    run(11.0)
    [file] = (tmp_path / "kept").iterdir()
    from safetensors import safe_open

    with safe_open(file, framework="pt") as stored:
        about, names = json.loads(stored.metadata()["checkpoint"]), [*stored.keys()]
    assert about["finished"] and about["step"] == STEPS
    assert {name.split("/")[0] for name in names} == {"leaves", "random"}  # nothing of the optimizer


def test_what_ended_is_kept_until_dvc_has_recorded_it(make_cell, tmp_path):
    """Between the end of a stage and the new dvc.lock, DVC hashes the outputs; who is killed then goes on from the end."""
    cell, lock, kept = make_cell("prompt"), tmp_path / "dvc.lock", tmp_path / "runs/toy"
    once = {**HARD, "learning_rates": [3e-3]}

    def ran(label: str = "toy") -> int:
        with pytest.MonkeyPatch.context() as patch, keeping(kept.with_name(label), label, lambda: (1e-9, ""), lock):
            steps: list[int] = []
            step = train.__globals__["TrainerState"].step
            patch.setattr(train.__globals__["TrainerState"], "step", lambda *given: steps.append(1) or step(*given))
            tune(cell, **once)
        return len(steps)

    def record(at: float) -> None:
        lock.touch()
        os.utime(lock, (at, at))

    record(0)
    assert [ran(), ran()] == [STEPS, 0]
    assert ran("other") == STEPS and kept.is_dir(), "the lock is older than the end of that run"
    record(time.time() + 60)
    assert ran("other") == STEPS and not kept.exists(), "both were recorded: forced again, they run again"
