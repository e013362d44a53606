"""The line between two models: exact at both ends, and still where the models don't differ."""

import pytest
import torch

from stages.lib.graft.apply import graft
from stages.lib.graft.interpolate import wise_ft, wise_graft
from stages.lib.graft.mask import GraftMask
from stages.lib.graft.region import Region
from stages.lib.models.predicting import predict

ALPHAS = [0.0, 0.1, 0.25, 0.5, 0.7, 0.9, 1.0]


def same_bits(left: dict, right: dict) -> bool:
    """Equal down to the sign of zero."""
    return left.keys() == right.keys() and all(
        torch.equal(left[name].contiguous().view(torch.int32), right[name].contiguous().view(torch.int32))
        for name in left
    )


def close(left: dict, right: dict) -> bool:
    return all(torch.allclose(left[name], right[name], rtol=0, atol=1e-7) for name in left)


@pytest.fixture
def mask(triple):
    chosen = torch.randperm(triple[0].size, generator=torch.Generator().manual_seed(5))[:25]
    return GraftMask.from_region_indices(triple[0], chosen)


def test_the_ends_are_the_two_models_bit_for_bit(triple, mask):
    _, pretrained, finetuned = triple
    # the ends of these would not survive arithmetic
    pretrained["d.scale"], finetuned["d.scale"] = torch.tensor([-0.0]), torch.tensor([1e-8])
    pretrained["a.bias"][0], finetuned["a.bias"][0] = 1e8, 1.25
    assert same_bits(wise_ft(pretrained, finetuned, 0.0), pretrained)
    assert same_bits(wise_ft(pretrained, finetuned, 1.0), finetuned)
    assert same_bits(wise_graft(pretrained, finetuned, mask, 0.0), pretrained)
    assert same_bits(wise_graft(pretrained, finetuned, mask, 1.0), graft(pretrained, finetuned, mask))
    assert not same_bits(wise_ft(pretrained, finetuned, 0.5), pretrained), "control"


@pytest.mark.parametrize("alpha", ALPHAS)
def test_outside_the_mask_every_bit_is_pretrained(triple, mask, alpha):
    region, pretrained, finetuned = triple
    found, before = (region.flatten(part) for part in (wise_graft(pretrained, finetuned, mask, alpha), pretrained))
    outside = torch.ones(region.size, dtype=torch.bool)
    outside[mask.region_indices()] = False
    assert torch.equal(found[outside].view(torch.int32), before[outside].view(torch.int32))
    assert bool((found[~outside] != before[~outside]).all()) == (alpha > 0), "control"


@pytest.mark.parametrize("alpha", ALPHAS)
def test_equal_values_stay_where_a_weighted_sum_would_round_them(alpha):
    values = torch.cat([torch.randn(1000, generator=torch.Generator().manual_seed(1)), torch.tensor([-0.0, 3e38])])
    assert same_bits(wise_ft({"w": values}, {"w": values.clone()}, alpha), {"w": values})
    if alpha in (0.1, 0.7, 0.9):
        assert not torch.equal((1 - alpha) * values + alpha * values, values), "control"


@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_full_mask_is_wise_ft_and_an_empty_one_a_single_point(triple, alpha):
    region, pretrained, finetuned = triple
    assert close(
        wise_graft(pretrained, finetuned, GraftMask.full(region), alpha), wise_ft(pretrained, finetuned, alpha)
    )
    assert same_bits(wise_graft(pretrained, finetuned, GraftMask.empty(region), alpha), pretrained)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_distance_walked_is_alpha_of_the_way(triple, mask, alpha):
    region, *models = triple
    pretrained, finetuned = ({name: values.double() for name, values in model.items()} for model in models)
    way = region.flatten(graft(pretrained, finetuned, mask)) - region.flatten(pretrained)
    walked = region.flatten(wise_graft(pretrained, finetuned, mask, alpha)) - region.flatten(pretrained)
    assert torch.allclose(walked, alpha * way, rtol=1e-6, atol=1e-12)
    assert float(walked.norm()) == pytest.approx(alpha * float(way.norm()), rel=1e-6)
    assert float(way.norm()) > 0.1, "control"


