"""A graft takes exactly the selected values, and selection takes exactly k, the same ones every time."""

from itertools import pairwise

import pytest
import torch

from stages.lib.graft.apply import graft, transplant, values_at
from stages.lib.graft.mask import GraftMask
from stages.lib.graft.region import Region
from stages.lib.graft.select import kth_largest, ranking, top_k
from stages.lib.models.label_model import reset_to_pretrained
from stages.lib.models.predicting import predict
from tests.pico import same


def scores_of(region: Region, kind: str) -> dict:
    flat = {
        "distinct": torch.randperm(region.size, generator=torch.Generator().manual_seed(3)).float(),
        "heavy ties": torch.randint(0, 3, (region.size,), generator=torch.Generator().manual_seed(4)).float(),
        "all equal": torch.ones(region.size),
        "infinite": torch.tensor([float("inf"), float("-inf")]).repeat(region.size)[: region.size],
    }[kind]
    parts = flat.split(region.sizes)
    return {name: part.reshape(shape) for (name, shape), part in zip(region.shapes.items(), parts, strict=True)}


KINDS = ["distinct", "heavy ties", "all equal", "infinite"]


# grafting


def test_graft_of_everything_is_the_finetuned_model_bit_for_bit(triple):
    region, pretrained, finetuned = triple
    assert same(graft(pretrained, finetuned, GraftMask.full(region)), finetuned)
    assert not same(graft(pretrained, finetuned, GraftMask.full(region)), pretrained)


def test_graft_of_nothing_is_the_pretrained_model_bit_for_bit(triple):
    region, pretrained, finetuned = triple
    assert same(graft(pretrained, finetuned, GraftMask.empty(region)), pretrained)
    assert not same(graft(pretrained, finetuned, GraftMask.empty(region)), finetuned)


def test_values_survive_that_a_difference_would_not_bring_back():
    region = Region({"w": (2,)})
    pretrained, finetuned = {"w": torch.tensor([1e8, 1.0])}, {"w": torch.tensor([1.25, 1e-8])}
    assert pretrained["w"] + (finetuned["w"] - pretrained["w"]) != pytest.approx(finetuned["w"]), "control"
    assert same(graft(pretrained, finetuned, GraftMask.full(region)), finetuned)


@pytest.mark.parametrize("k", [1, 5, 30, 70])
def test_graft_differs_from_pretrained_at_the_selected_places_only(triple, k):
    region, pretrained, finetuned = triple
    mask = top_k(region, scores_of(region, "distinct"), k)
    grafted, before, after = (
        region.flatten(tensors) for tensors in (graft(pretrained, finetuned, mask), pretrained, finetuned)
    )
    inside = torch.zeros(region.size, dtype=torch.bool)
    inside[mask.region_indices()] = True
    assert torch.equal(grafted[inside], after[inside]) and torch.equal(grafted[~inside], before[~inside])
    assert int((grafted != before).sum()) == k


def test_grafting_twice_is_grafting_once(triple):
    region, pretrained, finetuned = triple
    mask = top_k(region, scores_of(region, "distinct"), 20)
    once = graft(pretrained, finetuned, mask)
    assert same(graft(once, finetuned, mask), once)


def test_stored_values_alone_give_the_same_graft(triple):
    region, pretrained, finetuned = triple
    mask = top_k(region, scores_of(region, "distinct"), 20)
    values = values_at(finetuned, mask)
    assert same(transplant(pretrained, values, mask), graft(pretrained, finetuned, mask))
    assert sum(len(part) for part in values.values()) == 20


def test_grafting_leaves_its_inputs_and_shares_no_memory(triple):
    region, pretrained, finetuned = triple
    before = (
        {name: values.clone() for name, values in pretrained.items()},
        {name: values.clone() for name, values in finetuned.items()},
    )
    values = values_at(finetuned, GraftMask.full(region))
    for tensor in [*graft(pretrained, finetuned, GraftMask.empty(region)).values(), *values.values()]:
        tensor.fill_(9)
    assert same(pretrained, before[0]) and same(finetuned, before[1])


