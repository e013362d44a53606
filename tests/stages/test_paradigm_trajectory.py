"""Other ways of fine-tuning, fine-tuning watched, and what theory says about either, on pico models."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from skill_grafting.errors import GraftError, MaskError, ParamsError
from skill_grafting.io import read_json
from skill_grafting.metrics.classification import agreement
from skill_grafting.metrics.predictions import read_predictions
from skill_grafting.metrics.variants import FINETUNED, GRAFTED, MOVEMENT_GRAFTED
from skill_grafting.models.label_model import LabelModel
from skill_grafting.settings import AdamWParams
from skill_grafting.training.finetuning import TrainingCell, finetune, train_again
from stages.study import trajectory
from stages.study.bound import examples_for, log_all_regions, log_models, variance_term
from stages.study.frames import bounds
from stages.study.paradigm import finetune_and_graft, settings_of
from stages.study.settings import Checkpoints
from stages.study.trajectory import Trace, checkpoints, trace
from stages.workflow.core import paths
from stages.workflow.core.cells import GraftCell
from stages.workflow.core.scoring import train_set
from stages.workflow.core.training import open_training
from tests.cells import OTHER, SEED, TRAINING
from tests.pico import TOY, all_localizers, finetune_settings, model_settings, runtime, same, values_of

STEPS = TRAINING.max_steps
SPARSITIES = [0.02, 1.0]
ADAMW = AdamWParams(learning_rate=3e-3, weight_decay=0.01, l1=0.001)
WATCHED = TRAINING.model_copy(update={"dropout": 0.2, "max_steps": 25})


def params(mode: str = "standard", rule: str = "top_k", **changes: Any) -> SimpleNamespace:
    """All settings of both stages."""
    sections = {
        "model": model_settings(mode), "finetune": TRAINING, "localizer": all_localizers(steps=3, select="authors", eval_steps=3),
        "graft": SimpleNamespace(region=["layers"], rule=rule), "calibration": SimpleNamespace(bins=15), "study": SimpleNamespace(test_max=0),
        "paradigm": paradigm_settings(), "trajectory": trajectory_settings(),
    }  # fmt: skip
    return SimpleNamespace(**{**sections, **changes})


def paradigm_settings(**changes: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"sparsities": SPARSITIES, "adamw": ADAMW, "max_steps": 20, **changes})


def trajectory_settings(**changes: Any) -> SimpleNamespace:
    settings = {"every": 15, "region_step": 15, "sparsities": SPARSITIES, **changes}
    return SimpleNamespace(checkpoints=Checkpoints(**settings))


def training_cell(mode: str) -> TrainingCell:
    return open_training("toy", SEED, model_settings(mode), runtime())


def again(mode: str, watch: Callable[[LabelModel], Callable[[], object]]) -> dict[str, Tensor]:
    """The weights after training again, watched by this."""
    return values_of(train_again(training_cell(mode), WATCHED, watch))


# fine-tuning watched


@pytest.mark.parametrize("mode", ["standard", "prompt"])
def test_training_that_is_looked_at_at_every_step_ends_at_the_fine_tuned_model_bit_for_bit(after_main, mode):
    after_main(mode)
    sets = {"toy": training_cell(mode).rows["dev"], train_set("toy"): training_cell(mode).rows["train"]}
    seen = Trace(range(1, 26), sets, [*read_json(paths.PRETRAINED / "anatomy.json")["groups"]])
    after, unwatched = again(mode, seen.watch), values_of(finetune(training_cell(mode), WATCHED).model)
    assert same(after, unwatched) and same(seen.kept[25], unwatched)
    assert {values.dtype for values in seen.kept[25].values()} == {torch.float32}
    assert not same(seen.kept[20], unwatched) and not same(seen.kept[10], seen.kept[20]), "control"
    drawing = again(mode, lambda model: lambda: torch.rand(1))
    assert not same(drawing, unwatched), "control: dropout draws from the same generator"


def record_of(stage: str, *axes: str) -> tuple[dict, Any]:
    record, logits = (place(stage, axes, "toy", SEED) for place in (paths.stage_record, paths.stage_logits))
    return read_json(record), read_predictions(logits)


@pytest.mark.parametrize("mode", ["standard", "prompt"])
def test_the_record_of_a_trajectory(after_main, mode):
    after_main(mode)
    assert "3 checkpoints, 2 regions of step 15" in trace("toy", SEED, params(mode), runtime())
    record, predictions = record_of("trajectory")
    for variants in predictions.logits.values():
        for step in (15, 30, STEPS):
            np.testing.assert_array_equal(variants[f"grafted_{step}_1.0"], variants[f"checkpoint_{step}"])
            assert not np.array_equal(variants[f"grafted_{step}_0.02"], variants[f"checkpoint_{step}"]), "control"
    assert {*predictions.logits} == {"toy", "toy:train"} and len(predictions.labels["toy"]) == 200
    keys = {(row["test_set"], row["variant"], row["step"], row.get("sparsity")) for row in record["rows"]}
    steps, sets = (15, 30, STEPS), ("toy", "toy:train")
    wanted = {(name, "checkpoint", step, None) for name in sets for step in steps}
    assert keys == wanted | {(name, GRAFTED, step, share) for name in sets for step in steps for share in SPARSITIES}
    assert len(record["rows"]) == len(keys) and record["region_step"] == 15
    last = [row for row in record["rows"] if row["variant"] == "checkpoint" and row["step"] == STEPS]
    assert [row["agreement"] for row in last] == [1, 1], "it is the anchor's fine-tuned model"
    (small,) = {row["selected"] for row in record["rows"] if row.get("sparsity") == 0.02}
    assert small == int(0.02 * record["graftable"])


def test_regions_are_learned_from_what_the_checkpoint_says(after_main, monkeypatch):
    after_main("standard")
    evidence_of, heads = trajectory.evidence_of, []

    def gather(cell: GraftCell, *rest: Any) -> Any:
        live = cell.model.parameters()
        heads.extend(torch.equal(live[name], cell.finetuned[name]) for name in cell.head)
        return evidence_of(cell, *rest)

    gathered = Mock(side_effect=gather)
    monkeypatch.setattr(trajectory, "evidence_of", gathered)
    few = TRAINING.model_copy(update={"max_steps": 4})
    trace("toy", SEED, params(finetune=few, trajectory=trajectory_settings(every=2, region_step=2)), runtime())
    labels = [[row["label"] for row in call.args[2]] for call in gathered.call_args_list]
    said = record_of("trajectory")[1].logits["toy:train"]["checkpoint_2"].argmax(1)
    assert labels == 2 * [[TOY.labels[index] for index in said]]
    assert labels[0] != [row["label"] for row in training_cell("standard").rows["train"]], "control: it errs on some"
    assert heads and all(heads), "under the head that the checkpoint had"


def test_another_end_of_training_is_said(after_main):
    after_main("standard")
    for decay, equal in ((0.5, False), (TRAINING.weight_decay, True)):
        settings = TRAINING.model_copy(update={"weight_decay": decay})
        line = trace("toy", SEED, params(finetune=settings), runtime())
        assert ("near, not at" in line) is not equal and record_of("trajectory")[0]["equals_finetuned"] is equal


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"region_step": 20}, r"trajectory\.checkpoints\.region_step: 20 is not a checkpoint; there is one every 15 steps"),
        ({"region_step": 45}, r"trajectory\.checkpoints\.region_step: 45 is not a checkpoint; .* the last after 40"),
        ({"every": 41, "region_step": 41}, r"trajectory\.checkpoints\.every: 41 is more than the 40 steps of fine-tuning"),
    ],
)  # fmt: skip
def test_checkpoints_that_are_not_there_are_refused_before_training(after_main, monkeypatch, changes, said):
    after_main("standard")
    monkeypatch.setattr(trajectory, "train_again", None)
    with pytest.raises(ParamsError, match=said) as error:
        trace("toy", SEED, params(trajectory=trajectory_settings(**changes)), runtime())
    assert isinstance(error.value, GraftError) and "\n" not in str(error.value)


@pytest.mark.parametrize(("steps", "every", "due"), [(25, 10, [10, 20, 25]), (30, 10, [10, 20, 30]), (25, 25, [25])])
def test_checkpoints_are_evenly_apart_and_end_with_the_last_step(steps, every, due):
    assert checkpoints(steps, trajectory_settings(every=every, region_step=due[-1]).checkpoints) == due


# other ways of fine-tuning

GRAFTS = (GRAFTED, MOVEMENT_GRAFTED)


@pytest.mark.parametrize(
    ("paradigm", "mode"), [("sgd", "standard"), ("adamw", "standard"), ("adamw_l1", "standard"), ("standard", "prompt")]
)
def test_the_record_of_a_paradigm(after_main, paradigm, mode):
    after_main(mode)
    before = {path.name for path in paths.FINETUNED.rglob("*")}
    assert f"paradigm {paradigm} toy-{SEED}: " in finetune_and_graft(paradigm, "toy", SEED, params(mode), runtime())
    record, predictions = record_of("paradigm", paradigm)
    assert record["paradigm"] == paradigm and record["training"]["chosen"]["steps"] == 20
    keys = {(row["test_set"], row["variant"], row.get("sparsity")) for row in record["rows"]}
    grafts = {(name, kind, share) for name in ("toy", OTHER) for kind in GRAFTS for share in SPARSITIES}
    assert keys == grafts | {("toy", FINETUNED, None), (OTHER, FINETUNED, None)} and len(record["rows"]) == len(keys)
    for row in record["rows"]:
        logits = predictions.logits[row["test_set"]]
        name = f"{row['variant']}_{row['sparsity']}" if "sparsity" in row else FINETUNED
        assert row["agreement"] == agreement(logits[name], logits[FINETUNED]), "of the paradigm's own model"
        assert row.get("sparsity") in (None, 0.02) or np.array_equal(logits[name], logits[FINETUNED])
    assert {row["selected"] for row in record["rows"] if row.get("sparsity") == 1.0} == {record["graftable"]}
    assert {path.name for path in paths.FINETUNED.rglob("*")} == before, "no model is stored"


def test_a_new_head_is_another_way_than_the_prompt(after_main):
    after_main("prompt")
    logits = {}
    for paradigm in ("sgd", "standard"):
        finetune_and_graft(paradigm, "toy", SEED, params("prompt"), runtime())
        logits[paradigm] = record_of("paradigm", paradigm)[1].logits["toy"][FINETUNED]
    assert not np.allclose(logits["sgd"], logits["standard"], atol=0.1)


def test_a_pooler_that_the_checkpoint_lacks_is_trained_as_the_new_head_is(after_main):
    after_main("prompt")
    start: dict[str, Tensor] = {}

    def watch(model: LabelModel) -> Callable[[], object]:
        start.update({name: values.detach().clone() for name, values in model.parameters().items()})
        return lambda: None

    after = again("standard", watch)
    moved = {name for name, values in after.items() if not torch.equal(values, start[name])}
    assert {"bert.pooler.dense.weight", "classifier.weight"} <= moved
    assert not any("embeddings" in name for name in moved), "control: what the checkpoint has stays where it is to"


def test_a_movement_graft_is_as_large_as_the_learned_one(after_main):
    after_main("prompt")
    finetune_and_graft("adamw", "toy", SEED, params("prompt", "threshold"), runtime())
    record, _ = record_of("paradigm", "adamw")
    sizes = {kind: {row["selected"] for row in record["rows"] if row["variant"] == kind} for kind in GRAFTS}
    assert sizes[GRAFTED] == sizes[MOVEMENT_GRAFTED] and min(sizes[GRAFTED]) < int(0.02 * record["graftable"])


def test_a_paradigm_changes_what_it_is_about_and_nothing_else():
    plain = finetune_settings(optimizer="adamw", l1=0.5, learning_rates=[0.1, 0.2])
    changes = {
        "sgd": {"optimizer": "sgd", "l1": 0.0, "learning_rates": [0.1, 0.2], "weight_decay": 0.0},
        "adamw": {"optimizer": "adamw", "l1": 0.0, "learning_rates": [3e-3], "weight_decay": 0.01},
        "adamw_l1": {"optimizer": "adamw", "l1": 0.001, "learning_rates": [3e-3], "weight_decay": 0.01},
    }
    for name, changed in changes.items():
        assert vars(settings_of(name, plain, ADAMW)) == vars(plain) | changed


def test_a_region_of_less_than_one_parameter_names_its_setting(after_main):
    after_main("standard")
    tiny = {"paradigm": paradigm_settings(sparsities=[1e-9]), "trajectory": trajectory_settings(sparsities=[1e-9])}
    for stage, run in (("paradigm", lambda *rest: finetune_and_graft("adamw", *rest)), ("trajectory", trace)):
        with pytest.raises(MaskError, match=rf"{stage}\.(checkpoints\.)?sparsities: 1e-09 of .* is less than one"):
            run("toy", SEED, params(**{stage: tiny[stage]}), runtime())


# the generalization bound


@pytest.fixture
def frames() -> dict[str, pd.DataFrame]:
    """Graft and retraining of two seeds: errors on (train, test) of (5, 10) and (1, 9) %, fine-tuned 8 % on test."""
    accuracies = {"graft": (0.95, 0.90), "retrain": (0.99, 0.91), FINETUNED: (1.0, 0.92)}
    rows = [
        {"task": "toy", "seed": seed, "readout": name, "variant": name, "localizer": "learned", "sparsity": 0.01, "where": where,
         "n": n, "accuracy": value, "selected": 20, "graftable": 2000}
        for name, (train, test) in accuracies.items()
        for seed in (13, 21)
        for where, n, value in (("id", 600, test + (17 - seed) / 400), ("train", 128, train))
    ]  # fmt: skip
    every = pd.DataFrame(rows)
    whole = every.variant == FINETUNED
    return {"anchor": every[whole], "readout": every[~whole]}


def test_a_bound_is_the_sum_of_what_was_measured_and_proved(frames):
    graft, retrain = bounds(frames).itertuples()
    assert (graft.model, retrain.model, graft.cells) == ("graft", "retrain", 2)
    assert (graft.train, graft.test) == pytest.approx((0.05, 0.10))
    assert (retrain.selected, retrain.examples) == (20, 128)
    assert graft.variance == pytest.approx(variance_term(log_models(20), 128, 0.025))
    assert retrain.variance == pytest.approx(variance_term(log_models(20), 128, 0.05))
    free = variance_term(log_models(20, log_all_regions(20, 2000)), 128, 0.05)
    assert retrain.any == pytest.approx(free + 0.01)
    assert graft.bound == pytest.approx(graft.variance + 0.04 + 0.01)
    assert retrain.bound == pytest.approx(retrain.variance + 0.01)
    assert retrain.needed == examples_for(log_models(20), 1.0, 0.05) < retrain.needed_any


def test_a_bound_of_enough_examples_is_not_vacuous(frames):
    readout = frames["readout"]
    many = frames | {"readout": readout.assign(n=readout.n.where(readout["where"] != "train", 10_000))}
    assert (bounds(frames).bound > 1).all() and (bounds(many).bound < 1).all()


def test_without_training_rows_or_one_of_the_readouts_there_is_no_bound(frames):
    readout = frames["readout"]
    for part in (readout[readout["where"] != "train"], readout[readout.readout == "graft"], readout[:0]):
        assert bounds(frames | {"readout": part}).empty
    assert bounds(frames | {"anchor": frames["anchor"][:0]}).bias.isna().all()
