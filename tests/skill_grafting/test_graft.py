"""A graft takes exactly the selected values, and selection takes exactly k, the same ones every time."""

import pytest
import torch

from skill_grafting.grafting.apply import graft, transplant, values_at, wise_ft, wise_graft
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.readout import prune, reset
from skill_grafting.grafting.region import Region
from skill_grafting.grafting.select import kth_largest, ranking, top_k
from skill_grafting.models.label_model import reset_to_pretrained
from skill_grafting.models.predicting import predict
from tests.pico import same, values_of

KINDS = ["distinct", "heavy ties", "all equal", "infinite"]


def scores_of(region: Region, kind: str = "distinct") -> dict:
    flat = {
        "distinct": torch.randperm(region.size, generator=torch.Generator().manual_seed(3)).float(),
        "heavy ties": torch.randint(0, 3, (region.size,), generator=torch.Generator().manual_seed(4)).float(),
        "all equal": torch.ones(region.size),
        "infinite": torch.tensor([float("inf"), float("-inf")]).repeat(region.size)[: region.size],
    }[kind]
    parts = flat.split(region.sizes)
    return {name: part.reshape(shape) for (name, shape), part in zip(region.shapes.items(), parts, strict=True)}


def test_grafts_of_everything_and_of_nothing_are_the_two_models_bit_for_bit(triple):
    region, pretrained, finetuned = triple
    everything, nothing = (graft(pretrained, finetuned, end(region)) for end in (GraftMask.full, GraftMask.empty))
    assert same(everything, finetuned) and same(nothing, pretrained) and not same(everything, nothing)


def test_values_survive_that_a_difference_would_not_bring_back():
    pretrained, finetuned = {"w": torch.tensor([1e8, 1.0])}, {"w": torch.tensor([1.25, 1e-8])}
    assert pretrained["w"] + (finetuned["w"] - pretrained["w"]) != pytest.approx(finetuned["w"]), "control"
    assert same(graft(pretrained, finetuned, GraftMask.full(Region({"w": (2,)}))), finetuned)


@pytest.mark.parametrize("k", [1, 5, 30, 70])
def test_a_graft_differs_from_pretrained_at_the_selected_places_only(triple, k):
    region, pretrained, finetuned = triple
    mask = top_k(region, scores_of(region), k)
    once, values = graft(pretrained, finetuned, mask), values_at(finetuned, mask)
    grafted, before, after = map(region.flatten, (once, pretrained, finetuned))
    inside = torch.zeros(region.size, dtype=torch.bool)
    inside[mask.region_indices()] = True
    assert torch.equal(grafted[inside], after[inside]) and torch.equal(grafted[~inside], before[~inside])
    assert int((grafted != before).sum()) == k == sum(map(len, values.values()))
    assert same(graft(once, finetuned, mask), once), "grafting twice is grafting once"
    assert same(transplant(pretrained, values, mask), once), "from the stored values alone"


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


@pytest.mark.parametrize("kind", KINDS)
def test_the_k_highest_scores_are_selected_and_ties_go_to_the_lower_index(triple, kind):
    region = triple[0]
    scores = scores_of(region, kind)
    flat = region.flatten(scores).tolist()
    by_hand = sorted(range(region.size), key=lambda index: (-flat[index], index))
    for k in range(region.size + 1):
        assert top_k(region, scores, k).region_indices().tolist() == sorted(by_hand[:k])
        assert ranking(region, scores, k).tolist() == by_hand[:k]
        assert not k or kth_largest(region, scores, k) == flat[by_hand[k - 1]]
    assert top_k(region, scores, 18).sparsity == 18 / 71


def test_many_ties_of_a_large_tensor_go_to_the_lower_index():
    flat = torch.randint(0, 2, (30_000,), generator=torch.Generator().manual_seed(0)).float()
    found = top_k(Region({"w": (300, 100)}), {"w": flat.view(300, 100)}, 7_000).region_indices()
    assert torch.equal(found, flat.nonzero().reshape(-1)[:7_000]) and flat.sum() > 7_000