def test_transposed_tensors_are_grafted_by_their_logical_order():
    region = Region({"w": (3, 4)})
    pretrained, finetuned = {"w": torch.zeros(4, 3).t()}, {"w": torch.arange(12.0).reshape(4, 3).t()}
    grafted = graft(pretrained, finetuned, GraftMask(region, {"w": torch.tensor([1, 5])}))["w"]
    assert (
        grafted[0, 1] == finetuned["w"][0, 1]
        and grafted[1, 1] == finetuned["w"][1, 1]
        and int((grafted != 0).sum()) == 2
    )


@pytest.mark.parametrize("mode", ["prompt", "standard", "autoregressive"])
def test_both_ends_of_grafting_hold_on_a_real_model(make_cell, mode):
    cell = make_cell(mode)
    model = cell.load("finetuned")
    examples = model.encode(cell.rows["test"][:40])
    whole = predict(model, examples)
    kept = {name: tensor.detach().clone() for name, tensor in model.parameters().items()}
    pretrained = reset_to_pretrained(model, cell.anatomy, cell.pretrained_folder, cell.region.shapes)
    bare = predict(model, examples)
    assert not torch.equal(whole, bare), "control: fine-tuning did something"
    model.put(graft(pretrained, cell.finetuned(), GraftMask.full(cell.region)))
    assert torch.equal(predict(model, examples), whole), "all ones"
    assert same({name: tensor.detach() for name, tensor in model.parameters().items()}, kept)
    model.put(graft(pretrained, cell.finetuned(), GraftMask.empty(cell.region)))
    assert torch.equal(predict(model, examples), bare), "all zeros"


def test_all_zeros_is_the_pretrained_checkpoint_as_transformers_loads_it(make_cell):
    cell = make_cell("prompt")
    model, original = cell.load("finetuned"), cell.load("pretrained")
    model.put(graft(cell.pretrained(), cell.finetuned(), GraftMask.empty(cell.region)))
    examples = model.encode(cell.rows["test"][:40])
    assert torch.equal(predict(model, examples), predict(original, examples))


# selection


@pytest.mark.parametrize("kind", KINDS)
def test_exactly_k_for_every_k(triple, kind):
    region = triple[0]
    scores = scores_of(region, kind)
    assert [top_k(region, scores, k).selected for k in range(region.size + 1)] == [*range(region.size + 1)]


@pytest.mark.parametrize("kind", KINDS)
def test_masks_of_growing_k_are_nested(triple, kind):
    region = triple[0]
    scores = scores_of(region, kind)
    sets = [set(top_k(region, scores, k).region_indices().tolist()) for k in range(region.size + 1)]
    assert all(smaller < larger for smaller, larger in pairwise(sets))


@pytest.mark.parametrize("kind", KINDS)
def test_selected_scores_are_the_highest_and_ties_go_to_the_lower_index(triple, kind):
    region = triple[0]
    flat = region.flatten(scores_of(region, kind)).tolist()
    by_hand = sorted(range(region.size), key=lambda index: (-flat[index], index))
    for k in (1, 13, 36, region.size):
        assert top_k(region, scores_of(region, kind), k).region_indices().tolist() == sorted(by_hand[:k])
        assert ranking(region, scores_of(region, kind), k).tolist() == by_hand[:k]


def test_selection_repeats_itself_on_many_ties():
    region = Region({"w": (300, 100)})
    scores = {"w": torch.randint(0, 2, (300, 100), generator=torch.Generator().manual_seed(0)).float()}
    first = top_k(region, scores, 7_000)
    assert all(top_k(region, scores, 7_000).equals(first) for _ in range(5))
    assert not top_k(region, scores, 6_999).equals(first), "control"


def test_tie_break_orders_equal_scores_only(triple):
    region = triple[0]
    scores = scores_of(region, "all equal")
    scores["a.bias"][4] = 2.0
    late_first = top_k(region, scores, 4, lambda name, indices: indices.double() + 1000 * (name == "c.weight"))
    assert late_first.indices.keys() == {"a.bias", "c.weight"}
    assert late_first.indices["a.bias"].tolist() == [4] and late_first.indices["c.weight"].tolist() == [21, 22, 23]
    assert top_k(region, scores, 4).region_indices().tolist() == [0, 1, 2, 39], (
        "control: without one the lower index wins"
    )
    assert top_k(region, scores, 4, lambda _, indices: torch.zeros(len(indices))).equals(top_k(region, scores, 4))


