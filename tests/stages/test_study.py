"""The study: how a cell is measured, its masks, other ways of training it, what theory says of them, and what is computed of its rows."""

import copy
import math
from collections.abc import Callable
from itertools import combinations, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.mask_files import StoredMask, read_mask
from skill_grafting.grafting.readout import READOUTS
from skill_grafting.localizers.movement import movement_mask
from skill_grafting.models.blocks import block_names
from skill_grafting.support.errors import DataError, ModelError, ParamsError
from skill_grafting.support.io import read_json, write_json
from stages.study.bound import lacking, log_all_regions, log_models, variance_term
from stages.study.compression import PIECES, compress, fitting, pieces, summed
from stages.study.paradigm import finetune_and_graft, settings_of
from stages.study.peft import METHODS, attach, plans_of, train_efficiently, trained_parameters
from stages.study.readout import own_grid, read, read_out
from stages.study.settings import Checkpoints, PeftTraining
from stages.study.study import bitfit, bounds, compressed, region_overlaps
from stages.study.sweep import sweep
from stages.study.trajectory import Trace, due_steps, trace
from stages.text.models.label_model import LabelModel
from stages.text.models.predicting import dev_score, predict
from stages.text.models.structure import groups_of
from stages.text.scores.predictions import Predictions, read_predictions, write_predictions
from stages.text.scores.scores import agreement
from stages.text.scores.variants import FINETUNED, GRAFTED, MOVEMENT_GRAFTED
from stages.text.tasks.runtime import seeded_torch
from stages.text.tasks.settings import AdamWParams
from stages.text.training.finetuning import Finetuned, TrainingCell, finetune, train_again
from stages.workflow.cells.cells import GraftCell
from stages.workflow.cells.scoring import study_sets, train_set, variant_rows
from stages.workflow.cells.training import open_training
from stages.workflow.stage import paths
from tests.cells import OTHER, OTHER_ROWS, SEED, TRAINING
from tests.pico import (
    TOY,
    all_localizers,
    finetune_settings,
    model_settings,
    random_mask,
    runtime,
    same,
    save_with_words,
    small_config,
    toy_rows,
    values_of,
)

TASK = "toy"
STEPS = TRAINING.max_steps
SPARSITIES = [0.02, 1.0]
ADAMW = AdamWParams(learning_rate=3e-3, schedule="linear", weight_decay=0.01, l1=0.001)
WATCHED = TRAINING.model_copy(update={"dropout": 0.2, "max_steps": 25})


def params(mode: str = "standard", **changes: Any) -> SimpleNamespace:
    """All settings of the stages."""
    sections = {
        "model": model_settings(mode), "finetune": TRAINING, "localizer": all_localizers(steps=3, select="authors", eval_steps=3),
        "graft": SimpleNamespace(region=["layers"]), "calibration": SimpleNamespace(bins=15),
        "study": SimpleNamespace(tasks=[TASK], test_max=0), "paradigm": paradigm_settings(), "trajectory": trajectory_settings(),
        "readout": SimpleNamespace(learning_rates=[0.1]),
    }  # fmt: skip
    return SimpleNamespace(**{**sections, **changes})


def sweep_settings(*sparsities: float) -> SimpleNamespace:
    return SimpleNamespace(sparsities=[*sparsities])


def paradigm_settings(**changes: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"sparsities": SPARSITIES, "adamw": ADAMW, **changes})


def trajectory_settings(**changes: Any) -> SimpleNamespace:
    settings = {"every": 15, "region_step": 15, "sparsities": SPARSITIES, **changes}
    return SimpleNamespace(checkpoints=Checkpoints(**settings))


@pytest.fixture
def cell(after_main, make_cell):
    """Stands in what the main pipeline makes of a pico cell and its anchor."""
    after_main("prompt")
    return make_cell("prompt")


def store_anchor(predictions: Predictions) -> None:
    write_json(paths.card(TASK), {"task": TOY.model_dump()})
    write_predictions(paths.logits("anchor", TASK, SEED), predictions)


def swept(name: str, *sparsities: float) -> list[tuple[str, dict[str, Any], StoredMask]]:
    """The line, the record and the mask of a localizer at each size."""
    lines = [*sweep(name, TASK, SEED, params("prompt", sweep=sweep_settings(*sparsities)), runtime())]
    records = [read_json(paths.record("sweep", TASK, SEED, name, str(size))) for size in sparsities]
    masks = [read_mask(paths.mask("sweep", TASK, SEED, name, str(size))) for size in sparsities]
    return [*zip(lines, records, masks, strict=True)]


# --- A cell: its rows, and what it is measured against


