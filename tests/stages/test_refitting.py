"""The head refitted on the graft, and on the fine-tuned model as its control: nothing but the head moves, on the same rows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from skill_grafting.io import read_json
from skill_grafting.metrics.predictions import read_predictions
from skill_grafting.metrics.variants import FINETUNED, GRAFT_REFITTED, GRAFTED, REFITS, REFITTED
from skill_grafting.models.anatomy import HEAD
from skill_grafting.models.predicting import loss_gradient
from stages.workflow.core import paths
from stages.workflow.core.evaluation import refitting
from stages.workflow.core.sections import SECTIONS
from stages.workflow.core.stored import read_cell
from tests.pico import TOY, finetune_settings, toy_rows, values_of
from tests.settings_files import lay_over
from tests.skill_grafting import test_generative as other
from tests.stages.test_params import problems_of

STEPS, SEED = 12, other.SEED
SETTINGS = {
    "tasks": ["film"], "seeds": [SEED], "task": {"film": {"labels": TOY.labels}}, "data": {"source": "local", "k": 16, "test_max": 40},
    "model": {"source": "local", "name": "pico", "mode": "standard", "max_length": 32}, "runtime": {"threads": 1, "device": "cpu"},
    "finetune": {"optimizer": "adamw", "learning_rates": [0.01], "batch_sizes": [8], "max_steps": 40, "dropout": 0.1},
    "graft": {"sparsity": 0.05}, "localizer": {"learned": {"steps": 3}}, "ood": {"sets": {}},
}  # fmt: skip
FILES = [paths.predictions(stage, "film", SEED) for stage in ("controls", "evaluate")]


def run_with(steps: int) -> dict[Path, bytes]:
    """Run what trains and predicts by the setting; gives what the models predict."""
    lay_over({"calibration": {"refit_head_steps": steps}})
    for stage, *words in (("controls",), ("evaluate", "--task", "film")):
        other.run(stage, *words, "--seed", SEED)
    return {file: file.read_bytes() for file in FILES}


@pytest.fixture(scope="module")
def project(tmp_path_factory, pico_bert) -> Path:
    """A run of the main pipeline in standard mode, with no head refitted yet."""
    folder = tmp_path_factory.mktemp("refitting")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(other, "SETTINGS", SETTINGS)
        other.link_report()
        rows = [[row["sentence1"], row["label"]] for row in toy_rows(200, 1)]
        other.write_csv(Path("data/local/film/train.csv"), ["sentence1", "label"], rows)
        other.write_params({"model": {"root": str(pico_bert)}})
        other.run_all()
    return folder


@pytest.fixture
def inside(project, monkeypatch):
    monkeypatch.chdir(project)


def test_refits_of_equal_rows_and_steps_stand_beside_the_other_models_which_stay_as_they_were(inside):
    off = {file: file.read_bytes() for file in FILES}
    before, summary = read_cell("film", SEED), Path("metrics/summary.md").read_text()
    assert not {*REFITS} & {*before.logits["film"]} and "/H" not in summary and "refitted" not in summary
    on = run_with(STEPS)
    other.run("calibration", "--seed", SEED)
    other.run("summary")
    told = read_cell("film", SEED).logits["film"]
    assert {*told} == {*before.logits["film"], *REFITS}
    assert all(np.array_equal(told[name], logits) for name, logits in before.logits["film"].items())
    for refitted, plain in ((REFITTED, FINETUNED), (GRAFT_REFITTED, GRAFTED)):
        assert not np.array_equal(told[refitted], told[plain]), "control: another head"
    assert "FT/H" in Path("metrics/summary.md").read_text() and {*REFITS} <= {*pd.read_csv("plots/frontier.csv").method}
    ours, theirs = (read_json(paths.scores(stage, "film", SEED))["refit"] for stage in ("evaluate", "controls"))
    assert ours.pop("curve") != theirs.pop("curve"), "control: another model"
    assert ours == theirs and (ours["steps"], ours["rows"]) == (STEPS, 32)
    dev = [read_predictions(file, dev=True).logits["film"] for file in FILES]
    assert REFITTED in dev[0] and GRAFT_REFITTED in dev[1], "dev rows, by which the number of steps may be chosen"
    assert run_with(STEPS) == on, "the same bytes again"
    assert run_with(0) == off != on, "and without it those from before"


class Watch:
    """Stands for an Evaluation: keeps what the weights are when it is to predict, and on which sets."""

    def __init__(self, model, examples) -> None:
        self.model, self.examples = model, examples

    def predict(self, variant, sets):
        self.seen, self.sets, self.loss = values_of(self.model), sets, loss_gradient(self.model, self.examples)


@pytest.mark.parametrize("only_head", [True, False])
def test_nothing_but_the_head_moves_and_the_training_loss_falls(make_cell, monkeypatch, only_head):
    cell = make_cell("standard")
    model = cell.load("finetuned")
    read: list[str] = []
    monkeypatch.setattr(refitting, "read_rows", lambda file: read.append(file.stem) or cell.rows[file.stem])
    monkeypatch.setattr(refitting, "chosen_point", lambda *_: {"batch_size": 8, "learning_rate": 0.01, "steps": 40})
    if not only_head:  # the control: a refit of all that is trained in fine-tuning
        anatomy = replace(cell.anatomy, groups=cell.anatomy.groups | dict.fromkeys([*cell.anatomy.groups][-8:], HEAD))
    monkeypatch.setattr(refitting, "read_anatomy", lambda _: cell.anatomy if only_head else anatomy)
    watch, before = Watch(model, model.encode(cell.rows["train"])), values_of(model)
    start = loss_gradient(model, watch.examples)
    calibration = SECTIONS["calibration"].model_construct(refit_head_steps=30)
    params = refitting.Params(finetune=finetune_settings(), calibration=calibration)
    variant = GRAFT_REFITTED if only_head else REFITTED
    record = refitting.predict_refitted(watch, variant, SEED, params)["refit"]
    moved = {name for name, values in watch.seen.items() if not torch.equal(values, before[name])}
    assert (moved == {"classifier.weight", "classifier.bias"}) == only_head
    assert watch.loss < start and record["rows"] == len(cell.rows["train"])
    assert read == ["train"], "not dev, which has as many"
    assert watch.sets == ["toy", "toy:dev"] and record["steps"] == 30
    assert all(torch.equal(values, before[name]) for name, values in values_of(model).items()), "the head is back"


def test_another_mode_and_a_checkpoint_from_elsewhere_are_refused_in_a_line():
    line = "calibration.refit_head_steps: 20 needs {}={}, and that is {}; 0 refits no head"
    on = {"calibration.refit_head_steps": 20}
    assert problems_of(on) == [line.format("model.mode", "standard", "prompt")]
    elsewhere = problems_of({**on, "model.mode": "standard", "finetune.source": "local"})
    assert line.format("finetune.source", "train", "local") in elsewhere
    other = problems_of({**on, "model.mode": "standard", "graft.sparsity": 5})
    assert len(other) == 1 and other[0].startswith("graft.sparsity"), "control"
