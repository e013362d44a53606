"""A cell of the study: the rows that it is measured on, what it is measured against, and its masks."""

from itertools import product
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from skill_grafting.errors import DataError, GraftError, MaskError, ModelError
from skill_grafting.grafting.mask_file import StoredMask, read_mask
from skill_grafting.io import read_json, write_json
from skill_grafting.localizers import learned
from skill_grafting.localizers.movement import movement_mask
from skill_grafting.localizers.names import NAMES
from skill_grafting.localizers.registry import Localizer
from skill_grafting.metrics.predictions import Predictions, read_predictions, write_predictions
from skill_grafting.metrics.variants import FINETUNED, GRAFTED
from stages.study.readout import read
from stages.study.sweep import sweep
from stages.workflow.core import paths
from stages.workflow.core.cells import GraftCell
from stages.workflow.core.scoring import against_finetuned, study_sets, train_set, variant_rows
from tests.cells import OTHER, OTHER_ROWS, SEED
from tests.pico import TOY, all_localizers, finetune_settings, graft_settings, model_settings, runtime

TASK = "toy"
STEPS, BATCH, TRAIN = 4, 8, 32
LOCALIZER = all_localizers(steps=STEPS, batch_size=BATCH)


@pytest.fixture
def cell(after_main, make_cell):
    """Stands in what the main pipeline makes of a pico cell and its anchor."""
    after_main("prompt")
    return make_cell("prompt")


def store_anchor(predictions: Predictions) -> None:
    write_json(paths.card(TASK), {"task": TOY.model_dump()})
    write_predictions(paths.stage_logits("anchor", (), TASK, SEED), predictions)


def settings(*sparsities: float, **graft: Any) -> SimpleNamespace:
    """The inputs of the stage sweep."""
    return SimpleNamespace(
        model=model_settings("prompt"), graft=graft_settings(**graft), calibration=SimpleNamespace(bins=15),
        study=SimpleNamespace(tasks=[TASK], test_max=0), sweep=SimpleNamespace(sparsities=[*sparsities]), localizer=LOCALIZER,
    )  # fmt: skip


def swept(name: str, *sparsities: float) -> list[tuple[str, dict[str, Any], StoredMask]]:
    """The line, the record and the mask of a localizer at each size."""
    lines = [*sweep(name, TASK, SEED, settings(*sparsities), runtime())]
    records = [read_json(paths.stage_record("sweep", (name, str(size)), TASK, SEED)) for size in sparsities]
    masks = [read_mask(paths.sweep_mask(name, str(size), TASK, SEED)) for size in sparsities]
    return [*zip(lines, records, masks, strict=True)]


# --- Rows ------------------------------------------------------------------------------------------------------


def test_every_test_set_is_cut_to_its_first_rows_and_the_own_one_comes_first(cell):
    sets = study_sets(TASK, SEED, 7)
    assert [*sets] == [TASK, OTHER]
    assert sets[TASK] == cell.rows["test"][:7] and sets[OTHER] == OTHER_ROWS[:7]
    whole = study_sets(TASK, SEED, 0)
    assert (len(whole[TASK]), len(whole[OTHER])) == (200, 30)
    assert [len(rows) for rows in study_sets(TASK, SEED, 100).values()] == [100, 30]  # no more than there are


def test_training_rows_come_last_and_whole_and_only_if_asked_for(cell):
    sets = study_sets(TASK, SEED, 7, with_train=True)
    assert [*sets] == [TASK, OTHER, train_set(TASK)]
    assert sets[train_set(TASK)] == cell.rows["train"]
    assert train_set(TASK) not in study_sets(TASK, SEED, 7)


def test_an_opened_cell_is_pretrained_and_remembers_what_was_fine_tuned(cell):
    opened = GraftCell.open(TASK, SEED, model_settings("prompt"), ["layers"], runtime())
    live, before, after = opened.model.parameters(), cell.pretrained(), cell.finetuned()
    for name in opened.region.shapes:
        assert torch.equal(live[name], before[name]) and torch.equal(opened.pretrained[name], before[name])
        assert torch.equal(opened.finetuned[name], after[name])
    assert not all(torch.equal(before[name], after[name]) for name in before)  # the control
    about = {"task": TASK, "seed": SEED, "graftable": cell.region.size, "model_parameters": cell.anatomy.parameters}
    assert opened.about() == about


# --- Against the fine-tuned model ------------------------------------------------------------------------------


