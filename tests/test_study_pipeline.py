"""The study under the real DVC: what it makes, what it makes again after a change, and where its numbers must agree.

After the first run of one copy, it and a twin go through further steps side by side; the tests look at what each of
them ran and left.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from stages.lib.grafting.mask_file import read_mask
from stages.lib.metrics.predictions import read_predictions
from stages.lib.metrics.variants import FINETUNED, GRAFTED, PRETRAINED
from stages.workflow.core import paths
from tests.dvc_project import TINY, TINY_STUDY, Copy, Step, clone, make_original, twin
from tests.test_dvc_yaml import EXTENSIONS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CELL = ("movies", 13)
OF_CELL = ("sample", "finetune", "movement", "mask")
BEFORE = {"fetch", "model", "reference@13", *(f"{stage}@movies-13" for stage in OF_CELL)}
STUDY, STUDY_FILE = EXTENSIONS["study"], "stages/study/dvc.yaml"
LOCALIZERS = TINY_STUDY["sweep"]["localizers"]
ADDED = ["attribution", "movement", "fish", "bias"]
TABLES = [name for name in STUDY if name not in ("rank", "study")]
OFF_AT_FIRST = {"paradigm", "trajectory"}
OFF_LINE = "off, so without"
MEASURES = ("n", "accuracy", "f1", "score", "ece", "loss", "agreement", "retained")


def repro(copy: Copy, *more: str) -> Step:
    run = copy.repro(STUDY_FILE, *more)
    return Step(run, copy.lock("stages/study"), copy.files("masks", "metrics", "plots"))


@pytest.fixture(scope="module")
def story(tmp_path_factory) -> dict[str, Any]:
    """Two copies through all their changes: step name -> Step; and logits and masks of the first run."""
    copy = clone(make_original(tmp_path_factory.mktemp("study"), TINY | TINY_STUDY), "story")
    # evaluate is no part of the study; the calibrations below compare with it
    first = repro(copy, "evaluate@movies-13")
    other = twin(copy, "other")
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(more_localizers, other)
        steps = smaller_masks(copy)
        return {"first": first, **steps, **beside.result(), **numbers(other.folder)}


def smaller_masks(copy: Copy) -> dict[str, Step]:
    """No change, then another sparsity of the sweep, then of the main pipeline, with some stages switched off."""
    steps = {"nothing": repro(copy)}
    copy.set("sweep.sparsities=[0.01,0.001]")
    steps["sparsity"] = repro(copy)
    copy.set("graft.sparsity=0.001", "readout.readouts=[]")
    return {**steps, "graft": repro(copy)}


def more_localizers(copy: Copy) -> dict[str, Step]:
    """Localizers that only rank, added to the first run's, with the stages switched on that were off."""
    localizers = ",".join([*LOCALIZERS, *ADDED])
    copy.set(f"sweep.localizers=[{localizers}]", "paradigm.paradigms=[adamw]", "trajectory.tasks=[movies]")
    return {"more": repro(copy)}


def numbers(folder: Path) -> dict[str, Any]:
    """Logits and masks of the first run, which its twin still has."""
    logits = {stage: read_predictions(folder / paths.stage_logits(stage, (), *CELL)) for stage in ("anchor", "wise")}
    logits["sweep"] = read_predictions(folder / paths.stage_logits("sweep", ("learned", "0.01"), *CELL))
    logits |= {stage: read_predictions(folder / paths.predictions(stage, *CELL)) for stage in ("reference", "evaluate")}
    masks = {"main": read_mask(folder / paths.learned(*CELL))}
    masks |= {name: read_mask(folder / paths.sweep_mask(name, "0.01", *CELL)) for name in LOCALIZERS}
    return {"logits": logits, "masks": masks}


def ranks(localizers: list[str]) -> set[str]:
    return {f"rank@{name}-13" for name in localizers}


def points(localizers: list[str], sparsity: float) -> set[str]:
    return {f"sweep@{name}-{sparsity}-13" for name in localizers}


def rows_of(files: dict[str, bytes], name: str) -> pd.DataFrame:
    return pd.read_csv(BytesIO(files[f"{paths.report_plots('study')}/{name}.csv"]))


def of_stages(step: Step, *stages: str) -> dict[str, Any]:
    return {name: entry for name, entry in step.lock.items() if name.partition("@")[0] in stages}


# --- What is made ----------------------------------------------------------------------------------------------


def test_one_command_runs_the_study_and_what_it_needs_of_the_main_pipeline(story):
    cells = {f"{stage}@13" for stage in ("anchor", "wise")} | ranks(LOCALIZERS) | points(LOCALIZERS, 0.01)
    cells |= {"readout@retrain-learned-0.01-13", "readout@reset-learned-0.01-13", "peft@lora_1-13"}
    cells |= {"controls@13", "evaluate@movies-13"}  # asked for beside the study
    # without tasks a stage runs, and leaves an empty folder; an axis without values makes no cell
    assert {*story["first"].run.executed} == BEFORE | {"study", "trajectory@13"} | cells
    assert {name.partition("@")[0] for name in story["first"].lock} == {*STUDY, "study_code"} - {"paradigm"}


def test_the_report_is_there_with_numbers_of_every_stage(story):
    files = story["more"].files
    assert {*rows_of(files, "sweep").localizer} == {*LOCALIZERS, *ADDED}
    assert all(len(rows_of(files, stage)) for stage in TABLES)
    assert b"retrain" in files[str(paths.report("study").with_suffix(".md"))]
    plots = {name for name in files if name.startswith(f"{paths.report_plots('study')}/")}
    assert {f"{paths.report_plots('study')}/{stage}.csv" for stage in TABLES} <= plots
    assert any(name.endswith(".png") for name in plots) and all(files[name] for name in plots)