def test_tie_break_orders_equal_scores_only(triple):
    region = triple[0]
    scores = scores_of(region, "all equal")
    scores["a.bias"][4] = 2.0
    late_first = top_k(region, scores, 4, lambda name, indices: indices.double() + 1000 * (name == "c.weight"))
    assert {name: indices.tolist() for name, indices in late_first.indices.items()} == {
        "a.bias": [4], "c.weight": [21, 22, 23],
    }  # fmt: skip
    lower = top_k(region, scores, 4)
    assert lower.region_indices().tolist() == [0, 1, 2, 39], "control: without one the lower index wins"
    assert top_k(region, scores, 4, lambda _, indices: torch.zeros(len(indices))).equals(lower)
    two = top_k(Region({"w": (2,)}), {"w": torch.zeros(2)}, 1, lambda _, indices: indices.double())
    assert two.region_indices().tolist() == [1]


@pytest.mark.parametrize("place", [0, 40, 70])
@pytest.mark.parametrize("k", [1, 30, 71])
def test_nan_scores_are_refused(triple, place, k):
    region, scores = triple[0], scores_of(triple[0])
    top_k(region, scores, k)
    [(name, at)] = region.split(torch.tensor([place])).items()
    scores[name].view(-1)[at] = float("nan")
    for select in (top_k, ranking):
        with pytest.raises(ValueError, match="NaN"):
            select(region, scores, k)


@pytest.mark.parametrize("k", [-1, 72])
def test_k_outside_the_region_is_refused(triple, k):
    with pytest.raises(ValueError, match=r"k must be within 0\.\.71"):
        top_k(triple[0], scores_of(triple[0]), k)


def test_region_indices_count_through_the_tensors_in_order(triple):
    region, pretrained, _ = triple
    chosen = torch.randperm(region.size, generator=torch.Generator().manual_seed(1))[:33]
    assert torch.equal(GraftMask.from_region_indices(region, chosen).region_indices(), chosen.sort().values)
    assert GraftMask.full(region).region_indices().tolist() == [*range(region.size)]
    places = {"b.weight": (0, 34), "a.bias": (35, 45), "c.weight": (46, 69), "d.scale": (70,)}
    for tensor, indices in places.items():
        for index in indices:
            [(name, at)] = region.split(torch.tensor([index])).items()
            assert name == tensor and region.flatten(pretrained)[index] == pretrained[name].reshape(-1)[at]


def test_budget_is_the_floor_without_binary_rounding():
    region = Region({"w": (10, 10)})
    assert [region.budget(n / 100) for n in range(101)] == [*range(101)]
    assert [int(n / 100 * 100) for n in range(101)] != [*range(101)], "control: plain floor loses some"
    assert (region.budget(0.009), region.budget(0.999)) == (0, 99)


@pytest.mark.parametrize("indices", [[3, 2], [2, 2], [-1, 0], [0, 11]])
def test_masks_refuse_indices_that_are_unsorted_or_out_of_range(triple, indices):
    with pytest.raises(ValueError, match="must rise strictly within"):
        GraftMask(triple[0], {"a.bias": torch.tensor(indices)})
    assert GraftMask(triple[0], {"a.bias": torch.tensor([0, 10])}).selected == 2, "control"


def test_masks_refuse_what_lies_in_no_tensor_of_the_region(triple):
    for index in (-1, 71, 10_000):
        with pytest.raises(ValueError, match=r"within 0\.\.70"):
            GraftMask.from_region_indices(triple[0], torch.tensor([3, index]))
    with pytest.raises(ValueError, match="other is not in the region"):
        GraftMask(triple[0], {"other": torch.tensor([0])})


def test_fingerprint_tells_values_names_and_shapes_apart(triple):
    region, pretrained, _ = triple
    print_ = region.fingerprint(pretrained)
    changed = {name: values.clone() for name, values in pretrained.items()}
    assert region.fingerprint(changed) == print_
    changed["d.scale"][0] = torch.nextafter(changed["d.scale"][0], torch.tensor(9.0))
    reshaped = Region({**region.shapes, "b.weight": (5, 7)})
    assert region.fingerprint(changed) != print_ and reshaped.fingerprint(pretrained) != print_
    named = {f"other.{name}": values for name, values in pretrained.items()}
    renamed = Region({name: tuple(values.shape) for name, values in named.items()})
    assert renamed.fingerprint(named) != print_
    assert not GraftMask.empty(region).equals(GraftMask.empty(renamed)), "nor are masks of them equal"
