"""A plan says what `dvc repro` then does, of every stage of all pipelines, after edits of code, data and settings.

The stages of one copy only pretend to compute; a plan reads what DVC has noted, not the science.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stages.commands.plan.stage_status import CACHED, RUNS, UNCHANGED
from tests.dvc_project import TINY, TINY_STUDY
from tests.pretended import Planned, Pretended, pretended
from tests.test_dvc_yaml import FILES, PIPELINE_OF

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # minutes: all stages of all pipelines, again and again

DATA = "data/local/movies/train.csv"
TASKS = ["movies", "products"]
SMALL = TINY | {
    "tasks": TASKS,
    "study": {"tasks": ["movies"]},
    "sweep": TINY_STUDY["sweep"],
    "readout": TINY_STUDY["readout"] | {"readouts": ["reset"]},
    "peft": TINY_STUDY["peft"],
    "paradigm": {"paradigms": ["sgd"], "tasks": ["movies"]},
    "multitask": {"groups": {}},
    "joint": {"paradigms": ["sgd"]},
    "skill": {"localizers": ["learned_0.1"], "sparsities": [0.01]},
    "transfer": {"unions": {"both": TASKS}},
    "sequence": {"methods": ["naive"], "orders": ["there"]},
    "order": {"there": TASKS},
    "merge": {"groups": {"everything": TASKS}},
    "combination": {"methods": ["average"]},
    "fim": {"tasks": ["movies"]},
    "surgery": {"selections": ["all", "top_1"], "tasks": ["movies"]},
    "edit": {"methods": ["full", "talos"]},
    "arithmetic": {"methods": ["full"], "negation": {"controls": dict(zip(TASKS, reversed(TASKS), strict=True))}},
    "disentangle": {"methods": ["full"], "grid": {"pairs": {"movies": "products"}}},
}
# of each pipeline, a module and a setting, and a stage that each of them concerns
CODE = {
    "main": ("stages/calibration.py", "calibration"),
    "study": ("stages/study/wise.py", "wise"),
    "multitask": ("stages/multitask/level.py", "level"),
    "continual": ("stages/continual/sequence.py", "sequence"),
    "merge": ("stages/merge/combination.py", "combination"),
    "talos": ("stages/talos/edit.py", "edit"),
    "surgical": ("stages/surgical/fim.py", "fim"),
}
SETTINGS = {
    "main": ("calibration.wise_alphas=[0.0,1.0]", "controls"),
    "study": ("wise.alphas=[0.0,1.0]", "wise"),
    "multitask": ("joint.eval_steps=7", "joint"),
    "continual": ("sequence.max_steps=7", "sequence"),
    "merge": ("merge.test_max=7", "combination"),
    "talos": ("talos.test_max=7", "edit"),
    "surgical": ("surgery.draws=3", "surgery"),
}


def undo(copy: Pretended) -> None:
    """Code, settings and data as they were."""
    copy.run("git", "checkout", "-q", "stages", "data", "params.yaml")


def forget(copy: Pretended) -> None:
    """DVC's notes on two pipelines, and a file that may be executed from now on."""
    (copy.folder / CODE["study"][0]).chmod(0o755)
    for name in ("main", "study"):
        (copy.folder / FILES[name]).with_suffix(".lock").unlink()


def damage(copy: Pretended) -> None:
    """Outputs edited and deleted."""
    for name in ("data/tables/movies/table.jsonl", "metrics/summary.md", "metrics/study.json"):
        append(copy.folder / name)
    for name in ("models/finetuned", "masks/learned", "plots/accuracy.png", "masks/rank"):
        path = copy.folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def append(file: Path) -> None:
    with file.open("a", encoding="utf-8") as opened:
        opened.write("MORE = 1\n")


EDITS: dict[str, Callable[[Pretended], object]] = {
    "nothing": lambda copy: None,
    "code": lambda copy: [append(copy.folder / file) for file, _ in CODE.values()],
    "data": lambda copy: append(copy.folder / DATA),
    "settings": lambda copy: copy.set(*(setting for setting, _ in SETTINGS.values())),
    "back": undo,
    "forgotten": forget,
    "damaged": damage,
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> tuple[Pretended, dict[str, Planned]]:
    """A copy in which everything has run, and a plan and a run after each edit that was asked for, in their order."""
    copy = pretended(tmp_path_factory.mktemp("edits"), SMALL)
    (copy.folder / "data/local/movies").mkdir()
    append(copy.folder / DATA)
    copy.commit()
    return copy, {"first": copy.planned(*FILES.values())}


@pytest.fixture
def planned(copy) -> Callable[[str], Planned]:
    """planned(edit): what was foretold after it, and what was done."""

    def after(edit: str) -> Planned:
        made, known = copy
        for name, change in EDITS.items():
            if name not in known:
                change(made)
                known[name] = made.planned(*FILES.values())
            if name == edit:
                break
        return known[edit]

    return after


@pytest.mark.parametrize("edit", ["first", *EDITS])
@pytest.mark.parametrize("pipeline", FILES)
def test_of_every_stage_it_is_foretold_what_becomes_of_it(copy, planned, pipeline, edit):
    found = copy[1][edit] if edit == "first" else planned(edit)
    foretold, done = (
        {name: fate for name, fate in fates.items() if of(name) == pipeline} for fates in (found.foretold, found.done)
    )
    assert foretold == done != {}


def of(name: str) -> str:
    """Pipeline of a stage."""
    stage = name.partition("@")[0]
    return PIPELINE_OF.get(stage) or ("main" if stage == "code" else stage.removesuffix("_code"))


@pytest.mark.parametrize("pipeline", FILES)
def test_an_edit_makes_something_run_in_every_pipeline(planned, pipeline):
    """So that no plan is right by saying nothing."""
    assert {*planned("nothing").done.values()} == {UNCHANGED}
    done = planned("code").done
    for name in (CODE[pipeline][1], report_of(pipeline)):
        assert RUNS in {fate for stage, fate in done.items() if stage.partition("@")[0] == name}
    assert done["fetch"] == UNCHANGED


def report_of(pipeline: str) -> str:
    return "summary" if pipeline == "main" else pipeline


@pytest.mark.parametrize("pipeline", FILES)
def test_going_back_to_what_was_takes_all_but_reports_from_the_cache(planned, pipeline):
    settings, back = planned("settings"), planned("back")
    assert planned("data").done["fetch"] == RUNS == planned("data").done[report_of(pipeline)]
    assert RUNS in {fate for stage, fate in settings.done.items() if stage.partition("@")[0] == SETTINGS[pipeline][1]}
    ran = {stage for stage, fate in back.done.items() if fate == RUNS and of(stage) == pipeline}
    assert ran == {report_of(pipeline)}
    assert CACHED in {fate for stage, fate in back.done.items() if of(stage) == pipeline}
