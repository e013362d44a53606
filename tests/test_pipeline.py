"""The real pipeline under the real DVC: what it makes, what it makes again after a change, and what a crash leaves.

Two copies of the project run side by side.  `story` is changed step by step; in `others` a stage is killed in the middle of a save on
the way to the same result, which the runner finishes, by forks with other threads.
"""

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from stages.workflow.core import paths
from tests.dvc_project import CELL_STAGES, SEED_STAGES, Copy, Run, Step, cell, clone, make_original, per_seed
from tests.imports import closure
from tests.test_dvc_yaml import ROOT

pytestmark = pytest.mark.timeout(900)

BEFORE_MASK = ("data/", "models/", "masks/movement/", "metrics/reference/", "metrics/controls/")
AFTER_MASK = {"stages": ("mask", "evaluate"), "of_seeds": ("calibration", "ood")}
FOR_GIT = ["metrics/summary.json", "metrics/summary.md"]
NOTES = {f"{folder}/README.md" for folder in ("data/local", "models/checkpoints", "models/local")}
RUNNER = ("python", "-m", "stages.workflow.run", "--workers", "2")
SETTINGS = {"bins": "calibration.bins=10", "task": "tasks=[movies,products]", "dropped": "tasks=[movies]"}
DRAWN = ("frontier", "ood", "reliability", "confidence")
HEAD = {"SHA256SUMS", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}


def step(copy: Copy, run: Run) -> Step:
    return Step(run, copy.lock(), copy.files("data", "models", "masks", "metrics", "plots"))


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Copy:
    return make_original(tmp_path_factory.mktemp("pipeline"))


