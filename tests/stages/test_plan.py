"""A plan names the stages that have something to do and why, and how long they took; `dvc repro` then looks at no other."""

import json
import logging
import re
from pathlib import Path

import pytest
from rich.console import Console

from skill_grafting.errors import StorageError
from stages.workflow.core import paths
from stages.workflow.core.stage import last_runs
from stages.workflow.plan import line, reasons_of, table
from tests.dvc_project import Run, dvc, lay_out_toy

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what DVC imports
ENTRIES = {
    "root": {"cmd": "echo root > root.txt", "deps": ["given.txt"], "outs": ["root.txt"]},
    "left": {"cmd": "cat root.txt > left.txt", "deps": ["root.txt"], "params": ["size"], "outs": ["left.txt"]},
    "last": {"cmd": "cat left.txt > last.txt", "deps": ["left.txt"], "outs": ["last.txt"]},
    "alone": {"cmd": "echo alone > alone.txt", "deps": ["given.txt"], "outs": ["alone.txt"]},
}


@pytest.fixture
def toy(project, monkeypatch) -> Path:
    files = {"given.txt": "1", "params.yaml": "size: 1\n", "dvc.yaml": json.dumps({"stages": ENTRIES})}
    return lay_out_toy(monkeypatch, files)


def plan() -> dict[str, tuple[str, ...]]:
    return {name: (*why,) for name, why in reasons_of(["dvc.yaml"]).items()}


def set_size(size: int) -> None:
    Path("params.yaml").write_text(f"size: {size}\n")


EDITS = {
    "nothing": (lambda: None, {}),
    "setting": (lambda: set_size(2), {"left": ("modified size",), "last": ("after left",)}),
    "output": (lambda: Path("last.txt").unlink(), {"last": ("missing last.txt",)}),
    "input": (
        lambda: Path("given.txt").write_text("2"),
        {"root": ("modified given.txt",), "alone": ("modified given.txt",), "left": ("after root",), "last": ("after left",)},
    ),
    "command": (
        lambda: Path("dvc.yaml").write_text(json.dumps({"stages": ENTRIES}).replace("cat left.txt >", "cat  left.txt >")),
        {"last": ("changed command",)},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("edit", "expected"), EDITS.values(), ids=EDITS)
def test_every_reason_is_named_and_dvc_then_looks_at_no_other_stage(toy, caplog, edit, expected):
    assert {*plan().values()} <= {("not run yet",), ("not run yet", "after root"), ("not run yet", "after left")}
    assert dvc(["repro"]) == 0
    edit()
    before = {path: path.stat().st_mtime_ns for path in Path().glob("*.*")}
    found = plan()
    assert {name: reasons for name, reasons in found.items() if reasons} == expected and {*found} == {*ENTRIES}
    assert {path: path.stat().st_mtime_ns for path in Path().glob("*.*")} == before, "it only looks"
    caplog.clear()
    caplog.set_level(logging.INFO, "dvc")
    assert dvc(["repro"]) == 0
    done = {name for name, fate in Run(0, "\n".join(caplog.messages), 0).fates.items() if fate != "unchanged"}
    assert done <= {*expected} and bool(done) == bool(expected)


def test_a_pipeline_that_dvc_cannot_read_is_one_line(toy):
    Path("dvc.yaml").write_text("stages: 1\n")
    with pytest.raises(StorageError, match=r"^[^\n]*dvc\.yaml[^\n]*$"):
        plan()


def test_an_unknown_target_is_told_the_nearest_one(toy):
    for target, near in (("lefd", "left"), ("dvcc.yaml", "dvc.yaml")):
        with pytest.raises(
            StorageError, match=re.escape(f"{target}: there is no such target (did you mean '{near}'?)")
        ):
            reasons_of([target])


STEPS = {
    "fetch": [], "mask@a-1": ["modified graft.sparsity", "after fetch"], "mask@b-1": ["not run yet"],
    "ood@1": ["after mask@a-1", "after mask@b-1"],
}  # fmt: skip


def test_how_long_it_took_the_last_time_stands_beside_what_is_to_be_done(project):
    assert line(STEPS) == "3 of 4 stages to run, or to take from the cache: never run on this machine."
    paths.DURATIONS.parent.mkdir(parents=True)
    notes = [{"stage": "mask@a-1", "seconds": 9, "mib": 1}, {"stage": "mask@a-1", "seconds": 60, "mib": 700}, {"stage": "ood@1", "seconds": 30}]  # fmt: skip
    paths.DURATIONS.write_text("\n".join(map(json.dumps, notes)))
    assert last_runs() == {"mask@a-1": (60, 700), "ood@1": (30, 0.0)}, "the last one counts"
    assert line(STEPS) == (
        "3 of 4 stages to run, or to take from the cache: 1.5 minutes the last time, without 1 that never ran here."
    )
    assert line({"fetch": []}) == "Nothing to run: 1 stages are up to date."
    grouped, single = drawn(single=False), drawn(single=True)
    assert re.search(r"mask +2 +2 +60 s +modified graft\.sparsity and 2 more", grouped)
    assert re.search(r"ood +1 +1 +30 s +after mask *\n", grouped) and "mask@a-1" not in grouped
    assert re.search(r"mask@b-1 +1 +1 +\? +not run yet", single) and "after mask@a-1, after mask@b-1" in single


def drawn(single: bool) -> str:
    console = Console(width=150)
    with console.capture() as said:
        console.print(table(STEPS, single))
    return said.get()


def test_notes_that_a_kill_cut_short_are_no_obstacle(project):
    paths.DURATIONS.parent.mkdir(parents=True)
    paths.DURATIONS.write_text('{"stage": "mask@a-1", "seco')
    assert last_runs() == {}