@pytest.mark.parametrize("place", [0, 40, 70])
@pytest.mark.parametrize("k", [1, 30, 71])
def test_nan_scores_are_refused(triple, place, k):
    region = triple[0]
    scores = scores_of(region, "distinct")
    top_k(region, scores, k)
    flat = region.flatten(scores)
    flat[place] = float("nan")
    broken = {
        name: part.reshape(region.shapes[name])
        for name, part in zip(region.shapes, flat.split(region.sizes), strict=True)
    }
    with pytest.raises(ValueError, match="NaN"):
        top_k(region, broken, k)


@pytest.mark.parametrize("k", [-1, 72])
def test_k_outside_the_region_is_refused(triple, k):
    region = triple[0]
    with pytest.raises(ValueError, match=r"k must be within 0\.\.71"):
        top_k(region, scores_of(region, "distinct"), k)


@pytest.mark.parametrize("k", [1, 12, 71])
def test_kth_largest_is_that_of_a_full_sort(triple, k):
    region = triple[0]
    for kind in KINDS:
        scores = scores_of(region, kind)
        assert kth_largest(region, scores, k) == region.flatten(scores).sort(descending=True).values[k - 1]


# regions and masks


def test_split_and_region_indices_are_inverse(triple):
    region = triple[0]
    chosen = torch.randperm(region.size, generator=torch.Generator().manual_seed(1))[:33]
    assert torch.equal(GraftMask.from_region_indices(region, chosen).region_indices(), chosen.sort().values)
    assert region.split(torch.tensor([0, 34, 35, 45, 46, 70])).keys() == {"b.weight", "a.bias", "c.weight", "d.scale"}
    assert GraftMask.full(region).region_indices().tolist() == [*range(region.size)]


def test_flatten_reads_a_parameter_at_its_region_index(triple):
    region, pretrained, _ = triple
    for index in (0, 34, 35, 46, 69, 70):
        ((name, at),) = region.split(torch.tensor([index])).items()
        assert region.flatten(pretrained)[index] == pretrained[name].reshape(-1)[at]


@pytest.mark.parametrize(
    ("sparsity", "expected"), [(0.29, 29), (0.57, 57), (0.01, 1), (0.009, 0), (1.0, 100), (0.999, 99)]
)
def test_budget_is_the_floor_without_binary_rounding(sparsity, expected):
    assert Region({"w": (10, 10)}).budget(sparsity) == expected


def test_budget_of_every_whole_share_is_whole():
    region = Region({"w": (100,)})
    assert [region.budget(n / 100) for n in range(101)] == [*range(101)]
    assert [int(n / 100 * 100) for n in range(101)] != [*range(101)], "control: plain floor loses some"


@pytest.mark.parametrize("indices", [[3, 2], [2, 2], [-1, 0], [0, 11]])
def test_masks_refuse_indices_that_are_unsorted_or_out_of_range(triple, indices):
    with pytest.raises(ValueError, match="must rise strictly within"):
        GraftMask(triple[0], {"a.bias": torch.tensor(indices)})
    assert GraftMask(triple[0], {"a.bias": torch.tensor([0, 10])}).selected == 2, "control"


@pytest.mark.parametrize("index", [-1, 71, 10_000])
def test_region_indices_out_of_range_are_refused_not_dropped(triple, index):
    with pytest.raises(ValueError, match=r"within 0\.\.70"):
        GraftMask.from_region_indices(triple[0], torch.tensor([3, index]))


def test_masks_refuse_a_tensor_of_another_region(triple):
    with pytest.raises(ValueError, match="other is not in the region"):
        GraftMask(triple[0], {"other": torch.tensor([0])})


def test_sparsity_is_selected_over_graftable(triple):
    region = triple[0]
    assert top_k(region, scores_of(region, "distinct"), 18).sparsity == 18 / 71


def test_fingerprint_tells_values_names_and_shapes_apart(triple):
    region, pretrained, _ = triple
    print_ = region.fingerprint(pretrained)
    changed = {name: values.clone() for name, values in pretrained.items()}
    assert region.fingerprint(changed) == print_
    changed["d.scale"][0] = torch.nextafter(changed["d.scale"][0], torch.tensor(9.0))
    reshaped = Region({**region.shapes, "b.weight": (5, 7)})
    assert region.fingerprint(changed) != print_ and reshaped.fingerprint(pretrained) != print_
