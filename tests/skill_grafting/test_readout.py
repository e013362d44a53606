"""Read-outs of a mask: what is needed, what suffices alone, and what can be trained anew."""

from collections.abc import Callable
from itertools import combinations

import pytest
import torch
from torch import Tensor

from skill_grafting.grafting.apply import graft
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.readout import READOUTS, prune, reset
from skill_grafting.models.predicting import predict
from skill_grafting.models.structure import groups_of
from skill_grafting.training.finetuning import Finetuned, TrainingCell, finetune
from stages.study.readout import own_grid, read_out
from stages.workflow.core.cells import GraftCell
from tests.pico import TOY, finetune_settings, model_settings, random_mask, runtime, same, values_of

RATES = [1e-6, 1e-2]


def complement(mask: GraftMask) -> GraftMask:
    outside = torch.ones(mask.region.size, dtype=torch.bool)
    outside[mask.region_indices()] = False
    return GraftMask.from_region_indices(mask.region, torch.nonzero(outside).reshape(-1))


# values


@pytest.mark.parametrize("k", [0, 1, 20, 71])
def test_reset_is_the_graft_of_everything_else(triple, k):
    region, pretrained, finetuned = triple
    mask = random_mask(region, k, 5)
    assert same(reset(finetuned, pretrained, mask), graft(pretrained, finetuned, complement(mask)))
    assert not same(reset(finetuned, pretrained, mask), graft(pretrained, finetuned, mask)), "control"


@pytest.mark.parametrize("k", [0, 1, 20, 71])
def test_prune_keeps_the_mask_and_nothing_else(triple, k):
    region, pretrained, finetuned = triple
    mask = random_mask(region, k, 5)
    pruned = region.flatten(prune(finetuned, mask))
    kept = mask.region_indices()
    assert torch.equal(torch.nonzero(pruned).reshape(-1), kept)
    assert torch.equal(pruned[kept], region.flatten(finetuned)[kept])
    assert int((region.flatten(graft(pretrained, finetuned, mask)) == 0).sum()) == 0, "control: a graft has no holes"


# a real model


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
    return lambda: finetune(where, own_grid(settings, RATES, 8), only=mask)


def read(cell, reader: GraftCell, name: str, mask: GraftMask) -> dict[str, Tensor]:
    read_out(name, reader, mask, retraining(cell, mask))
    return values_of(reader.model)


@pytest.mark.parametrize("mode", ["standard", "prompt", "autoregressive"])
def test_read_outs_differ_in_the_region_and_a_new_head_alone_whatever_was_read_before(make_cell, mode):
    cell = make_cell(mode)
    mask, reader, original = random_mask(cell.region, 300, 5), reader_of(cell), values_of(cell.load("pretrained"))
    once = {name: read(cell, reader, name, mask) for name in READOUTS}
    again = {name: read(cell, reader, name, mask) for name in reversed(READOUTS)}
    assert all(same(once[name], again[name]) for name in READOUTS)
    assert not any(same(once[one], once[other]) for one, other in combinations(READOUTS, 2)), "control"
    tuned, groups = values_of(cell.load()), groups_of(reader.model)
    outside = [name for name, group in groups.items() if group not in ("layers", "head")]
    head = [name for name, group in groups.items() if group == "head"]
    assert outside and bool(head) == (mode == "standard")
    for readout, found in once.items():
        assert all(torch.equal(found[name], original[name]) for name in outside), readout
        assert all(torch.equal(found[name], tuned[name]) == (readout != "retrain") for name in head), readout


@pytest.mark.parametrize("mode", ["standard", "prompt"])
def test_the_ends_of_reading_are_the_two_models(make_cell, mode):
    cell = make_cell(mode)
    reader, full, empty = reader_of(cell), GraftMask.full(cell.region), GraftMask.empty(cell.region)
    tuned = values_of(cell.load())
    rows = reader.model.encode(cell.rows["test"][:40])
    logits = {}
    for name, mask in (("graft", full), ("prune", full), ("reset", empty), ("graft", empty), ("reset", full)):
        values = read(cell, reader, name, mask)
        whole = (name, mask) in (("graft", full), ("prune", full), ("reset", empty))
        assert all(torch.equal(values[part], tuned[part]) for part in cell.region.shapes) == whole
        logits.setdefault(whole, []).append(predict(reader.model, rows))
    for found in logits.values():
        assert all(torch.equal(found[0], other) for other in found)
    assert not torch.equal(logits[True][0], logits[False][0]), "control"


def test_retraining_chooses_a_learning_rate_of_its_own_on_dev_and_sees_the_same_examples(make_cell):
    cell = make_cell("prompt")
    mask = random_mask(cell.region, 300, 5)
    again = retraining(cell, mask)
    record = again().record
    first, second = record["grid"]
    for point, rate in ((first, RATES[0]), (second, RATES[1])):
        assert (point["batch_size"], point["learning_rate"], point["steps"]) == (8, rate, 10)
    assert record["chosen"]["learning_rate"] == 1e-2 and first["dev_loss"] > second["dev_loss"]
    assert read_out("retrain", reader_of(cell), mask, again) == record
    assert read_out("graft", reader_of(cell), mask, again) == {}


def test_other_regions_and_unknown_names_are_refused(make_cell, triple):
    cell = make_cell("prompt")
    for name, region, said in (
        ("graft", triple[0], "another region"),
        ("crop", cell.region, "unknown read-out 'crop'"),
    ):
        mask = GraftMask.empty(region)
        with pytest.raises(ValueError, match=said):
            read_out(name, reader_of(cell), mask, retraining(cell, mask))