def test_test_sets_are_cut_to_their_first_rows_and_training_rows_come_last_if_asked_for(cell):
    sets, more = study_sets(TASK, SEED, 7), study_sets(TASK, SEED, 7, with_train=True)
    assert sets == {TASK: cell.rows["test"][:7], OTHER: OTHER_ROWS[:7]} and [*sets] == [TASK, OTHER]
    assert [len(rows) for rows in study_sets(TASK, SEED, 100).values()] == [100, 30], "no more than there are"
    assert [len(rows) for rows in study_sets(TASK, SEED, 0).values()] == [200, 30]
    assert [*more] == [TASK, OTHER, train_set(TASK)] and more == {**sets, train_set(TASK): cell.rows["train"]}


def test_an_opened_cell_is_pretrained_and_remembers_what_was_fine_tuned(cell):
    opened = GraftCell.open(TASK, SEED, model_settings("prompt"), ["layers"], runtime())
    live, before, after = opened.model.parameters(), cell.pretrained(), cell.finetuned()
    for name in opened.region.shapes:
        assert torch.equal(live[name], before[name]) and torch.equal(opened.pretrained[name], before[name])
        assert torch.equal(opened.finetuned[name], after[name])
    assert not all(torch.equal(before[name], after[name]) for name in before)  # the control
    about = {"task": TASK, "seed": SEED, "graftable": cell.region.size, "model_parameters": cell.anatomy.parameters}
    assert opened.about() == about


def made_up(n: int, *variants: str, sets: tuple[str, ...] = (TASK,)) -> Predictions:
    """Logits of a few variants, each different, on n rows of every set."""
    labels = {name: np.arange(n) % 2 for name in sets}
    sure = np.eye(2, dtype=np.float32)[np.arange(n) % 2]
    logits = {name: {variant: sure * number for number, variant in enumerate(variants, 1)} for name in sets}
    return Predictions(TOY.labels, labels, logits)


def test_ones_own_variants_are_scored_against_the_anchors_fine_tuned_model_on_the_same_rows(project):
    stored = made_up(6, "pretrained", FINETUNED, sets=(TASK, OTHER, train_set(TASK)))
    store_anchor(stored)
    mine = made_up(6, "mine", "yours", sets=(TASK, OTHER))
    rows = variant_rows(mine, TASK, SEED, 15)
    assert [(row["test_set"], row["variant"]) for row in rows] == [*product((TASK, OTHER), ("mine", "yours"))]
    assert all(row["agreement"] == row["retained"] == 1.0 for row in rows)
    with pytest.raises(DataError, match="different test rows"):
        variant_rows(made_up(4, "mine"), TASK, SEED, 15)
    paths.logits("anchor", TASK, SEED).unlink()
    with pytest.raises(DataError, match=r"metrics/anchor/0/toy\.safetensors: no such predictions"):
        variant_rows(mine, TASK, SEED, 15)


# --- Masks


def test_a_mask_of_the_sweep_is_by_its_localizer_and_its_graft_is_what_is_measured(cell):
    [(said, found, stored), (_, _, full)] = swept("movement", 0.02, 1.0)
    k = cell.region.budget(0.02)
    assert (
        stored.mask.equals(movement_mask(cell.pretrained(), cell.finetuned(), cell.region, k))
        and f"{k:,} parameters" in said
    )
    assert (found["stage"], found["localizer"], found["sparsity"], found["selected"]) == ("sweep", "movement", 0.02, k)
    rows = [(row["test_set"], row["variant"], row["n"]) for row in found["rows"]]
    assert rows == [(TASK, GRAFTED, 200), (OTHER, GRAFTED, 30)]
    part, whole = (
        read_predictions(paths.logits("sweep", TASK, SEED, "movement", size)).logits[TASK][GRAFTED]
        for size in ("0.02", "1.0")
    )
    finetuned = read_predictions(paths.logits("anchor", TASK, SEED)).logits[TASK][FINETUNED]
    assert full.mask.selected == cell.region.size and np.array_equal(whole, finetuned)
    assert not np.array_equal(part, finetuned)  # the control


def test_a_mask_is_the_same_whatever_other_sizes_are_swept(cell):
    """Also that of a localizer which asks the model; for each of them tests/skill_grafting/test_localizers.py shows it."""
    [alone], [largest, first] = swept("learned", 0.02), swept("learned", 0.1, 0.02)
    for one in (0, 1):
        assert alone[one] == first[one] != largest[one]
    assert alone[2].mask.equals(first[2].mask) and not first[2].mask.equals(largest[2].mask)