def test_half_of_the_way_twice_is_a_quarter(triple, mask):
    pretrained, finetuned = ({name: values.double() for name, values in model.items()} for model in triple[1:])
    half = wise_graft(pretrained, finetuned, mask, 0.5)
    assert close(wise_graft(pretrained, half, mask, 0.5), wise_graft(pretrained, finetuned, mask, 0.25))
    assert close(wise_ft(pretrained, wise_ft(pretrained, finetuned, 0.5), 0.5), wise_ft(pretrained, finetuned, 0.25))
    assert not close(half, wise_graft(pretrained, finetuned, mask, 0.25)), "control"


def test_whole_numbers_are_copied_never_blended():
    before, after = {"ids": torch.tensor([0, 4])}, {"ids": torch.tensor([10, 5])}
    found = [wise_ft(before, after, alpha)["ids"].tolist() for alpha in (0.0, 0.3, 0.5, 1.0)]
    assert found == [[0, 4], [0, 4], [0, 4], [10, 5]]


def test_tied_weights_are_interpolated_once_and_stay_tied(make_cell):
    cell = make_cell("prompt")
    before, after = (
        {name: weight.detach().clone() for name, weight in cell.load(which).parameters().items()}
        for which in ("pretrained", "finetuned")
    )
    name = "bert.embeddings.word_embeddings.weight"
    after[name] += 1.0
    model = cell.load("pretrained")
    model.put(wise_ft(before, after, 0.5))
    decoder, embeddings = model.model.get_output_embeddings().weight, model.model.get_input_embeddings().weight
    assert decoder is embeddings and torch.allclose(embeddings, before[name] + 0.5, atol=1e-6)


def test_both_ends_predict_like_the_two_models(make_cell):
    cell = make_cell("prompt")
    model = cell.load()
    examples = model.encode(cell.rows["test"][:40])
    expected = [predict(cell.load(which), examples) for which in ("pretrained", "finetuned")]
    found = []
    for alpha in (0.0, 1.0):
        model.put(wise_ft(cell.pretrained(), cell.finetuned(), alpha))
        found.append(predict(model, examples))
    assert all(torch.equal(left, right) for left, right in zip(found, expected, strict=True))
    assert not torch.equal(*found), "control"


def test_the_inputs_stay_and_share_no_memory(triple, mask):
    _, pretrained, finetuned = triple
    copies = [{name: values.clone() for name, values in model.items()} for model in (pretrained, finetuned)]
    for alpha in ALPHAS:
        for made in (wise_ft(pretrained, finetuned, alpha), wise_graft(pretrained, finetuned, mask, alpha)):
            for values in made.values():
                values.fill_(9)
    assert same_bits(pretrained, copies[0]) and same_bits(finetuned, copies[1])


@pytest.mark.parametrize("alpha", [-0.1, 1.01, float("nan")])
def test_alpha_beyond_the_two_models_is_refused(triple, alpha):
    with pytest.raises(ValueError, match=r"alpha must be within 0\.\.1"):
        wise_ft(triple[1], triple[2], alpha)
    with pytest.raises(ValueError, match=r"alpha must be within 0\.\.1"):
        wise_graft(triple[1], triple[2], GraftMask.empty(triple[0]), alpha)


def test_transposed_tensors_keep_their_logical_order():
    region = Region({"w": (3, 4)})
    before, after = {"w": torch.zeros(4, 3).t()}, {"w": torch.arange(12.0).reshape(4, 3).t()}
    found = wise_graft(before, after, GraftMask(region, {"w": torch.tensor([1, 5])}), 0.5)["w"]
    assert found[0, 1] == after["w"][0, 1] / 2 and found[1, 1] == after["w"][1, 1] / 2 and int((found != 0).sum()) == 2
