"""Every further pipeline under the real DVC: what it makes, what a change makes anew, and where its numbers must agree.

All run once, from nothing, in one copy with the profile `whole` and one seed.  From there each goes through changes of its own.
"""

import json
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from skill_grafting.grafting.mask_file import read_mask
from skill_grafting.metrics.predictions import Predictions, read_predictions
from skill_grafting.metrics.variants import FINETUNED, GRAFTED, PRETRAINED
from stages.commands.profile import profile_settings
from stages.merge.merge import SINGLES
from stages.workflow.core import paths
from stages.workflow.core.settings import PIPELINES
from tests.dvc_project import Copy, Run, clone, make_original
from tests.test_dvc_yaml import PIPELINES as STAGES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

WHOLE = profile_settings("whole")
SETTINGS = WHOLE | {"seeds": [13], "study": {"tasks": ["movies", "domain"], "test_max": 0}}
TASKS, CELL = SETTINGS["tasks"], ("movies", 13)
RUNNER = ("python", "-m", "stages.workflow.run", "--workers", "2")
MEASURES = ("n", "accuracy", "f1", "score", "ece", "loss", "agreement", "retained")
OFF_LINE = "off, so without"


@dataclass(frozen=True)
class Change:
    """Settings, the stages that run then (those with cells for seed 13), and the values in columns of the report's frames."""

    settings: tuple[str, ...]
    runs: set[str]
    shows: dict[str, set[Any]] = field(default_factory=dict)

    @property
    def executed(self) -> set[str]:
        """Names of the stages as DVC has them."""
        return {f"{name}-13" if "@" in name and not name.endswith("@13") else name for name in self.runs}


def cells(stage: str, *values: str) -> set[str]:
    return {f"{stage}@{value}" for value in values}