def test_a_model_that_was_fine_tuned_elsewhere_is_read_out_but_for_retraining(cell):
    swept("movement", 0.02)
    write_json(paths.finetuned(TASK, SEED) / "training.json", {"task": TASK, "seed": SEED, "checkpoint": "elsewhere"})
    for name in ("graft", "reset", "prune"):
        axes = (name, "movement", "0.02")
        assert f"readout {name} movement 0.02 toy-0" in read(axes, TASK, SEED, params("prompt"), runtime())
    with pytest.raises(ModelError, match="fine-tuned elsewhere"):
        read(("retrain", "movement", "0.02"), TASK, SEED, params("prompt"), runtime())


# --- Read-outs on a model ------------------------------------------------------------------------------------

READ_OUT_RATES = [1e-6, 1e-2]


def reader_of(cell) -> GraftCell:
    """A cell whose model has moved outside the region too."""
    model = cell.load()
    with torch.no_grad():
        for name, group in groups_of(model).items():
            if group == "embeddings":
                model.parameters()[name].add_(1.0)
    return GraftCell.of(model, 0, ["layers"], cell.pretrained_folder)


def retraining(cell, mask: GraftMask) -> Callable[[], Finetuned]:
    settings = finetune_settings(max_steps=10, batch_sizes=[2, 4], learning_rates=[1.0], weight_decay=0.1, dropout=0.1)
    where = TrainingCell(TOY, 0, cell.rows, model_settings(cell.mode), runtime(), cell.pretrained_folder)
    return lambda: finetune(where, own_grid(settings, READ_OUT_RATES, 8), only=mask)


def read_values(cell, reader: GraftCell, name: str, mask: GraftMask) -> dict[str, Tensor]:
    read_out(name, reader, mask, retraining(cell, mask))
    return values_of(reader.model)


@pytest.mark.parametrize("mode", ["standard", "prompt"])
def test_read_outs_differ_in_the_region_and_a_new_head_alone_whatever_was_read_before(make_cell, mode):
    cell = make_cell(mode)
    mask, reader, original = random_mask(cell.region, 300, 5), reader_of(cell), values_of(cell.load("pretrained"))
    once = {name: read_values(cell, reader, name, mask) for name in READOUTS}
    again = {name: read_values(cell, reader, name, mask) for name in reversed(READOUTS)}
    assert all(same(once[name], again[name]) for name in READOUTS)
    assert not any(same(once[one], once[other]) for one, other in combinations(READOUTS, 2)), "control"
    tuned, groups = values_of(cell.load()), groups_of(reader.model)
    outside = [name for name, group in groups.items() if group not in ("layers", "head")]
    head = [name for name, group in groups.items() if group == "head"]
    assert outside and bool(head) == (mode == "standard")
    for readout, found in once.items():
        assert all(torch.equal(found[name], original[name]) for name in outside), readout
        assert all(torch.equal(found[name], tuned[name]) == (readout != "retrain") for name in head), readout


def test_retraining_chooses_a_learning_rate_of_its_own_on_dev_and_sees_the_same_examples(make_cell):
    cell = make_cell("prompt")
    mask = random_mask(cell.region, 300, 5)
    again = retraining(cell, mask)
    record = again().record
    first, second = record["grid"]
    for point, rate in ((first, READ_OUT_RATES[0]), (second, READ_OUT_RATES[1])):
        assert (point["batch_size"], point["learning_rate"], point["steps"]) == (8, rate, 10)
    assert record["chosen"]["learning_rate"] == 1e-2 and first["dev_loss"] > second["dev_loss"]
    assert read_out("retrain", reader_of(cell), mask, again) == record
    assert read_out("graft", reader_of(cell), mask, again) == {}


def training_cell(mode: str) -> TrainingCell:
    return open_training("toy", SEED, model_settings(mode), runtime())


def again(mode: str, watch: Callable[[LabelModel], Callable[[], object]]) -> dict[str, Tensor]:
    """The weights after training again, watched by this."""
    return values_of(train_again(training_cell(mode), WATCHED, watch))


# --- Fine-tuning watched


def test_training_that_is_looked_at_at_every_step_ends_at_the_fine_tuned_model_bit_for_bit(after_main):
    after_main(mode := "standard")
    sets = {"toy": training_cell(mode).rows["dev"], train_set("toy"): training_cell(mode).rows["train"]}
    seen = Trace(range(1, 26), sets, [*read_json(paths.PRETRAINED / "anatomy.json")["groups"]])
    after, unwatched = again(mode, seen.watch), values_of(finetune(training_cell(mode), WATCHED).model)
    assert same(after, unwatched) and same(seen.kept[25], unwatched)
    assert {values.dtype for values in seen.kept[25].values()} == {torch.float32}
    assert not same(seen.kept[20], unwatched) and not same(seen.kept[10], seen.kept[20]), "control"
    drawing = again(mode, lambda model: lambda: torch.rand(1))
    assert not same(drawing, unwatched), "control: dropout draws from the same generator"


