"""A plan names the stages that have something to do and why, and how long they took; `dvc repro` then looks at no other."""

import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from skill_grafting.support.errors import StorageError
from stages.workflow.plan import line, reasons_of, table
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import last_runs
from tests.dvc_project import dvc, lay_out_toy

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what DVC imports
ENTRIES = {
    "root": {"cmd": "echo root > root.txt", "deps": ["given.txt"], "outs": ["root.txt"]},
    "left": {"cmd": "cat root.txt > left.txt", "deps": ["root.txt"], "params": ["size"], "outs": ["left.txt"]},
    "last": {"cmd": "cat left.txt > last.txt", "deps": ["left.txt"], "outs": ["last.txt"]},
    "alone": {"cmd": "echo alone > alone.txt", "deps": ["given.txt"], "outs": ["alone.txt"]},
}


def files(given: int = 1, size: int = 1, entries: object = ENTRIES) -> dict[str, str]:
    return {"given.txt": f"{given}", "params.yaml": f"size: {size}\n", "dvc.yaml": json.dumps({"stages": entries})}


def edit(**changes: object) -> None:
    for name, text in files(**changes).items():
        Path(name).write_text(text)


EDITS = [
    (edit, {}),
    (lambda: edit(size=2), {"left": ["modified size"], "last": ["after left"]}),
    (lambda: Path("last.txt").unlink(), {"last": ["missing last.txt"]}),
    (
        lambda: edit(given=2),
        {"root": ["modified given.txt"], "alone": ["modified given.txt"], "left": ["after root"], "last": ["after left"]},
    ),
    (lambda: edit(entries=ENTRIES | {"last": ENTRIES["last"] | {"cmd": "cat left.txt  > last.txt"}}), {"last": ["changed command"]}),
]  # fmt: skip


def test_every_reason_is_named_and_looking_changes_nothing(project, monkeypatch):
    lay_out_toy(monkeypatch, files())
    assert reasons_of(["dvc.yaml"])["last"] == ["not run yet", "after left"]
    for change, expected in EDITS:
        edit()
        assert dvc(["repro", "-q"]) == 0
        change()
        before = {path: path.stat().st_mtime_ns for path in Path().glob("*.*")}
        found = reasons_of(["dvc.yaml"])
        assert {name: reasons for name, reasons in found.items() if reasons} == expected and {*found} == {*ENTRIES}
        assert {path: path.stat().st_mtime_ns for path in Path().glob("*.*")} == before
    for target, near in (("lefd", "left"), ("dvcc.yaml", "dvc.yaml")):
        said = re.escape(f"{target}: there is no such target (did you mean '{near}'?)")
        with pytest.raises(StorageError, match=said):
            reasons_of([target])
    edit(entries=1)
    with pytest.raises(StorageError, match=r"^[^\n]*dvc\.yaml[^\n]*$"):
        reasons_of(["dvc.yaml"])


PLAN = {"fetch": [], "mask@a-1": ["modified graft.sparsity", "after fetch"], "mask@b-1": ["not run yet"], "ood@1": ["after mask@a-1"]}  # fmt: skip


def test_how_long_it_took_the_last_time_stands_beside_what_is_to_be_done(project):
    assert line(PLAN) == "3 of 4 stages to run or to take from the cache; none has run on this machine yet."
    paths.DURATIONS.parent.mkdir(parents=True)
    notes = [{"stage": "mask@a-1", "seconds": 9, "mib": 1}, {"stage": "mask@a-1", "seconds": 60, "mib": 700}, {"stage": "ood@1", "seconds": 30}]  # fmt: skip
    paths.DURATIONS.write_text("\n".join(map(json.dumps, notes)))
    assert last_runs() == {"mask@a-1": (60, 700), "ood@1": (30, 0.0)}, "the last one counts"
    told = "3 of 4 stages to run or to take from the cache; they took 1.5 minutes the last time, not counting 1 that never ran here."
    assert line(PLAN) == told
    assert line({"fetch": []}) == "Nothing to run: 1 stages are up to date."
    grouped, single = drawn(single=False), drawn(single=True)
    assert re.search(r"mask +2 +2 +60 s +modified graft\.sparsity and 2 more", grouped)
    assert re.search(r"ood +1 +1 +30 s +after mask *\n", grouped) and "mask@a-1" not in grouped
    assert re.search(r"mask@b-1 +1 +1 +\? +not run yet", single) and "after mask@a-1" in single
    paths.DURATIONS.write_text('{"stage": "mask@a-1", "seco')
    assert last_runs() == {}, "notes that a kill cut short are no obstacle"


def drawn(single: bool) -> str:
    console = Console(width=150)
    with console.capture() as said:
        console.print(table(PLAN, single))
    return said.get()