def made_up(n: int, *variants: str, sets: tuple[str, ...] = (TASK,)) -> Predictions:
    """Logits of a few variants, each different, on n rows of every set."""
    labels = {name: np.arange(n) % 2 for name in sets}
    sure = np.eye(2, dtype=np.float32)[np.arange(n) % 2]
    logits = {name: {variant: sure * number for number, variant in enumerate(variants, 1)} for name in sets}
    return Predictions(TOY.labels, labels, logits)


def test_predictions_get_the_anchors_fine_tuned_logits_of_their_own_test_sets(project):
    stored = made_up(6, "pretrained", FINETUNED, sets=(TASK, OTHER, train_set(TASK)))
    store_anchor(stored)
    joined = against_finetuned(made_up(6, "mine", sets=(TASK, OTHER)), TASK, SEED)
    found = {name: [*variants] for name, variants in joined.logits.items()}
    assert found == {name: ["mine", FINETUNED] for name in (TASK, OTHER)}
    assert np.array_equal(joined.logits[OTHER][FINETUNED], stored.logits[OTHER][FINETUNED])


def test_an_anchor_of_other_rows_is_an_error(project):
    store_anchor(made_up(6, FINETUNED))
    with pytest.raises(DataError, match="different test rows"):
        against_finetuned(made_up(4, "mine"), TASK, SEED)
    paths.stage_logits("anchor", (), TASK, SEED).unlink()
    with pytest.raises(DataError, match=r"metrics/anchor/0/toy\.safetensors: no such predictions"):
        against_finetuned(made_up(4, "mine"), TASK, SEED)


def test_only_ones_own_variants_get_a_row(project):
    store_anchor(made_up(6, FINETUNED, sets=(TASK, OTHER)))
    rows = variant_rows(made_up(6, "mine", "yours", sets=(TASK, OTHER)), TASK, SEED, 15)
    assert [(row["test_set"], row["variant"]) for row in rows] == [*product((TASK, OTHER), ("mine", "yours"))]
    assert all(row["agreement"] == row["retained"] == 1.0 for row in rows)


# --- Masks -----------------------------------------------------------------------------------------------------


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
        read_predictions(paths.stage_logits("sweep", ("movement", size), TASK, SEED)).logits[TASK][GRAFTED]
        for size in ("0.02", "1.0")
    )
    finetuned = read_predictions(paths.stage_logits("anchor", (), TASK, SEED)).logits[TASK][FINETUNED]
    assert full.mask.selected == cell.region.size and np.array_equal(whole, finetuned)
    assert not np.array_equal(part, finetuned)  # the control


@pytest.mark.parametrize("name", NAMES)
def test_a_mask_is_the_same_whatever_other_sizes_are_swept(cell, name):
    alone = swept(name, 0.02)[0]
    largest, first = swept(name, 0.1, 0.02)
    for one in (0, 1):
        assert alone[one] == first[one] != largest[one]
    assert alone[2].mask.equals(first[2].mask)
    assert not first[2].mask.equals(largest[2].mask) or name == "bias"


def test_too_small_a_share_is_one_clear_error_that_stores_nothing(cell):
    said = r"^sweep\.sparsities: 1e-06 of [\d,]+ graftable parameters is less than one"
    with pytest.raises(MaskError, match=said) as end:
        swept("movement", 0.02, 1e-06)
    assert "\n" not in str(end.value)
    assert not paths.SWEEP.exists() and not paths.stage_dir("sweep", ("movement", "0.02"), SEED).exists()


def test_a_refinement_that_diverges_names_the_setting(cell, monkeypatch):
    diverge = Mock(side_effect=FloatingPointError("the loss is nan"))
    monkeypatch.setattr(learned, "LOCALIZER", Localizer("", learned.LOCALIZER.rank, diverge))
    with pytest.raises(GraftError, match=r"the loss is nan; lower localizer\.learned\.learning_rate \(1\.0\)"):
        swept("learned", 0.02)


def test_a_model_that_was_fine_tuned_elsewhere_is_read_out_but_for_retraining(cell):
    swept("movement", 0.02)
    write_json(paths.finetuned(TASK, SEED) / "training.json", {"task": TASK, "seed": SEED, "checkpoint": "elsewhere"})
    chosen = settings(0.02)
    chosen.finetune, chosen.readout = finetune_settings(), SimpleNamespace(learning_rates=[0.1])
    for name in ("graft", "reset", "prune"):
        assert f"readout {name} movement 0.02 toy-0" in read((name, "movement", "0.02"), TASK, SEED, chosen, runtime())
    with pytest.raises(ModelError, match="fine-tuned elsewhere"):
        read(("retrain", "movement", "0.02"), TASK, SEED, chosen, runtime())