def record_of(stage: str, *axes: str) -> tuple[dict, Any]:
    record, logits = (place(stage, "toy", SEED, *axes) for place in (paths.record, paths.logits))
    return read_json(record), read_predictions(logits)


def test_the_record_of_a_trajectory(after_main):
    after_main(mode := "prompt")
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
    objective, heads, given = GraftCell.objective, [], []

    def gather(cell: GraftCell, rows: list[dict]) -> Any:
        live = cell.model.parameters()
        heads.extend(torch.equal(live[name], cell.finetuned[name]) for name in cell.head)
        given.append(rows)
        return objective(cell, rows)

    monkeypatch.setattr(GraftCell, "objective", gather)
    few = TRAINING.model_copy(update={"max_steps": 4})
    trace("toy", SEED, params(finetune=few, trajectory=trajectory_settings(every=2, region_step=2)), runtime())
    labels = [[row["label"] for row in rows] for rows in given]
    said = record_of("trajectory")[1].logits["toy:train"]["checkpoint_2"].argmax(1)
    assert labels == [[TOY.labels[index] for index in said]]
    assert labels[0] != [row["label"] for row in training_cell("standard").rows["train"]], "control: it errs on some"
    assert heads and all(heads), "under the head that the checkpoint had"


def test_another_end_of_training_is_said(after_main):
    after_main("standard")
    for decay, equal in ((0.5, False), (TRAINING.weight_decay, True)):
        settings = TRAINING.model_copy(update={"weight_decay": decay})
        line = trace("toy", SEED, params(finetune=settings), runtime())
        assert ("near, not at" in line) is not equal and record_of("trajectory")[0]["equals_finetuned"] is equal


def test_checkpoints_are_evenly_apart_end_with_the_last_step_and_others_are_refused():
    looks = lambda every, region_step: trajectory_settings(every=every, region_step=region_step).checkpoints  # noqa: E731
    for steps, every, due in ((25, 10, [10, 20, 25]), (30, 10, [10, 20, 30]), (25, 25, [25])):
        assert due_steps(steps, looks(every, due[-1])) == due
    for every, region_step, word in ((15, 20, "region_step: 20"), (15, 45, "region_step: 45"), (41, 41, "every: 41")):
        with pytest.raises(ParamsError, match=word):
            due_steps(40, looks(every, region_step))


# --- Other ways of fine-tuning
GRAFTS = (GRAFTED, MOVEMENT_GRAFTED)


@pytest.mark.parametrize(("paradigm", "mode"), [("adamw_l1", "standard"), ("standard", "prompt")])
def test_the_record_of_a_paradigm(after_main, paradigm, mode):
    after_main(mode)
    before = {path.name for path in paths.FINETUNED.rglob("*")}
    assert f"paradigm {paradigm} toy-{SEED}: " in finetune_and_graft(paradigm, "toy", SEED, params(mode), runtime())
    record, predictions = record_of("paradigm", paradigm)
    assert record["paradigm"] == paradigm and record["training"]["chosen"]["steps"] == TRAINING.max_steps
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
    finetune_and_graft(
        "adamw", "toy", SEED, params("prompt", localizer=all_localizers(steps=3, rule="threshold")), runtime()
    )
    record, _ = record_of("paradigm", "adamw")
    sizes = {kind: {row["selected"] for row in record["rows"] if row["variant"] == kind} for kind in GRAFTS}
    assert sizes[GRAFTED] == sizes[MOVEMENT_GRAFTED] and min(sizes[GRAFTED]) < int(0.02 * record["graftable"])


def test_a_paradigm_changes_what_it_is_about_and_nothing_else():
    plain = finetune_settings(optimizer="adamw", l1=0.5, learning_rates=[0.1, 0.2])
    changes = {
        "sgd": {"optimizer": "sgd", "l1": 0.0, "learning_rates": [0.1, 0.2], "weight_decay": 0.0},
        "adamw": {"optimizer": "adamw", "l1": 0.0, "learning_rates": [3e-3], "schedule": "linear", "weight_decay": 0.01},
        "adamw_l1": {"optimizer": "adamw", "l1": 0.001, "learning_rates": [3e-3], "schedule": "linear", "weight_decay": 0.01},
    }
    for name, changed in changes.items():
        assert vars(settings_of(name, plain, ADAMW)) == vars(plain) | changed


# --- Parameter-efficient methods

