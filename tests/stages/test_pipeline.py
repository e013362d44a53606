"""The real pipeline under the real DVC: what it makes, what it makes again after a change, and what a crash leaves.

`story` is a copy of the project that is changed step by step: its stages run as forks of the runner, or under DVC itself where a change
concerns few of them.  In `killed`, another copy, DVC itself runs a cell: a stage is killed in the middle of a save, and the next start
ends with the bytes of the forks.
"""

import hashlib
import json
import re
from typing import Any

import pytest

from stages.workflow.core import paths
from tests.dvc_project import CELL_STAGES, SEED_STAGES, Copy, Run, Step, cell, clone, make_original, per_seed
from tests.imports import closure
from tests.test_dvc_yaml import ROOT

pytestmark = pytest.mark.timeout(900)

BEFORE_MASK = ("data/sample/", "models/", "masks/movement/", "metrics/reference/", "metrics/controls/")
EVALUATE = "evaluate@movies-13"
FOR_GIT = ["metrics/summary.json", "metrics/summary.md"]
NOTES = {f"{folder}/README.md" for folder in ("data/local", "models/checkpoints", "models/local")}
RUNNER = ("python", "-m", "stages.workflow.run", "--workers", "2")
DRAWN = ("frontier", "ood", "reliability", "confidence")
HEAD = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


def step(copy: Copy, run: Run) -> Step:
    return Step(run, copy.lock(), copy.files("data", "models", "masks", "metrics", "plots"))


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Copy:
    return make_original(tmp_path_factory.mktemp("pipeline"))


@pytest.fixture(scope="module")
def story(original) -> dict[str, Any]:
    """One copy through all its changes: step name -> Step."""
    copy = clone(original, "story")
    log = original.folder.with_name("log")
    log.mkdir()
    steps = {"first": step(copy, copy.run(*RUNNER, TEST_LOG=str(log)))}
    copy.commit()
    steps["nothing"] = step(copy, copy.repro())
    copy.run("git", "checkout", "-qb", "binned")
    steps["bins"] = step(copy, copy.run("dvc", "exp", "run", "-n", "tenbins", "-S", "calibration.bins=10"))
    copy.commit()
    diff = copy.run("dvc", "metrics", "diff", "main", "binned", "--json")
    copy.set("graft.sparsity=0.0005", "tasks=[movies,products]")
    steps["more"] = step(copy, copy.run(*RUNNER))
    copy.run("git", "checkout", "-q", "main", "--", "params.yaml")
    steps["back"] = step(copy, copy.run(*RUNNER))
    # a word about metrics/study.json comes first, as this copy has no study
    found = diff.text[diff.text.index("{") :]
    return {**steps, "copy": copy, "log": log, "diff": json.loads(found)}


@pytest.fixture(scope="module")
def killed(original) -> dict[str, Any]:
    """A copy in which a stage is killed, before and after it is started again with other threads; runtime.threads has the last word."""
    copy = clone(original, "killed")
    torn = step(copy, copy.repro(EVALUATE, fails=True, TEST_TARGET=str(paths.finetuned("movies", 13))))
    return {"torn": torn, "finished": step(copy, copy.repro(EVALUATE, OMP_NUM_THREADS="3")), "copy": copy}


# --- What is made ----------------------------------------------------------------------------------------------


def expected_files(task: str, seed: int, ood: list[str]) -> set[str]:
    """Every file that the pipeline makes for one task and one seed."""
    logits = [paths.logits(stage, task, seed) for stage in ("reference", "controls", "evaluate")]
    scores = [paths.record(stage, task, seed) for stage in ("reference", "controls", "evaluate", "calibration", "ood")]
    drawn = {
        "csv": ("scores", "scores_drawn", "masks", "tasks", "leaks", "run", *DRAWN),
        "png": ("accuracy", "calibration", *DRAWN),
    }
    found = [
        *(paths.finetuned(task, seed) / name for name in (*HEAD, "training.json")),
        *(paths.sample(task, seed, split) for split in ("train", "dev", "test")),
        *(paths.LEAKAGE, paths.table(task), paths.card(task)),
        *(paths.ood_table(task, name) for name in ood),
        *(paths.movement(task, seed), paths.learned(task, seed)),
        *(*logits, *scores),
        *(paths.PRETRAINED / name for name in (*HEAD, "anatomy.json")),
        *(*FOR_GIT, *NOTES),
        *(paths.PLOTS / f"{name}.{kind}" for kind, names in drawn.items() for name in names),
    ]
    return {*map(str, found)}


