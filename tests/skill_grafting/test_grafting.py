"""A graft takes exactly the selected values; the line between two models is exact at both ends; selection takes exactly k."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skill_grafting.grafting import select as numbered
from skill_grafting.grafting.apply import graft, transplant, values_at
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.readout import prune, reset, wise_ft, wise_graft
from skill_grafting.grafting.region import LazyTensors, Region
from skill_grafting.grafting.select import Elementwise, NoNumberError, best, pieces, ranking, top_k
from stages.text.models.label_model import reset_to_pretrained
from stages.text.models.predicting import predict
from tests.memory import PeakBytes
from tests.pico import random_mask, same, values_of

ALPHAS = [0.0, 0.1, 0.25, 0.5, 0.7, 0.9, 1.0]


def same_bits(left: dict, right: dict) -> bool:
    """Equal down to the sign of zero."""
    return left.keys() == right.keys() and all(
        torch.equal(left[name].contiguous().view(torch.int32), right[name].contiguous().view(torch.int32))
        for name in left
    )


@pytest.fixture
def mask(triple):
    return random_mask(triple[0], 25, 5)


# --- Equation 1 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0, 1, 30, 71])
def test_a_graft_differs_from_pretrained_at_the_selected_places_only(triple, k):
    region, pretrained, finetuned = triple
    mask = random_mask(region, k, 5)
    once, values = graft(pretrained, finetuned, mask), values_at(finetuned, mask)
    grafted, before, after = map(region.flatten, (once, pretrained, finetuned))
    inside = torch.zeros(region.size, dtype=torch.bool)
    inside[mask.region_indices()] = True
    assert torch.equal(grafted[inside], after[inside]) and torch.equal(grafted[~inside], before[~inside])
    assert int((grafted != before).sum()) == k == sum(map(len, values.values()))
    assert same(graft(once, finetuned, mask), once), "grafting twice is grafting once"
    assert same(transplant(pretrained, values, mask), once), "from the stored values alone"
    assert k not in (0, 71) or same(once, finetuned if k else pretrained), "nothing and everything"


WAYS = {
    "graft": graft,
    "values": lambda _before, after, mask: values_at(after, mask),
    "WiSE-FT": lambda before, after, _mask: wise_ft(before, after, 0.5),
    "WiSE-graft": lambda before, after, mask: wise_graft(before, after, mask, 0.5),
    "reset": lambda before, after, mask: reset(after, before, mask),
    "prune": lambda _before, after, mask: prune(after, mask),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [GraftMask.empty, GraftMask.full])
def test_what_is_made_of_two_models_shares_no_memory_with_them(triple, way, make):
    region, *models = triple
    before = [{name: values.clone() for name, values in model.items()} for model in models]
    for tensor in WAYS[way](*models, make(region)).values():
        tensor.fill_(9)
    assert all(map(same, models, before))


def test_transposed_tensors_are_grafted_by_their_logical_order():
    before, after = {"w": torch.zeros(4, 3).t()}, {"w": torch.arange(12.0).reshape(4, 3).t()}
    mask = GraftMask(Region({"w": (3, 4)}), {"w": torch.tensor([1, 5])})
    for made, share in ((graft(before, after, mask), 1), (wise_graft(before, after, mask, 0.5), 0.5)):
        assert int((made["w"] != 0).sum()) == 2
        assert made["w"][0, 1] == share * after["w"][0, 1] and made["w"][1, 1] == share * after["w"][1, 1]


@pytest.mark.parametrize("mode", ["prompt", "standard", "autoregressive"])
def test_both_ends_of_grafting_hold_on_a_real_model(make_cell, mode):
    cell = make_cell(mode)
    model = cell.load("finetuned")
    examples = model.encode(cell.rows["test"][:40])
    whole, kept = predict(model, examples), values_of(model)
    pretrained = reset_to_pretrained(model, cell.anatomy, cell.pretrained_folder, cell.region.shapes)
    bare = predict(model, examples)
    assert not torch.equal(whole, bare), "control: fine-tuning did something"
    if mode == "prompt":  # which has no new head
        assert torch.equal(predict(cell.load("pretrained"), examples), bare), "as transformers loads it"
    model.put(graft(pretrained, cell.finetuned(), GraftMask.full(cell.region)))
    assert torch.equal(predict(model, examples), whole) and same(values_of(model), kept), "all ones"
    model.put(graft(pretrained, cell.finetuned(), GraftMask.empty(cell.region)))
    assert torch.equal(predict(model, examples), bare), "all zeros"


# --- The line between two models --------------------------------------------------------------------------------


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
    whole, line = map(region.flatten, (wise_graft(*models, GraftMask.full(region), alpha), wise_ft(*models, alpha)))
    assert torch.allclose(whole, line, rtol=0, atol=1e-7)
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


# --- Read-outs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0, 1, 20, 71])
def test_reset_is_the_graft_of_everything_else(triple, k):
    region, pretrained, finetuned = triple
    mask, outside = random_mask(region, k, 5), torch.ones(region.size, dtype=torch.bool)
    outside[mask.region_indices()] = False
    others = GraftMask.from_region_indices(region, outside.nonzero().reshape(-1))
    assert same(reset(finetuned, pretrained, mask), graft(pretrained, finetuned, others))
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


# --- Selection -------------------------------------------------------------------------------------------------

SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=6)
LEVELS = np.array([0.0, -0.0, 1.5, -np.inf, np.inf, 0.1, -2.0], dtype=np.float32)


DTYPES = st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16])


@settings(deadline=None, derandomize=True)
@given(SIZES, st.integers(1, len(LEVELS)), st.integers(0, 10**6), st.floats(0, 1), st.integers(1, 7), DTYPES, st.booleans())
def test_the_k_highest_are_selected_and_ties_go_to_the_lower_index(sizes, levels, seed, share, part, dtype, turned):
    """As in a stable sort of everything, whatever the pieces are that it goes through; so masks of growing k are nested."""
    region = Region({f"t{number}": (size, 2) for number, size in enumerate(sizes)})
    drawn = torch.from_numpy(np.random.default_rng(seed).choice(LEVELS[:levels], region.size)).to(dtype)
    parts = {
        name: values.view(-1, 2).T.contiguous().T if turned else values.view(-1, 2)
        for name, values in zip(region.shapes, drawn.split(region.sizes), strict=True)
    }
    k, order = round(share * region.size), torch.sort(drawn, descending=True, stable=True).indices
    whole, numbered.CACHED = numbered.CACHED, part
    try:
        for scores in (LazyTensors(region.shapes, parts.get), Elementwise(region.shapes, torch.maximum, parts, parts)):
            assert torch.equal(ranking(region, scores, k), order[:k])
            values, indices = best(region, scores, k)
            assert top_k(region, scores, k).region_indices().tolist() == sorted(order[:k].tolist()) == indices.tolist()
            assert torch.equal(values, drawn[indices]) if k else not len(values)
    finally:
        numbered.CACHED = whole


@pytest.mark.parametrize("turned", [False, True])
def test_pieces_are_of_the_same_places_and_the_tensors_themselves(turned, monkeypatch):
    monkeypatch.setattr(numbered, "CACHED", 3)
    left, right = (torch.arange(35.0).view(7, 5) * factor for factor in (1, 10))
    there = (left.T, right.T) if turned else (left, right)
    found = [*pieces(*there)]
    assert len(found) == 1 if turned else len(found) > 3
    assert all(torch.equal(10 * one, other) for one, other in found)
    for one, other in found:
        other.add_(one)
    assert torch.equal(right, 11 * left)


@settings(deadline=None, derandomize=True)
@given(SIZES, st.integers(0, 10**6), st.floats(0, 1))
def test_the_order_of_the_tensors_decides_between_equals_alone(sizes, seed, share):
    draw = np.random.default_rng(seed)
    region = Region({f"t{number}": (size, 2) for number, size in enumerate(sizes)})
    drawn = torch.from_numpy(draw.permutation(region.size)).split(region.sizes)
    scores = dict(zip(region.shapes, drawn, strict=True))
    turned = Region({name: region.shapes[name] for name in draw.permutation([*region.shapes]).tolist()})
    k = round(share * region.size)
    assert same(top_k(region, scores, k).indices, top_k(turned, scores, k).indices)


def test_control_another_rule_for_ties_is_another_selection():
    two = Region({"a": (2,), "b": (2,)}), Region({"b": (2,), "a": (2,)})
    found = [top_k(region, {"a": torch.zeros(2), "b": torch.zeros(2)}, 2).indices for region in two]
    assert not same(*found) and [*found[0]] == ["a"]


def test_it_holds_k_candidates_and_one_part(monkeypatch):
    monkeypatch.setattr(numbered, "CACHED", 1000)
    region = Region({f"t{number}": (4_000,) for number in range(8)})
    generator = torch.Generator().manual_seed(0)
    scores = LazyTensors(region.shapes, lambda _: torch.randint(0, 5, (4_000,), generator=generator).float())
    with PeakBytes() as counted:
        ranking(region, scores, 100)
    assert counted.peak < 5 * 4_000 * 4 < region.size * 4, "a tensor or two, never the region"


@pytest.mark.parametrize("place", [0, 40, 70])
@pytest.mark.parametrize("k", [1, 30, 71])
def test_nan_scores_are_refused(triple, place, k):
    region, scores, _ = triple
    top_k(region, scores, k)
    [(name, at)] = region.split(torch.tensor([place])).items()
    scores[name].view(-1)[at] = float("nan")
    with pytest.raises(NoNumberError, match="NaN"):
        top_k(region, scores, k)