@pytest.fixture(scope="module")
def others(original) -> Iterator[Future]:
    """The other copy, running beside the story."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(tell_others, original)


@pytest.fixture(scope="module")
def story(original, others) -> dict[str, Any]:
    """One copy through all its changes: step name -> Step."""
    copy = clone(original, "story")
    log = original.folder.with_name("log")
    log.mkdir()
    steps = {"first": step(copy, copy.repro(TEST_LOG=str(log)))}
    copy.commit()
    steps["nothing"] = step(copy, copy.repro())
    copy.run("git", "checkout", "-qb", "sparse")
    steps["sparsity"] = step(copy, copy.run("dvc", "exp", "run", "-n", "sparser", "-S", "graft.sparsity=0.0005"))
    copy.commit()
    diff = copy.run("dvc", "metrics", "diff", "main", "sparse", "--json")
    copy.set("graft.sparsity=0.01")
    steps["back"] = step(copy, copy.repro())
    for name, setting in SETTINGS.items():
        copy.set(setting)
        steps[name] = step(copy, copy.run(*RUNNER))
    # a word about metrics/study.json comes first, as this copy has no study
    found = diff.text[diff.text.index("{") :]
    return {**steps, "copy": copy, "log": log, "diff": json.loads(found)}


def tell_others(original: Copy) -> dict[str, Any]:
    """A copy in which a stage is killed, and that is finished side by side."""
    copy = clone(original, "killed")
    copy.repro("model", "sample@movies-13")
    torn = step(copy, copy.repro("finetune", fails=True, TEST_TARGET=str(paths.finetuned("movies", 13))))
    # runtime.threads has the last word
    return {"torn": torn, "finished": step(copy, copy.run(*RUNNER, OMP_NUM_THREADS="3")), "copy": copy}


def outputs(lock: dict[str, Any]) -> dict[str, str]:
    """Every output that dvc.lock names, with its MD5."""
    return {out["path"]: out["md5"] for entry in lock.values() for out in entry["outs"]}


# --- What is made ----------------------------------------------------------------------------------------------


def expected_files(task: str, seed: int, ood: list[str]) -> set[str]:
    """Every file that the pipeline makes for one task and one seed."""
    logits = [paths.predictions(stage, task, seed) for stage in ("reference", "controls", "evaluate")]
    scores = [paths.scores(stage, task, seed) for stage in ("controls", "evaluate", "calibration", "ood")]
    drawn = {
        "csv": ("scores", "scores_drawn", "masks", "tasks", "leaks", "run", *DRAWN),
        "png": ("accuracy", "calibration", *DRAWN),
    }
    listed = [paths.TABLES, paths.card(task).parent, paths.ood_table(task, "").parent, paths.sample_dir(task, seed)]
    found = [
        *(folder / "SHA256SUMS" for folder in listed),
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
    files = ("SHA256SUMS", "card.json", "table.jsonl")
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
    assert {str(paths.movement("movies", 13)), model, "stages/lib/localizers/learned.py"} <= seen["mask"]


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
    return path.startswith((f"{place}/", f"{place}.partial/")) or path in (place, f"{place}.partial")


# --- What is made again ----------------------------------------------------------------------------------------


def test_adding_a_task_runs_fetch_and_that_tasks_cell_only(story):
    added = story["task"]
    assert {*added.run.executed} == {"fetch", "summary"} | cell("products-13")
    untouched = cell("movies-13") - per_seed("13")
    assert {name: added.lock[name] for name in untouched} == {name: story["bins"].lock[name] for name in untouched}
    told = added.files["metrics/summary.md"]
    assert b"| movies |" in told and b"| products |" in told


def test_another_sparsity_runs_the_mask_and_what_follows_in_every_cell(story):
    sparser = story["sparsity"]
    assert {*sparser.run.executed} == {"summary"} | cell("movies-13", **AFTER_MASK)
    assert sparser.run.cached == []
    before, after = outputs(story["first"].lock), outputs(sparser.lock)
    changed = {path for path in before if before[path] != after[path]}
    evaluated = str(paths.predictions("evaluate", "movies", 13))
    assert {str(paths.learned("movies", 13)), evaluated, "metrics/summary.json"} <= changed
    assert not [path for path in changed if path.startswith(BEFORE_MASK)]
    assert "sparsity: 0.0005" in (story["copy"].run("git", "show", "sparse:params.yaml").text)


def test_going_back_to_an_old_value_runs_only_the_report(story):
    # DVC keeps no run of a stage with outputs that git keeps, unless they are all metrics
    back = story["back"]
    assert back.run.executed == ["summary"]
    assert {*back.run.cached} == cell("movies-13", **AFTER_MASK)
    assert back.files == story["first"].files
    assert outputs(back.lock) == outputs(story["first"].lock)


def test_other_bins_run_calibration_and_summary_only(story):
    assert {*story["bins"].run.executed} == {"summary"} | per_seed("13", stages=("calibration",))
    assert json.loads(story["bins"].files["metrics/calibration/13/movies.json"])["bins"] == 10


def test_dropping_a_task_runs_no_cell_and_leaves_no_trace_in_the_summary(story):
    dropped = story["dropped"]
    assert {*dropped.run.executed} == {"summary"} | per_seed("13")
    told = dropped.files["metrics/summary.md"]
    assert b"| movies |" in told and b"| products |" not in told
    assert b"products" not in dropped.files["plots/scores.csv"] and b"movies" in dropped.files["plots/scores.csv"]
    assert b"products" in story["task"].files["plots/scores.csv"]
    # control: the cell's own files are still there
    assert str(paths.scores("evaluate", "products", 13)) in dropped.files


def test_two_branches_can_be_compared(story):
    changed = story["diff"]["metrics/summary.json"]
    assert len(changed) <= 15 and {"grafted_ece", "grafted_score"} & {*changed}
    assert not [name for name in changed if ".finetuned.score" in name or ".pretrained." in name]


# --- What a crash leaves, and whether the same settings give the same bytes ------------------------------------


def test_a_stage_killed_while_it_writes_leaves_nothing_under_the_final_name(story, others):
    torn = others.result()["torn"]
    place = str(paths.finetuned("movies", 13))
    assert "finetune@movies-13" in torn.run.executed and "exited with -9" in torn.run.text
    assert "finetune@movies-13" not in torn.lock and "sample@movies-13" in torn.lock
    left = {name: len(content) for name, content in torn.files.items() if name.startswith(place)}
    assert {name.split("/")[3] for name in left} == {"movies.partial"}
    whole = others.result()["finished"].files[f"{place}/model.safetensors"]
    assert left[f"{place}.partial/model.safetensors"] == len(whole) // 2  # the control: it did die half-way


def test_what_was_killed_in_another_copy_and_is_finished_side_by_side_ends_with_the_same_bytes(story, others):
    assert others.result()["copy"].repro().executed == [], "DVC finds nothing more to do"
    finished = others.result()["finished"]
    assert {"model", "sample@movies-13"}.isdisjoint(finished.run.executed), "it went on where it was killed"
    assert not [name for name in finished.files if ".partial" in name]
    assert finished.lock == story["first"].lock
    assert finished.files == story["first"].files
    assert len(outputs(finished.lock)) > 20


def test_no_stage_modifies_what_another_one_made(story, others):
    # files are linked into the cache, so writing in place would make a cache entry differ from its name
    for copy in (story["copy"], others.result()["copy"]):
        entries = [path for path in (copy.folder / ".dvc/cache/files/md5").glob("??/*") if path.suffix != ".dir"]
        assert len(entries) > 20
        digests = {path.parent.name + path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in entries}
        assert [name for name, digest in digests.items() if name != digest] == []
    first, last = story["first"].files, story["dropped"].files
    models = {name for name in first if name.startswith("models/")}
    assert {name: last[name] for name in models} == {name: first[name] for name in models}