WIDTH, LAYERS = 32, {"bert": 2, "gpt2": 2, "llama": 2, "albert": 1}  # blocks of their own, by default 3
KINDS = [
    ("bert", "standard"), ("bert", "prompt"), ("roberta", "prompt"), ("gpt2", "standard"), ("gpt2", "autoregressive"), ("llama", "autoregressive"),
    ("mpnet", "prompt"), ("distilbert", "prompt"), ("albert", "prompt"), ("deberta-v2", "prompt"),
    ("modernbert", "prompt"), ("gpt_neox", "autoregressive"), ("opt", "autoregressive"),
]  # fmt: skip
# the head of standard mode: 2 labels; BERT's has a bias
HEADS = {"bert": 2 * WIDTH + 2, "gpt2": 2 * WIDTH}
# inputs + outputs of the matrices that LoRA updates: query and value; query, key and value in one; one value head of two
LORA = {"llama": 2 * WIDTH + WIDTH + WIDTH // 2}


def folder_of(folder, kind):
    """A language model of this kind beside the word tokenizer."""
    config = small_config(kind)
    with seeded_torch("masked"):
        model = (AutoModelForCausalLM if kind in ("gpt_neox", "opt") else AutoModelForMaskedLM).from_config(config)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.15)
    return save_with_words(model, folder)


@pytest.fixture(scope="session")
def folders(tmp_path_factory, pico_bert, pico_gpt2, pico_llama):
    ready = {"bert": pico_bert, "gpt2": pico_gpt2, "llama": pico_llama}
    others = {kind for kind, _ in KINDS} - {*ready} | {"squeezebert"}
    return ready | {kind: folder_of(tmp_path_factory.mktemp(kind), kind) for kind in sorted(others)}


@pytest.fixture
def load(folders):
    """load(kind, mode): a fresh model, the same one every time."""

    def fresh(kind: str, mode: str) -> LabelModel:
        with seeded_torch("test"):
            return LabelModel.load(folders[kind], TOY, model_settings(mode), runtime())

    return fresh


# what puts modules of its own into a model
INSERTED = [method for method in METHODS if method != "norms"]


def attached(model: LabelModel, method: str, size: int) -> dict[str, Tensor]:
    """attach, drawing the same numbers every time: a bottleneck of few ReLUs may start dead."""
    with seeded_torch("test", method):
        return attach(model, method, size)


def closed_form(kind: str, method: str, size: int) -> int:
    bottleneck = 2 * WIDTH * size + WIDTH + size
    of_block = {"lora": size * LORA.get(kind, 4 * WIDTH), "houlsby": 2 * bottleneck, "pfeiffer": bottleneck}[method]
    return of_block * LAYERS.get(kind, 3)


def every_value(model: LabelModel) -> dict[str, Tensor]:
    """Copies of all parameters and buffers; a matrix that LoRA updates under the name it had before."""
    values = model.model.state_dict()
    return {name.replace(".base_layer.", "."): value.clone() for name, value in values.items()}


def changed(before: dict[str, Tensor], model: LabelModel) -> set[str]:
    """Names of what is new or has moved."""
    after = every_value(model)
    assert before.keys() <= after.keys(), "nothing is lost"
    return {name for name, value in after.items() if name not in before or not torch.equal(before[name], value)}


@pytest.mark.parametrize("method", INSERTED)
@pytest.mark.parametrize(("kind", "mode"), KINDS)
def test_as_much_as_the_formula_says_is_inserted_and_at_first_changes_no_bit(load, kind, mode, method):
    model, size = load(kind, mode), 3
    examples = model.encode(toy_rows(20))
    plain = predict(model, examples)
    trained = attached(model, method, size)
    expected, head = closed_form(kind, method, size), HEADS[kind] if mode == "standard" else 0
    count = {"parameters": expected, "with_head": expected + head, "share": expected / 1000}
    assert trained_parameters(model, trained, 1000) == count
    assert torch.equal(predict(model, examples), plain)
    with torch.no_grad(), seeded_torch("other weights"):
        for name, weight in trained.items():
            if "lora" in name or "adapter" in name:
                weight.normal_(std=0.3)
    assert float((predict(model, examples) - plain).abs().max()) > 1e-3, "control: what was inserted is used"