def test_a_second_run_does_nothing(story):
    assert "are up to date" in story["nothing"].run.text
    assert (story["nothing"].run.executed, story["nothing"].run.cached) == ([], [])
    assert story["nothing"].files == story["first"].files


# --- What is made again ----------------------------------------------------------------------------------------


def test_another_sparsity_runs_only_its_own_points_and_the_report(story):
    assert {*story["sparsity"].run.executed} == points(LOCALIZERS, 0.001) | {"study"}
    assert {*rows_of(story["sparsity"].files, "sweep").sparsity} == {0.01, 0.001}


def test_another_localizer_runs_its_own_ranking_its_points_and_the_report(story):
    before, after = story["first"], story["more"]
    switched_on = {"paradigm@adamw-13", "trajectory@13"}
    assert {*after.run.executed} == {"study"} | ranks(ADDED) | points(ADDED, 0.01) | switched_on
    orders = {name for name in before.files if name.startswith(f"{paths.RANK}/")}
    assert len(orders) == 2
    assert {name: after.files[name] for name in orders} == {name: before.files[name] for name in orders}


def test_another_mask_of_the_main_pipeline_runs_its_curve_and_the_report_alone(story):
    assert {*story["graft"].run.executed} == {"mask@movies-13", "wise@13", "study"}
    untouched = ("anchor", "rank", "sweep", "peft")
    assert of_stages(story["graft"], *untouched) == of_stages(story["sparsity"], *untouched)
    assert of_stages(story["graft"], "wise") != of_stages(story["sparsity"], "wise")  # the control


def test_empty_lists_switch_stages_off_and_the_report_says_so(story):
    for name, off in {"first": OFF_AT_FIRST, "graft": OFF_AT_FIRST | {"readout"}, "more": set()}.items():
        files = story[name].files
        text = files[str(paths.report("study").with_suffix(".md"))].decode()
        lines = [line for line in text.splitlines() if OFF_LINE in line]
        assert len(lines) == bool(off) and {stage for stage in TABLES for line in lines if stage in line} == off
        assert {stage for stage in TABLES if len(rows_of(files, stage))} == {*TABLES} - off


# --- Where numbers must agree ----------------------------------------------------------------------------------


def test_both_ends_of_the_curves_are_the_models_of_the_main_pipeline_bit_for_bit(story):
    logits = story["logits"]
    ends = {
        "wise_ft_0.0": (logits["anchor"], PRETRAINED),
        "wise_graft_0.0": (logits["anchor"], PRETRAINED),
        "wise_ft_1.0": (logits["anchor"], FINETUNED),
        "wise_graft_1.0": (logits["evaluate"], GRAFTED),
    }
    assert {*logits["wise"].logits} == {"movies", "products"}
    for test_set, variants in logits["wise"].logits.items():
        assert {*variants} == {*ends}
        for name, (other, variant) in ends.items():
            assert np.array_equal(variants[name], other.logits[test_set][variant]), (test_set, name)
        assert not np.array_equal(variants["wise_ft_0.0"], variants["wise_ft_1.0"])  # the control
        assert not np.array_equal(variants["wise_ft_1.0"], variants["wise_graft_1.0"])


def test_the_anchor_has_the_logits_of_the_main_pipeline_and_training_rows_besides(story):
    anchor, reference = story["logits"]["anchor"], story["logits"]["reference"]
    for test_set, variants in reference.logits.items():
        for variant in (PRETRAINED, FINETUNED):
            assert np.array_equal(anchor.logits[test_set][variant], variants[variant])
    assert {*anchor.logits} == {*reference.logits, "movies:train"}
    assert len(anchor.labels["movies:train"]) == 2 * TINY["data"]["k"]
    assert [name for name in anchor.logits["movies"] if name.startswith("pruned")] == ["pruned_0.9"]


def test_the_learned_mask_of_the_sweep_is_that_of_the_main_pipeline_bit_for_bit(story):
    ours, main = story["masks"]["learned"], story["masks"]["main"]
    assert torch.equal(ours.mask.region_indices(), main.mask.region_indices()) and ours.mask.selected > 1000
    assert all(torch.equal(ours.values[name], main.values[name]) for name in main.values)
    assert np.array_equal(*(story["logits"][stage].logits["movies"][GRAFTED] for stage in ("sweep", "evaluate")))
    other = story["masks"]["random"]  # the control
    assert other.mask.selected == main.mask.selected
    assert not torch.equal(other.mask.region_indices(), main.mask.region_indices())


def test_every_record_has_all_measures_of_its_rows(story):
    own = {name for stage in STUDY for name in story["more"].files if name.startswith(f"metrics/{stage}/")}
    records = {name: json.loads(story["more"].files[name]) for name in own if name.endswith(".json")}
    assert len(records) >= 13
    for name, record in records.items():
        assert record["task"] == "movies" and record["rows"], name
        assert all(set(MEASURES) <= {*row} for row in record["rows"]), name
    fish, random = (records[str(paths.stage_record("sweep", (name, "0.01"), *CELL))] for name in ("fish", "random"))
    assert fish["about"]["gradient_examples"] == TINY_STUDY["localizer"]["fish"]["examples"]
    assert random["about"]["gradient_examples"] == 0
