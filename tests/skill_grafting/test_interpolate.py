"""The line between two models: exact at both ends, and still where the models don't differ."""

import pytest
import torch

from skill_grafting.grafting.apply import graft, wise_ft, wise_graft
from skill_grafting.grafting.mask import GraftMask
from tests.pico import random_mask, values_of

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
    return random_mask(triple[0], 25, 5)


@pytest.fixture
def wide(triple):
    """The two models in float64."""
    return [{name: values.double() for name, values in model.items()} for model in triple[1:]]


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
def test_outside_the_mask_every_bit_is_pretrained_and_inside_alpha_of_the_way_is_walked(triple, wide, mask, alpha):
    region, *models = triple
    found, before = map(region.flatten, (wise_graft(*models, mask, alpha), models[0]))
    inside = torch.zeros(region.size, dtype=torch.bool)
    inside[mask.region_indices()] = True
    assert torch.equal(found[~inside].view(torch.int32), before[~inside].view(torch.int32))
    assert bool((found[inside] != before[inside]).all()) == (alpha > 0), "control"
    start, end, here = map(region.flatten, (wide[0], graft(*wide, mask), wise_graft(*wide, mask, alpha)))
    assert torch.allclose(here - start, alpha * (end - start), rtol=1e-6, atol=1e-12)
    assert float((end - start).norm()) > 0.1, "control"


@pytest.mark.parametrize("alpha", ALPHAS)
def test_equal_values_stay_where_a_weighted_sum_would_round_them(alpha):
    values = torch.cat([torch.randn(1000, generator=torch.Generator().manual_seed(1)), torch.tensor([-0.0, 3e38])])
    assert same_bits(wise_ft({"w": values}, {"w": values.clone()}, alpha), {"w": values})
    if alpha in (0.1, 0.7, 0.9):
        assert not torch.equal((1 - alpha) * values + alpha * values, values), "control"


@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_full_mask_is_wise_ft_and_an_empty_one_a_single_point(triple, alpha):
    region, *models = triple
    assert close(wise_graft(*models, GraftMask.full(region), alpha), wise_ft(*models, alpha))
    assert same_bits(wise_graft(*models, GraftMask.empty(region), alpha), models[0])


def test_whole_numbers_are_copied_never_blended():
    before, after = {"ids": torch.tensor([0, 4])}, {"ids": torch.tensor([10, 5])}
    found = [wise_ft(before, after, alpha)["ids"].tolist() for alpha in (0.0, 0.3, 0.5, 1.0)]
    assert found == [[0, 4], [0, 4], [0, 4], [10, 5]]


def test_tied_weights_are_interpolated_once_and_stay_tied(make_cell):
    model, after = (make_cell("prompt").load(which) for which in ("pretrained", "finetuned"))
    name, before, after = "bert.embeddings.word_embeddings.weight", values_of(model), values_of(after)
    after[name] += 1.0
    model.put(wise_ft(before, after, 0.5))
    decoder, embeddings = model.model.get_output_embeddings().weight, model.model.get_input_embeddings().weight
    assert decoder is embeddings and torch.allclose(embeddings, before[name] + 0.5, atol=1e-6)


@pytest.mark.parametrize("alpha", [-0.1, 1.01, float("nan")])
def test_alpha_beyond_the_two_models_is_refused(triple, mask, alpha):
    for refused in (lambda: wise_ft(*triple[1:], alpha), lambda: wise_graft(*triple[1:], mask, alpha)):
        with pytest.raises(ValueError, match=r"alpha must be within 0\.\.1"):
            refused()