@pytest.mark.parametrize(("kind", "path", "rank"), [("bert", "bert.encoder.layer.0.attention.self.query", 1), ("gpt2", "transformer.h.0.attn.c_attn", 4)])
def test_lora_adds_twice_b_a_at_any_rank(load, kind, path, rank):
    model = load(kind, "prompt" if kind == "bert" else "autoregressive")
    plain = copy.deepcopy(model.model.get_submodule(path))
    trained = attached(model, "lora", rank)
    down, up = (trained[f"{path}.lora_{part}.default.weight"] for part in "AB")
    hidden = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        up.normal_(generator=torch.Generator().manual_seed(1))
        expected = plain(hidden) + 2 * hidden @ down.T @ up.T
        assert torch.allclose(model.model.get_submodule(path)(hidden), expected, atol=1e-5)
        assert not torch.allclose(plain(hidden), expected, atol=1e-2), "control"


@pytest.mark.parametrize(("method", "activation"), [("houlsby", torch.nn.functional.gelu), ("pfeiffer", torch.relu)])
def test_a_bottleneck_is_added_to_what_the_projection_gives(load, method, activation):
    model = load("bert", "prompt")
    path = "bert.encoder.layer.0.output.dense"
    plain = copy.deepcopy(model.model.get_submodule(path))
    part = {name.removeprefix(f"{path}.adapter."): weight for name, weight in attached(model, method, 4).items()}
    hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        part["up.weight"].fill_(0.5)
        part["up.bias"].fill_(0.1)
        before = plain(hidden)
        inner = activation(before @ part["down.weight"].T + part["down.bias"])
        expected = before + inner @ part["up.weight"].T + part["up.bias"]
        assert torch.allclose(model.model.get_submodule(path)(hidden), expected, atol=1e-5)
    assert 0 < float(part["down.weight"].detach().abs().max()) <= 0.02, "cut off at twice the deviation"


@pytest.mark.parametrize("method", INSERTED)
def test_what_cannot_be_inserted_is_refused_and_the_model_untouched(load, method):
    model = load("squeezebert", "prompt")
    before = every_value(model)
    with pytest.raises(ModelError, match="^SqueezeBertForMaskedLM: its layers are built in no way .*; known: BERT"):
        attach(model, method, 1)
    assert not changed(before, model)


@pytest.mark.parametrize(("kind", "mode"), KINDS)
def test_norms_trains_the_vectors_of_norms_in_blocks_and_nothing_else(load, kind, mode):
    model = load(kind, mode)
    before = every_value(model)
    trained = attached(model, "norms", 0)
    blocks, head = tuple(block_names(model.model)), HEADS[kind] if mode == "standard" else 0
    of_norms = {name for name in before if "norm" in name.lower() or ".ln_" in name}
    expected = {name for name in of_norms if name.startswith(blocks)}
    own = {name for name in trained if name.startswith(blocks)}
    assert own == expected and sum(trained[name].numel() for name in trained) == sum(before[name].numel() for name in own) + head
    with torch.no_grad():
        for name in own:
            trained[name].add_(1.0)
    assert changed(before, model) == own


def test_norms_of_a_model_without_any_are_refused(load):
    model = load("bert", "prompt")
    for block in block_names(model.model):
        for part in (*model.model.get_submodule(block).modules(),):
            for name, child in part.named_children():
                if isinstance(child, torch.nn.LayerNorm):
                    setattr(part, name, torch.nn.Identity())
    with pytest.raises(ModelError, match="^BertForMaskedLM: its layers have no norms with parameters to train$"):
        attach(model, "norms", 0)


def trained_by(cell, name: str, seed: int = 0, on_step: Callable[[], object] = lambda: None) -> tuple[LabelModel, dict[str, Tensor], dict]:
    """The trained model, what was trained of it, and the record."""
    training = PeftTraining(learning_rates=[1e-2], weight_decay=0.01, clip_norm=1.0)
    return train_efficiently(cell.to_train(seed), name, plans_of(training, {"batch_size": 8, "steps": 12}), on_step)


@pytest.mark.parametrize(("kind", "mode", "method"), [*(("bert", "standard", method) for method in INSERTED), ("llama", "autoregressive", "lora")])
def test_a_cell_leaves_the_pretrained_parameters_as_they_are_and_counts_the_rest(make_cell, kind, mode, method):
    cell, steps = make_cell(mode), []
    model, weights, record = trained_by(cell, f"{method}_2", on_step=lambda: steps.append(1))
    plain = every_value(cell.load("pretrained"))
    assert {name for name in changed(plain, model) if name in plain} == {*cell.anatomy.names(["head"])}
    assert len(steps) == 12 and [point["step"] for point in record["curve"]] == [10, 12]
    size = trained_parameters(model, weights, 1)
    assert size["parameters"] == size["share"] == closed_form(kind, method, 2)
    assert (record["dev_accuracy"], -record["grid"][0]["dev_loss"]) == dev_score(model, model.encode(cell.rows["dev"]))


