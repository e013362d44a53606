"""One story under the real DVC: what runs, what a change runs again, and what a kill in the middle of a stage leaves.

`story` is a copy of the project that the runner takes through its changes.  In `killed`, another copy, plain DVC comes to the same bytes.
"""

import hashlib
import re
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from dvc.utils.hydra import apply_overrides

from skill_grafting.support.errors import GraftError
from stages.commands.profile import profile_settings
from stages.workflow.stage import decorator, paths, settings
from tests.dvc_project import (
    CELL_STAGES,
    RUNNER,
    SEED_STAGES,
    TINY,
    Copy,
    Run,
    clone,
    make_original,
    stages_of,
    wait_for,
)
from tests.settings_files import lay_out_settings
from tests.test_dvc_yaml import PIPELINES as STAGES
from tests.test_dvc_yaml import ROOT, closure, lies_in

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # of what DVC imports

SETTINGS = TINY | {"finetune": {"max_steps": 100}, "runtime": {"threads": 1}}
ONE = "movies-13"
TO_FINETUNED = {"fetch", "model"} | stages_of(ONE, of_cell=("sample", "finetune"), of_seed=())
MADE = ("data", "models", "masks", "metrics", "plots")
SAID = "edited while this ran; nothing is recorded, run `dvc repro` again"
State = tuple[Run, dict[str, Any], dict[str, bytes]]  # a run, and the lock and the files after it


def state(copy: Copy, run: Run) -> State:
    return run, copy.lock(), copy.files(*MADE)


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Copy:
    return make_original(tmp_path_factory.mktemp("dvc"), SETTINGS)


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("log")


@pytest.fixture(scope="module")
def story(original, log) -> dict[str, State]:
    """A copy in which all runs, then nothing, then a smaller mask and one more task, and then what there was before."""
    copy = clone(original, "story")
    first = state(copy, copy.run(*RUNNER, TEST_LOG=str(log)))
    copy.commit()
    nothing = state(copy, copy.repro())
    copy.set("graft.sparsity=0.0005", "tasks=[movies,products]")
    more = state(copy, copy.run(*RUNNER))
    copy.run("git", "checkout", "-q", "--", "params.yaml")
    return {"first": first, "nothing": nothing, "more": more, "back": state(copy, copy.run(*RUNNER))}


@pytest.fixture(scope="module")
def killed(original) -> dict[str, State]:
    """A copy in which DVC runs a cell up to its fine-tuning, which is killed, then goes to its end."""
    copy, words = clone(original, "killed"), ("dvc", "repro", f"finetune@{ONE}")
    process = copy.start(*words)
    [stage] = wait_for(lambda: copy.at_work("-m stages.finetune"))
    stage.send_signal(signal.SIGKILL)
    return {"killed": state(copy, copy.end(process, fails=True)), "finished": state(copy, copy.run(*words))}


# --- What runs -----------------------------------------------------------------------------------------------------


def test_one_command_runs_every_stage_and_a_second_one_none(story):
    (first, lock, files), (nothing, *after) = story["first"], story["nothing"]
    assert {*first.executed} == {*lock} == {"fetch", "model", "summary"} | stages_of(ONE)
    outs = [out["path"] for entry in lock.values() for out in entry["outs"]]
    assert [out for out in outs if not any(lies_in(file, out) for file in files)] == [] and all(files.values())
    assert (nothing.executed, nothing.cached) == ([], []) and "are up to date" in nothing.text
    assert after == [lock, files]


def test_another_sparsity_runs_what_follows_and_another_task_a_cell_of_its_own(story):
    (_, before, old), (run, after, new) = story["first"], story["more"]
    follows = {"summary"} | stages_of(ONE, of_cell=("movement", "mask", "evaluate"))
    assert {*run.executed} == {"fetch"} | follows | stages_of("products-13")
    untouched = stages_of(ONE, of_seed=()) - follows
    assert {name: after[name] for name in untouched} == {name: before[name] for name in untouched}
    changed = {path for path, content in old.items() if new[path] != content}
    assert {str(paths.mask("learned", "movies", 13)), str(paths.logits("evaluate", "movies", 13))} <= changed
    assert b"| products |" in new["metrics/summary.md"] and b"| products |" not in old["metrics/summary.md"]


def test_going_back_runs_no_cell_and_the_dropped_task_leaves_no_trace_in_the_report(story):
    (_, _, before), (run, _, after) = story["first"], story["back"]
    # a stage of all tasks reads folders in which the files of the dropped one still are
    assert {*run.executed} == {"summary"} | stages_of(ONE, of_cell=())
    assert {name: after[name] for name in before} == before, "a cell comes back from the run cache"
    left = {name for name in after if name not in before}
    assert str(paths.record("evaluate", "products", 13)) in left, "the control: the dropped cell's own files are there"
    assert all("/13/products" in name for name in left)