def test_one_command_makes_exactly_the_promised_files(story):
    first = story["first"]
    assert {*first.run.executed} == {"fetch", "model", "summary"} | cell("movies-13")
    files = ("card.json", "table.jsonl")
    products = {str(paths.card("products").with_name(name)) for name in files}  # tested on, not trained on
    assert {*first.files} == expected_files("movies", 13, ["products"]) | products
    assert all(first.files.values())


def test_a_second_run_does_nothing(story):
    nothing = story["nothing"]
    print(f"dvc repro with nothing to do: {nothing.run.seconds:.1f} s")
    assert "are up to date" in nothing.run.text
    assert (nothing.run.executed, nothing.run.cached) == ([], [])
    assert nothing.files == story["first"].files


def test_git_is_clean_after_a_run_but_for_what_belongs_to_it(story):
    tracked = story["copy"].run("git", "ls-tree", "-r", "--name-only", "main").text.split()
    tops = ("data/", "models/", "masks/", "metrics/", "plots/", "dvc.lock")
    plots = {name for name in story["first"].files if name.startswith("plots/")}
    assert {name for name in tracked if name.startswith(tops) and not name.endswith("/.gitkeep")} == NOTES | {
        "dvc.lock",
        *FOR_GIT,
    } | plots


def test_every_file_that_a_stage_opens_is_among_its_dependencies(story):
    seen = {}
    for log in story["log"].iterdir():
        # of code what was imported: the guard at a stage's end looks at every file of it
        lines = (line for line in log.read_text().splitlines() if "__pycache__" in line or not lies_in(line, "stages"))
        seen.setdefault(log.name.split(".")[0], set()).update(map(source_of, lines))
    assert {*seen} == {"fetch", "model", "summary", *CELL_STAGES, *SEED_STAGES}
    for stage, opened in seen.items():
        lock = story["first"].lock
        entry = next(lock[name] for name in (stage, f"{stage}@movies-13", f"{stage}@13") if name in lock)
        known = [item["path"] for kind in ("deps", "outs") for item in entry.get(kind, [])]
        own = {path for path in opened if belongs_to_project(path)}
        strange = {path for path in own if not any(lies_in(path, place) for place in known)}
        assert strange - read_for_settings() == set()
        assert f"stages/{stage}.py" in opened
    # the control: what is read by libraries, inside functions, and loaded by its name is seen
    model = str(paths.PRETRAINED / "model.safetensors")
    assert {str(paths.movement("movies", 13)), model} <= seen["mask"]


def read_for_settings() -> set[str]:
    """What the check of the settings reads of other pipelines, of which no result depends."""
    settings = [path.relative_to(ROOT) for path in ROOT.glob("stages/**/settings.py")]
    return {*map(str, closure(*settings)), "params.yaml"}


def source_of(path: str) -> str:
    """The .py that a .pyc was made from."""
    folder, _, name = path.rpartition("/")
    return f"{folder.removesuffix('/__pycache__')}/{name.split('.')[0]}.py" if folder.endswith("__pycache__") else path


def belongs_to_project(path: str) -> bool:
    return not path.startswith(("..", "/", ".dvc/")) and not path.endswith("__init__.py")


def lies_in(path: str, place: str) -> bool:
    return re.match(rf"{re.escape(place)}(\.\w+\.partial)?(/|$)", path) is not None


# --- What is made again ----------------------------------------------------------------------------------------