@pytest.mark.parametrize("method", ["lora", "houlsby"])
def test_one_seed_gives_one_result_and_another_seed_another(make_cell, method):
    state = torch.get_rng_state()
    first, again, other = (every_value(trained_by(make_cell("standard"), f"{method}_2", seed)[0]) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), state), "the global random state neither matters nor changes"
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["classifier.weight"], other["classifier.weight"])


# --- Forms of the task vector

EVERYTHING = 10**9  # bytes


def task_vector() -> dict[str, Tensor]:
    draws = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=draws) for name, shape in {"bias": (9,), "wide": (7, 12), "tall": (12, 5)}.items()}


def kept(form: str, moved: dict[str, Tensor], budget: int) -> dict[str, Tensor]:
    return summed(fitting(pieces(form, moved, EVERYTHING), budget), moved)


def squared(values: dict[str, Tensor]) -> float:
    return sum(float(part.square().sum()) for part in values.values())


def test_where_everything_fits_the_task_vector_comes_out_as_exactly_as_the_form_can():
    moved, close = task_vector(), {"rtol": 2e-3, "atol": 2e-3}  # of float16
    full = sum(piece.bytes for piece in pieces("svd", moved, EVERYTHING))
    assert full == 2 * (7 * (7 + 12) + 5 * (12 + 5) + 9)
    for name, values in kept("svd", moved, full).items():
        torch.testing.assert_close(values, moved[name], **close)
    alike = {"wide": 0.375 * moved["wide"].sign()}
    assert same(kept("one_bit", alike, 84 // 8 + 1 + 4), alike) and not same(kept("one_bit", alike, 84 // 8 + 4), alike)
    for form, budget in (("svd", full - 1), ("one_bit", EVERYTHING)):
        assert not all(torch.allclose(values, moved[name], **close) for name, values in kept(form, moved, budget).items()), "control"


@pytest.mark.parametrize("form", PIECES)
def test_no_budget_is_exceeded_and_a_larger_one_explains_no_less(form):
    moved, before, worse = task_vector(), 0.0, 0
    for budget in range(0, 600, 7):
        found = fitting(pieces(form, moved, EVERYTHING), budget)
        explained = sum(piece.explained for piece in found)
        assert sum(piece.bytes for piece in found) <= budget and explained >= before
        made = summed(found, moved)
        left = {name: values - made[name] for name, values in moved.items()}
        assert squared(moved) - squared(left) == pytest.approx(explained, rel=1e-2, abs=1e-6), "as each piece says"
        assert same(kept(form, moved, budget), kept(form, moved, budget))
        before, room, first = explained, budget, 0.0
        for piece in pieces(form, moved, EVERYTHING):  # as they come
            if piece.bytes <= room:
                first, room = first + piece.explained, room - piece.bytes
        worse += first < explained - 1e-6
    assert worse, "control: the order matters"


def test_the_record_of_the_forms_of_a_task_vector(cell):
    sizes, forms = [2000, EVERYTHING], ["learned", "movement", "svd", "one_bit"]
    asked = SimpleNamespace(bytes=sizes, forms=forms)
    said = [*compress(TASK, SEED, params("prompt", compression=asked), runtime())]
    record, predictions = record_of("compression")
    logits, finetuned = predictions.logits[TASK], read_predictions(paths.logits("anchor", TASK, SEED)).logits[TASK][FINETUNED]
    rows = {(row["variant"], row["bytes"]): row for row in record["rows"]}
    assert [*rows] == [*product(forms, sizes)] and len(said) == len(rows) == len(record["rows"])
    assert all(row["n"] == 200 and 0 < row["used"] <= row["bytes"] for row in rows.values())
    for name in ("learned", "movement"):
        assert rows[name, 2000]["used"] == 2000 and rows[name, EVERYTHING]["used"] == 8 * cell.region.size
        np.testing.assert_array_equal(logits[f"{name}_{EVERYTHING}"], finetuned)
        assert not np.array_equal(logits[f"{name}_2000"], finetuned), "control"
    small = movement_mask(cell.pretrained(), cell.finetuned(), cell.region, 250)
    [(_, _, stored)] = swept("movement", share := 250 / cell.region.size)
    beside = read_predictions(paths.logits("sweep", TASK, SEED, "movement", str(share))).logits[TASK][GRAFTED]
    assert stored.mask.equals(small) and np.array_equal(logits["movement_2000"], beside), "the graft that the sweep makes"
    np.testing.assert_allclose(logits[f"svd_{EVERYTHING}"], finetuned, atol=0.02)
    assert np.abs(logits["svd_2000"] - finetuned).max() > 0.02 < np.abs(logits[f"one_bit_{EVERYTHING}"] - finetuned).max(), "control"
    shares = {key: row["explained"] for key, row in rows.items()}
    assert shares["movement", EVERYTHING] == 1 and shares["svd", EVERYTHING] == pytest.approx(1, abs=1e-4)
    assert all(0 < shares[form, 2000] < shares[form, EVERYTHING] for form in forms)


# --- The generalization bound: the paper's formula

SMALL = log_models(5)


def test_terms_computed_by_hand():
    # 5 * ln 2^32 = 110.9035, ln 20 = 2.9957
    assert variance_term(SMALL, 10_000, 0.05) == pytest.approx(2 * math.sqrt((110.903549 + 2.995732) / 10_000), 1e-7)
    assert variance_term(log_models(8500), 4096, 0.05) > 1, "the paper's own sizes"
    any_mask = log_models(5, log_all_regions(5, 85_000_000))
    assert any_mask == pytest.approx(5 * (32 * math.log(2) + math.log(85_000_000)))
    assert log_models(5, values=2) == pytest.approx(5 * math.log(2))
    assert lacking(0.2, 0.15) == pytest.approx(0.05) and lacking(0.1, 0.15) == 0, "better than the other lacks nothing"


def test_it_holds_for_a_class_that_can_be_counted():
    """All 2^6 models of six thresholds that guess coins: train error strays no further than half the variance term."""
    generator, delta, examples, broken = np.random.default_rng(0), 0.2, 50, 0
    for _ in range(300):
        train_errors = generator.binomial(examples, 0.5, size=2**6) / examples
        broken += 2 * np.abs(train_errors - 0.5).max() > variance_term(log_models(6, values=2), examples, delta)
    assert broken <= 300 * delta
    strayed = 2 * np.abs(train_errors - 0.5).max()
    assert strayed > variance_term(0.0, 50_000, delta), "control: a smaller bound would not hold"


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


# --- What is computed of rows, by hand


def test_bitfit_is_of_all_biases():
    sizes = {0.001: 10, 0.01: 60, 0.1: 60}
    rows = [
        {"readout": "retrain", "localizer": "bias", "sparsity": size, "selected": n, "graftable": 10_000}
        for size, n in sizes.items()
    ]
    assert [*bitfit(pd.DataFrame(rows)).sparsity] == [0.01], "10 of 10 may be some of them, 60 of 100 are all"


def test_forms_of_a_task_vector_stand_between_none_of_it_and_all_of_it():
    shared = {"task": "one", "seed": 13, "where": "id", "graftable": 1000.0}
    rows = [
        shared | {"variant": name, "bytes": size, "used": size - 1, "retained": share}
        for name, size, share in (("learned", 400, 0.7), ("svd", 400, 0.9), ("svd", 4000, 1.0))
    ]
    ends = [shared | {"task": task, "variant": name, "retained": 0.5} for task in ("one", "two") for name in ("pretrained", "finetuned", "pruned")]
    found = compressed({"compression": pd.DataFrame(rows), "anchor": pd.DataFrame(ends)})
    assert [*zip(found.variant, found.budget, found.used, strict=True)] == [
        ("pretrained", "0 kB", 0), ("learned", "0.4 kB", 399), ("svd", "0.4 kB", 399), ("svd", "4 kB", 3999), ("finetuned", "4 kB", 4000),
    ]  # fmt: skip
    assert {*found.task} == {"one"}, "control: the other task has no forms"
    assert [*found[found.least].variant] == ["learned", "svd"]
    assert found.less_learned.dropna().tolist() == pytest.approx([0.2]), "of the same bytes alone"


def test_regions_are_compared_between_tasks_and_between_seeds_of_one():
    shared = {"localizer": "learned", "sparsity": 0.01, "chance": 0.01}
    own = [
        shared | {"task": task, "first": 1, "second": 2, "overlap": share}
        for task, share in (("one", 0.4), ("two", 0.2))
    ]
    other = [shared | {"seed": 1, "first": "one", "second": "two", "overlap": 0.1}]
    frames = {"seed_overlap": pd.DataFrame(own), "task_overlap": pd.DataFrame(other)}
    [line] = region_overlaps(frames).itertuples()
    assert (line.own, line.overlap) == pytest.approx((0.3, 0.1))
    [line] = region_overlaps(frames | {"seed_overlap": pd.DataFrame(own[:1])}).itertuples()
    assert line.own != line.own, "without its own there is nothing to compare"
    none = {name: frame.query("localizer == 'movement'").astype({"sparsity": object} if name == "seed_overlap" else {}) for name, frame in frames.items()}
    assert region_overlaps(none).empty, "a study without learned masks, of one seed"