def test_every_file_that_a_stage_opens_is_among_its_dependencies(story, log):
    lock, seen = story["first"][1], {}
    for file in log.iterdir():
        # of code what was imported: the guard at a stage's end looks at every file of it
        lines = (line for line in file.read_text().splitlines() if "__pycache__" in line or not lies_in(line, "stages"))
        seen.setdefault(file.name.split(".")[0], set()).update(map(source_of, lines))
    assert {*seen} == {"fetch", "model", "summary", *CELL_STAGES, *SEED_STAGES}
    check = {*map(str, closure(*(path.relative_to(ROOT) for path in ROOT.glob("stages/**/settings.py")))), "params.yaml"}
    check.add("dvc.yaml")  # DVC itself runs a stage whose entry has changed
    for name, opened in seen.items():
        entry = next(lock[cell] for cell in (name, f"{name}@{ONE}", f"{name}@13") if cell in lock)
        known = [item["path"] for kind in ("deps", "outs") for item in entry.get(kind, [])]
        own = {path for path in opened if not path.startswith(("..", "/", ".dvc/")) and not path.endswith("__init__.py")}
        assert {path for path in own - check if not any(lies_in(path, place) for place in known)} == set(), name
    # the control: what is read by libraries, inside functions, and loaded by its name is seen
    model, movement = paths.PRETRAINED / "model.safetensors", paths.mask("movement", "movies", 13)
    assert {str(model), str(movement)} <= seen["evaluate"]


def source_of(path: str) -> str:
    """The .py that a .pyc was made from, and the final name of what is being written."""
    path = re.sub(r"\.[^./]+\.partial/[^/]+", "", path)
    folder, _, name = path.rpartition("/")
    return f"{folder.removesuffix('/__pycache__')}/{name.split('.')[0]}.py" if folder.endswith("__pycache__") else path


# --- What a kill leaves, and whether the same settings give the same bytes -------------------------------------------


def test_a_killed_stage_leaves_nothing_of_its_own_and_starts_anew_and_what_was_finished_is_kept(killed):
    (run, lock, files), (after, *_) = killed["killed"], killed["finished"]
    assert "exited with -9" in run.text and {*lock} == {"fetch", "model", f"sample@{ONE}"}
    assert not [name for name in files if name.startswith(str(paths.finetuned("movies", 13)))]
    assert {*after.executed} == TO_FINETUNED - {*lock}


def test_dvc_comes_to_the_bytes_of_the_runner_also_after_a_kill(story, killed):
    (_, expected, files), (_, lock, made) = story["first"], killed["finished"]
    assert {*lock} == TO_FINETUNED and lock == {name: expected[name] for name in lock}
    assert made.items() <= files.items() and len(made) > 20


def test_no_stage_writes_into_what_another_one_made(story, original):
    """Files are linked into the cache, where an entry would then differ from its name."""
    cache = original.folder.with_name("story") / ".dvc/cache/files/md5"
    entries = [path for path in cache.glob("??/*") if path.suffix != ".dir"]
    assert len(entries) > 20
    assert [path for path in entries if hashlib.md5(path.read_bytes()).hexdigest() != path.parent.name + path.name] == []


# --- Edits in the course of a stage ----------------------------------------------------------------------------------


EDITS = {
    "a setting": ("graft.sparsity=0.02", "params.yaml: graft"),
    "a module": ("stages/skill_grafting/support/errors.py", "stages/skill_grafting/support/errors.py"),
    "a table of tasks": ("stages/text/tasks/tasks.yaml", "stages/text/tasks/tasks.yaml"),
    "code that it has not read": ("stages/commands/profile.py", ""),
    "a setting that it has not read": ("calibration.bins=10", ""),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_of_what_a_stage_has_read_is_an_error_and_any_other_is_none(project, monkeypatch, edit):
    what, place = EDITS[edit]
    lay_out_settings()
    monkeypatch.setenv("DVC_STAGE", "toy")  # which DVC sets
    monkeypatch.setattr(settings, "READ", [])
    monkeypatch.delitem(decorator.sys.modules, "stages.commands.profile")
    monkeypatch.setattr(decorator, "AT_START", before := decorator.code_digests())

    def work(edited: bool) -> None:
        settings.load_params("graft")
        if edited and "=" in what:
            apply_overrides("params.yaml", [what])
        elif edited:
            monkeypatch.setattr(decorator, "code_digests", lambda: before | {str(ROOT / what): "another"})

    decorator._run(work, "stages.toy", "toy", {"edited": False})  # the control
    with pytest.raises(GraftError, match=f"^{place}: {SAID}$") if place else nullcontext():
        decorator._run(work, "stages.toy", "toy", {"edited": True})


# --- All pipelines ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_pipeline_runs_from_nothing_and_a_second_run_does_nothing(tmp_path):
    copy = clone(make_original(tmp_path, profile_settings("whole") | {"seeds": [13]}), "all")
    files = ["dvc.yaml", *(str(file.relative_to(copy.folder)) for file in sorted(copy.folder.glob("stages/*/dvc.yaml")))]
    ran = copy.run(*RUNNER, *files).executed
    assert {name.partition("@")[0] for name in ran} == {name for stages in STAGES.values() for name in stages}
    for name in STAGES:
        assert b"off, so without" not in (copy.folder / f"metrics/{name.replace('main', 'summary')}.md").read_bytes()
    again = copy.repro("--all-pipelines")
    assert (again.executed, again.cached) == ([], [])
