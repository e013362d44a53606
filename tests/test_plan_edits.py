"""A plan says what `dvc repro` then does, of every stage of all pipelines, after edits of code, data and settings.

The stages of one copy only pretend to compute; a plan reads what DVC has noted, not the science.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stages.commands.plan.stage_status import CACHED, RUNS, UNCHANGED
from tests.dvc_project import ROOT, TINY, TINY_STUDY
from tests.pretended import Pretended, pretended
from tests.test_dvc_yaml import FILES, PIPELINES, script

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
    "disentangle": {"methods": ["talos"], "grid": {"pairs": {"movies": "products"}}},
    "smallest": {"localizers": ["movement"]},
}
# of each pipeline, a setting, and the stage that it concerns
SETTINGS = {
    "main": ("calibration.wise_alphas=[0.0,1.0]", "controls"),
    "study": ("wise.alphas=[0.0,1.0]", "wise"),
    "multitask": ("joint.eval_steps=7", "joint"),
    "continual": ("sequence.max_steps=7", "sequence"),
    "merge": ("merge.test_max=7", "combination"),
    "talos": ("talos.test_max=7", "edit"),
    "surgical": ("surgery.draws=3", "surgery"),
    "smallest": ("smallest.gain=0.5", "search"),
}
# and modules that are edited, those of a stage of each pipeline
CODE = {pipeline: script(stage).relative_to(ROOT) for pipeline, (_, stage) in SETTINGS.items()}


def undo(copy: Pretended) -> None:
    """Code, settings and data as they were."""
    copy.run("git", "checkout", "-q", "stages", "data", "params.yaml")


def forget(copy: Pretended) -> None:
    """DVC's notes on two pipelines, and a file that may be executed from now on."""
    (copy.folder / CODE["study"]).chmod(0o755)
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
    "code": lambda copy: [append(copy.folder / file) for file in CODE.values()],
    "data": lambda copy: append(copy.folder / DATA),
    "settings": lambda copy: copy.set(*(setting for setting, _ in SETTINGS.values())),
    "back": undo,
    "forgotten": forget,
    "damaged": damage,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Pretended, dict[str, tuple]]:
    """A copy in which everything has run, and a plan and a run after each edit that was asked for, in their order."""
    copy = pretended(tmp_path_factory.mktemp("edits"), SMALL)
    (copy.folder / "data/local/movies").mkdir()
    append(copy.folder / DATA)
    copy.commit()
    return copy, {"first": copy.planned(*FILES.values())}


@pytest.fixture
def planned(made) -> Callable[[str], tuple[dict[str, str], dict[str, str]]]:
    """planned(edit): what was foretold of each stage after it, and what became of it."""
    copy, known = made

    def after(edit: str) -> tuple[dict[str, str], dict[str, str]]:
        for name, change in EDITS.items():
            if edit not in known and name not in known:
                change(copy)
                known[name] = copy.planned(*FILES.values())
        plan, run = known[edit]
        return {name: fate for name, (fate, _) in plan.items()}, run.fates

    return after


@pytest.mark.parametrize("edit", ["first", *EDITS])
@pytest.mark.parametrize("pipeline", FILES)
def test_of_every_stage_it_is_foretold_what_becomes_of_it(planned, pipeline, edit):
    foretold, done = (of(pipeline, fates) for fates in planned(edit))
    assert foretold == done != {}


def of(pipeline: str, fates: dict[str, str]) -> dict[str, str]:
    """The lines on the stages of a pipeline."""
    kinds = {*PIPELINES[pipeline], "code" if pipeline == "main" else f"{pipeline}_code"}
    return {name: fate for name, fate in fates.items() if name.partition("@")[0] in kinds}


def fates_of(stage: str, fates: dict[str, str]) -> set[str]:
    return {fate for name, fate in fates.items() if name.partition("@")[0] == stage}


def report_of(pipeline: str) -> str:
    return "summary" if pipeline == "main" else pipeline


@pytest.mark.parametrize("pipeline", FILES)
def test_an_edit_makes_something_run_in_every_pipeline(planned, pipeline):
    """So that no plan is right by saying nothing."""
    assert {*planned("nothing")[1].values()} == {UNCHANGED}
    done = planned("code")[1]
    assert all(RUNS in fates_of(name, done) for name in (SETTINGS[pipeline][1], report_of(pipeline)))
    assert done["fetch"] == UNCHANGED


@pytest.mark.parametrize("pipeline", FILES)
def test_going_back_to_what_was_takes_all_but_reports_from_the_cache(planned, pipeline):
    data, settings, back = (planned(edit)[1] for edit in ("data", "settings", "back"))
    assert data["fetch"] == RUNS == data[report_of(pipeline)]
    assert RUNS in fates_of(SETTINGS[pipeline][1], settings)
    back = of(pipeline, back)
    assert {name for name, fate in back.items() if fate == RUNS} == {report_of(pipeline)}
    assert CACHED in back.values()