def test_other_bins_run_calibration_and_summary_only(story):
    assert {*story["bins"].run.executed} == {"summary"} | per_seed("13", stages=("calibration",))
    assert json.loads(story["bins"].files["metrics/calibration/13/movies.json"])["bins"] == 10
    assert "bins: 10" in story["copy"].run("git", "show", "binned:params.yaml").text


def test_two_branches_can_be_compared(story):
    changed = story["diff"]["metrics/summary.json"]
    assert len(changed) <= 15 and "grafted_ece" in changed
    assert not [name for name in changed if "score" in name]


def test_another_sparsity_runs_what_follows_of_a_cell_and_another_task_a_cell_of_its_own(story):
    before, after = story["bins"], story["more"]
    follows = cell("movies-13", stages=("mask", "evaluate"))
    assert {*after.run.executed} == {"fetch", "summary"} | follows | cell("products-13")
    untouched = cell("movies-13") - follows - per_seed("13")
    assert {name: after.lock[name] for name in untouched} == {name: before.lock[name] for name in untouched}
    changed = {path for path, content in before.files.items() if after.files.get(path) != content}
    assert {*map(str, [paths.learned("movies", 13), paths.logits("evaluate", "movies", 13)])} <= changed
    assert not [path for path in changed if path.startswith(BEFORE_MASK)]
    told = after.files["metrics/summary.md"]
    assert b"| movies |" in told and b"| products |" in told


def test_going_back_to_old_values_and_fewer_tasks_runs_no_cell_and_leaves_no_trace_in_the_summary(story):
    first, back = story["first"], story["back"]
    # a stage of all tasks reads folders in which the files of the dropped one still are
    assert {*back.run.executed} == {"summary"} | per_seed("13")
    assert {name: back.lock[name]["outs"] for name in first.lock} == {
        name: first.lock[name]["outs"] for name in first.lock
    }
    assert {name: back.files[name] for name in first.files} == first.files, "a cell comes back from the run cache"
    left = {name for name in back.files if name not in first.files}
    assert str(paths.record("evaluate", "products", 13)) in left, "the control: the dropped cell's own files are there"
    assert all("/13/products" in name for name in left)


# --- What a crash leaves, and whether the same settings give the same bytes ------------------------------------


def test_a_stage_killed_while_it_writes_leaves_nothing_under_the_final_name(killed):
    torn = killed["torn"]
    place = str(paths.finetuned("movies", 13))
    assert "finetune@movies-13" in torn.run.executed and "exited with -9" in torn.run.text
    assert "finetune@movies-13" not in torn.lock and "sample@movies-13" in torn.lock
    left = {name: len(content) for name, content in torn.files.items() if name.startswith(place)}
    assert {bool(re.fullmatch(r"movies\.\w+\.partial", name.split("/")[3])) for name in left} == {True}
    whole = killed["finished"].files[f"{place}/model.safetensors"]
    [half] = [size for name, size in left.items() if name.endswith("/model.safetensors")]
    assert half == len(whole) // 2  # the control: it did die half-way


def test_what_was_killed_in_another_copy_and_is_finished_by_dvc_ends_with_the_bytes_of_the_runner(story, killed):
    first, finished = story["first"], killed["finished"]
    assert {*finished.run.executed} == cell("movies-13", of_seeds=("reference", "controls")) - {"sample@movies-13"}
    assert {*finished.lock} == {"fetch", "model"} | cell("movies-13", of_seeds=("reference", "controls"))
    assert finished.lock == {name: first.lock[name] for name in finished.lock}
    whole = {name: content for name, content in finished.files.items() if ".partial/" not in name}
    assert whole.items() <= first.files.items() and len(whole) > 20


def test_no_stage_modifies_what_another_one_made(story, killed):
    # files are linked into the cache, so writing in place would make a cache entry differ from its name
    for copy in (story["copy"], killed["copy"]):
        entries = [path for path in (copy.folder / ".dvc/cache/files/md5").glob("??/*") if path.suffix != ".dir"]
        assert len(entries) > 20
        digests = {path.parent.name + path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in entries}
        assert [name for name, digest in digests.items() if name != digest] == []