OF_JOINT = cells("joint", "sgd", "adamw_l1") | cells("level", "sgd", "adamw_l1")
OF_JOINT |= cells("skill", "sgd-learned_no_base", "adamw_l1-learned_no_base")
OF_JOINT |= cells("transfer", "sgd-learned_no_base-0.01", "adamw_l1-learned_no_base-0.01")
TWO_ORDERS = ("sequence.methods=[grafting,ewc]", "sequence.orders=[there,back]", "order.there=[movies,products,domain]")
CHANGES = {
    "study": [
        Change(  # a localizer and a size more: the new ranking, and the points of both
            ("sweep.localizers=[learned,fish]", "sweep.sparsities=[0.01,0.001]", "readout.readouts=[]"),
            {"rank@fish", "sweep@fish", "sweep@learned", "study"},
            {"sweep.localizer": {"learned", "fish"}, "sweep.sparsity": {0.01, 0.001}, "readout.readout": set()},
        ),
        Change(("graft.sparsity=0.001",), cells("mask", *TASKS) | {"wise@13", "study"}),
    ],
    "multitask": [
        Change(
            ("tasks=[movies,products,domain,tweets]",),
            {"fetch", "reference@13", "sample@tweets", "finetune@tweets", "multitask"} | OF_JOINT,
            {"level.task": {*TASKS, "tweets"}},
        ),
        # rows and models of the dropped task stay in the folders of its seed, so DVC does not know the joint model again
        Change(("tasks=[movies,products,domain]",), {"reference@13", "multitask"} | OF_JOINT, {"level.task": {*TASKS}}),
    ],
    "continual": [
        Change(
            (*TWO_ORDERS, "+order.back=[domain,products,movies]", "method.ewc.strength=10.0"),
            cells("sequence", "grafting-back", "ewc-back", "ewc-there") | {"continual"},
            {"measure.order": {"there", "back"}, "measure.method": {"grafting", "ewc"}},
        ),
        Change(("sequence.methods=[grafting]",), {"continual"}, {"accuracy.method": {"grafting"}, "measure.method": {"grafting"}}),
    ],
    "merge": [
        Change(
            ("combination.methods=[movement_0.1]",),
            {"combination@movement_0.1", "merge"},
            {"scores.method": {*SINGLES, "movement_0.1"}},
        )
    ],
    "talos": [
        Change(("arithmetic.methods=[full,random]",), {"arithmetic@random", "talos"}, {"negation.method": {"full", "random"}}),
    ],
    "surgical": [
        Change(("surgery.selections=[all,random_2]",), {"surgery@random_2", "surgical"}, {"surgery.selection": {"all", "random_2"}}),
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Base:
    """The copy in which all has run, and the files that were made."""

    copy: Copy
    files: dict[str, bytes]


@dataclass(frozen=True)
class Story:
    """A pipeline, where it began, and the run and the files after each of its changes."""

    pipeline: str
    base: Base
    steps: list[tuple[Run, dict[str, bytes]]]


def file_of(pipeline: str) -> str:
    return f"stages/{pipeline}/dvc.yaml"


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Base:
    copy = clone(make_original(tmp_path_factory.mktemp("pipelines"), SETTINGS), "all")
    copy.run(*RUNNER, "--all-pipelines")
    copy.commit()
    return Base(copy, copy.files("metrics", "plots"))


@pytest.fixture(scope="module", params=CHANGES)
def story(base, request) -> Story:
    copy, steps = base.copy, []
    copy.run("git", "checkout", "-q", ".")
    copy.run("dvc", "checkout", "-q", "--force")
    for change in CHANGES[request.param]:
        copy.set(*change.settings)
        steps.append((copy.run(*RUNNER, file_of(request.param)), copy.files("metrics", "plots")))
    return Story(request.param, base, steps)


def of_pipeline(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("story", [name], indirect=True)


def frame(files: dict[str, bytes], pipeline: str, name: str) -> pd.DataFrame:
    return pd.read_csv(BytesIO(files[f"{paths.report_plots(pipeline)}/{name}.csv"]))


def logits_of(copy: Copy, stage: str, *axes: str) -> Predictions:
    """What a stage of a further pipeline stored of CELL."""
    return read_predictions(copy.folder / paths.logits(stage, *CELL, *axes))


def main_logits(copy: Copy, stage: str) -> Predictions:
    return read_predictions(copy.folder / paths.logits(stage, *CELL))


def record_of(files: dict[str, bytes], stage: str, *axes: str) -> dict[str, Any]:
    return json.loads(files[str(paths.record(stage, *CELL, *axes))])


# --- For each of them ------------------------------------------------------------------------------------------


def test_there_is_a_change_for_every_pipeline():
    assert {*CHANGES} == {name for name in PIPELINES if name}


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_stages_of_every_kind_ran_and_left_all_that_they_declare(base, pipeline):
    lock = base.copy.lock(f"stages/{pipeline}" if pipeline else ".")
    assert {name.partition("@")[0] for name in lock} == {*STAGES[pipeline or "main"]}
    outs = [out["path"] for stage in lock.values() for out in stage["outs"]]
    assert len(outs) >= len(lock) and [path for path in outs if not (base.copy.folder / path).exists()] == []


@pytest.mark.parametrize("pipeline", CHANGES)
def test_its_report_has_numbers_tables_and_figures(base, pipeline):
    plots = {name: data for name, data in base.files.items() if name.startswith(f"{paths.report_plots(pipeline)}/")}
    empty = {
        name.rpartition("/")[2]
        for name in plots
        if name.endswith(".csv") and not len(pd.read_csv(BytesIO(plots[name])))
    }
    assert empty <= {"seed_overlap.csv"}, "there is one seed"
    assert any(name.endswith(".png") for name in plots) and all(plots.values())
    assert base.files[str(paths.report(pipeline).with_suffix(".md"))].count(b"\n## ") > 1
    assert OFF_LINE not in base.files[str(paths.report(pipeline).with_suffix(".md"))].decode()


def test_dvc_finds_nothing_more_to_do(base):
    again = base.copy.repro("--all-pipelines")
    assert (again.executed, again.cached) == ([], []) and base.copy.files("metrics", "plots") == base.files


def test_a_change_runs_its_own_cells_and_the_report_alone(story):
    for change, (run, _) in zip(CHANGES[story.pipeline], story.steps, strict=True):
        assert {*run.executed} == change.executed, change.settings


def test_the_report_is_of_what_the_settings_name_alone(story):
    for change, (_, files) in zip(CHANGES[story.pipeline], story.steps, strict=True):
        for place, values in change.shows.items():
            name, column = place.split(".")
            assert {*frame(files, story.pipeline, name)[column]} == values, place
            assert {*frame(story.base.files, story.pipeline, name)[column]} != values or change.runs >= OF_JOINT, (
                "control"
            )


# --- The study -------------------------------------------------------------------------------------------------


@of_pipeline("study")
def test_a_stage_that_is_off_is_named_in_the_report(story):
    text = story.steps[0][1][str(paths.report("study").with_suffix(".md"))].decode()
    assert [("readout" in line, "sweep" in line) for line in text.splitlines() if OFF_LINE in line] == [(True, False)]


def test_both_ends_of_the_curves_are_the_models_of_the_main_pipeline_bit_for_bit(base):
    wise, anchor, evaluate = (
        logits_of(base.copy, "wise"),
        logits_of(base.copy, "anchor"),
        main_logits(base.copy, "evaluate"),
    )
    ends = {
        "wise_ft_0.0": (anchor, PRETRAINED), "wise_graft_0.0": (anchor, PRETRAINED),
        "wise_ft_1.0": (anchor, FINETUNED), "wise_graft_1.0": (evaluate, GRAFTED),
    }  # fmt: skip
    assert len(wise.logits) == 3 and "movies" in wise.logits
    for test_set, variants in wise.logits.items():
        assert {*variants} == {*ends, "wise_ft_0.5", "wise_graft_0.5"}
        for name, (other, variant) in ends.items():
            assert np.array_equal(variants[name], other.logits[test_set][variant]), (test_set, name)
        assert not np.array_equal(variants["wise_ft_0.0"], variants["wise_ft_1.0"]), "control"
        assert not np.array_equal(variants["wise_ft_1.0"], variants["wise_graft_1.0"]), "control"


def test_the_anchor_has_the_logits_of_the_main_pipeline_and_training_rows_besides(base):
    anchor, reference = logits_of(base.copy, "anchor"), main_logits(base.copy, "reference")
    for test_set, variants in reference.logits.items():
        for variant in (PRETRAINED, FINETUNED):
            assert np.array_equal(anchor.logits[test_set][variant], variants[variant])
    assert {*anchor.logits} == {*reference.logits, "movies:train"}
    assert len(anchor.labels["movies:train"]) == 2 * SETTINGS["data"]["k"]
    assert [name for name in anchor.logits["movies"] if name.startswith("pruned")] == ["pruned_0.5", "pruned_0.9"]


def test_the_learned_mask_of_the_sweep_is_that_of_the_main_pipeline_bit_for_bit(base):
    places = [paths.learned(*CELL), *(paths.sweep_mask(name, "0.01", *CELL) for name in ("learned", "random"))]
    main, ours, other = (read_mask(base.copy.folder / place) for place in places)
    assert torch.equal(ours.mask.region_indices(), main.mask.region_indices()) and ours.mask.selected > 1000
    assert all(torch.equal(ours.values[name], main.values[name]) for name in main.values)
    both = (logits_of(base.copy, "sweep", "learned", "0.01"), main_logits(base.copy, "evaluate"))
    assert np.array_equal(*(found.logits["movies"][GRAFTED] for found in both))
    assert not torch.equal(other.mask.region_indices(), main.mask.region_indices()), "control"


def test_every_record_of_the_study_has_all_measures_of_its_rows(base):
    own = {name for stage in STAGES["study"] for name in base.files if name.startswith(f"metrics/{stage}/")}
    records = {name: json.loads(base.files[name]) for name in own if name.endswith(".json")}
    assert len(records) > 40
    for name, record in records.items():
        assert record["task"] in ("movies", "domain") and record["rows"], name
        assert all({*MEASURES} <= {*row} for row in record["rows"]), name


# --- The others ------------------------------------------------------------------------------------------------


@of_pipeline("multitask")
def test_a_task_that_was_dropped_leaves_no_trace(story):
    def traces(files: dict[str, bytes]) -> set[str]:
        text = {name for name in files if name.endswith((".json", ".csv", ".md"))}
        own = {name for name in files if name.startswith(("metrics/level/", "metrics/transfer/", "metrics/multitask"))}
        own |= {name for name in files if name.startswith("plots/multitask/")}
        return {name for name in own if "tweets" in name or (name in text and b"tweets" in files[name])}

    (_, more), (_, less) = story.steps
    assert len(traces(more)) > 5 and traces(less) == set()
    own = {name: data for name, data in story.base.files.items() if "multitask" in name or "/level/" in name}
    assert len(own) > 5 and {name: less[name] for name in own} == own, "and all else is as it was"


@of_pipeline("continual")
def test_another_order_leaves_the_cells_of_the_one_before_as_they_were(story):
    before = {name: data for name, data in story.base.files.items() if "/grafting/there/" in name}
    assert len(before) > 3 and all(story.steps[0][1][name] == data for name, data in before.items())


@of_pipeline("merge")
def test_the_single_models_scores_do_not_depend_on_the_methods_beside_them(story):
    before, after = (frame(files, "merge", "scores") for files in (story.base.files, story.steps[0][1]))
    singles = [rows[rows.method.isin([*SINGLES])].reset_index(drop=True) for rows in (before, after)]
    assert singles[0].equals(singles[1]) and len(singles[0]) > 3


def test_vectors_are_sparse_and_both_ends_are_models_that_are_there_already(base):
    folder = base.copy.folder
    talos, full_matched, graft = (
        read_mask(folder / paths.edited(name, *CELL)).mask for name in ("talos", "full_matched", "graft")
    )
    assert 0 < talos.selected < 0.2 * talos.region.size < full_matched.selected == full_matched.region.size
    assert graft.equals(read_mask(folder / paths.learned(*CELL)).mask)
    full, sparse = (logits_of(base.copy, "edit", method).logits["movies"] for method in ("full", "talos"))
    reference = main_logits(base.copy, "reference").logits["movies"]
    for ours, theirs in ((full["movies"], reference[FINETUNED]), (full[PRETRAINED], reference[PRETRAINED])):
        np.testing.assert_allclose(ours, theirs[: len(ours)], atol=1e-5)
    assert np.array_equal(full[PRETRAINED], sparse[PRETRAINED]), "one head for every method"
    assert not np.allclose(full["movies"], sparse["movies"], atol=1e-3), "control"


def test_records_of_task_arithmetic_say_what_was_chosen_and_what_it_took(base):
    for method, sums in (("full", {"sum", "ties", "dare"}), ("talos", {"sum"})):
        record = record_of(base.files, "arithmetic", method)
        assert {*record["added"]} == sums and record["added"]["sum"]["alpha"] in np.linspace(0, 1, 5)
        negated = record["negated"]
        curve, alpha = dict(negated["control_curve"]), negated["alpha"]
        assert negated["control"] == "domain" and (alpha == 0 or curve[alpha] >= 0.95 * curve[0.0])
    cost = record_of(base.files, "edit", "talos")["cost"]
    assert cost["trained"] * 8 == cost["optimizer_bytes"]
    assert cost["peak_bytes"] > 0 and cost["train_seconds"] > 0


def test_layers_train_alike_however_they_were_selected(base):
    drawn, top = (record_of(base.files, "surgery", name)["rows"] for name in ("random_1", "top_1"))
    assert sorted(row["layers"] for row in drawn) == [[0], [1]], "both that there are"
    same = next(row for row in drawn if row["layers"] == top[0]["layers"])
    assert (same["curve"], same["loss"]) == (top[0]["curve"], top[0]["loss"])
