"""Every localizer keeps the contract, and finds what its own definition says."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from skill_grafting import localizers
from skill_grafting.grafting.apply import graft, graft_into, values_at
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.mask_files import StoredMask, read_mask, write_mask
from skill_grafting.grafting.region import Region, Tensors
from skill_grafting.grafting.select import top_k
from skill_grafting.localizers.attribution import attribution
from skill_grafting.localizers.baselines import biases
from skill_grafting.localizers.localizer import NO_OBJECTIVE, Budget, LocalizerInput, Objective
from skill_grafting.localizers.movement import movement, movement_mask, movement_order, order_within
from skill_grafting.localizers.registry import METHODS, NAMES, kind_of, localizer_of
from skill_grafting.support.errors import ParamsError
from stages.text.models.objective import draws, objective_of
from stages.workflow.cells.cells import GraftCell
from tests.imports import closure
from tests.pico import localizer_settings, same

ROOT = Path(__file__).parents[2]


def input_of(cell, seed: int = 0) -> LocalizerInput:
    opened = GraftCell.of(cell.load(), 0, ["layers"], cell.pretrained_folder)
    words = ("mask", "toy", seed)
    objective = objective_of(opened.model, opened.region.shapes, cell.rows["train"], words=words)
    return objective.between(opened.region, opened.pretrained, opened.finetuned, draws(*words))


def seeded(given: LocalizerInput, seed: int = 0) -> LocalizerInput:
    return replace(given, generator=draws("mask", "toy", seed))


def mask_of(name: str, given: LocalizerInput, k: int, **changes: Any) -> GraftMask:
    return localizer_settings(name, **changes).find(lambda: given, [Budget(k)])[0]


class Quadratic:
    """The loss 1/2 * sum h (w - c)^2 over a region, whose every integral is known."""

    def __init__(self, region: Region, pretrained: Tensors, finetuned: Tensors) -> None:
        generator = torch.Generator().manual_seed(3)
        self.region, self.pretrained, self.finetuned = region, pretrained, finetuned
        self.target = {name: torch.randn(shape, generator=generator) for name, shape in region.shapes.items()}
        self.curve = {name: torch.rand(shape, generator=generator) + 0.5 for name, shape in region.shapes.items()}
        self.weights = {name: values.clone() for name, values in pretrained.items()}

    def gradient_at(self, values: Tensors) -> dict[str, Tensor]:
        return {name: self.curve[name] * (values[name] - self.target[name]) for name in values}

    def loss(self, values: Tensors) -> float:
        return sum(float((self.curve[n] * (values[n] - self.target[n]) ** 2).sum()) / 2 for n in values)

    def backward(self) -> Tensor:
        for name, gradient in self.gradient_at(self.weights).items():
            self.weights[name].grad = gradient
        return torch.tensor(self.loss(self.weights))

    def gains(self, mask: GraftMask) -> Tensor:
        """The loss saved by moving each parameter at the graft of a mask, to first order; by region index."""
        gradients = self.gradient_at(graft(self.pretrained, self.finetuned, mask))
        return self.region.flatten({n: -g * (self.finetuned[n] - self.pretrained[n]) for n, g in gradients.items()})

    def moved_most(self, k: int) -> GraftMask:
        return movement_mask(self.pretrained, self.finetuned, self.region, k)

    def given(self, squares: Tensors | None = None) -> LocalizerInput:
        objective = Objective(self.weights, lambda _size: self.backward, self.backward, lambda *_: squares)
        return objective.between(self.region, self.pretrained, self.finetuned, np.random.default_rng(0))


@pytest.fixture
def quadratic(triple):
    return Quadratic(*triple)


# --- The contract, for each of them ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_contract_on_a_real_model(make_cell, tmp_path, name):
    cell, localizer = make_cell("prompt"), localizer_settings(name)
    given = input_of(cell)
    masks = {k: mask_of(name, seeded(given), k) for k in (1, 2, 300)}
    assert all(mask.region == cell.region and mask.selected == k for k, mask in masks.items()), "exactly k"
    assert same(given.pretrained, cell.pretrained()) and same(given.finetuned, cell.finetuned())
    again = mask_of(name, input_of(cell), 300)
    assert masks[300].equals(again), "the same again, whatever state the weights are left in"
    if name == "random":
        assert not masks[300].equals(mask_of(name, seeded(given, 1), 300)), "control: another seed draws others"
    write_mask(tmp_path / "mask", StoredMask(masks[300], values_at(given.finetuned, masks[300]), {}, {}))
    read = read_mask(tmp_path / "mask")
    assert read.mask.equals(masks[300]) and same(read.values, values_at(cell.finetuned(), masks[300]))
    together = localizer.find(lambda: seeded(given), [Budget(2), Budget(300)])
    assert [found.equals(masks[k]) for found, k in zip(together, (2, 300), strict=True)] == [True] * 2
    order = localizer.rank(seeded(given), 300)
    if order is not None:
        small, large = localizer.rank(seeded(given), 37).tolist(), order.tolist()
        assert small == large[:37] and len({*large}) == 300, "nested"
        assert large != sorted(large), "control: the order is not that of the region"


@pytest.mark.parametrize("name", NAMES)
def test_what_needs_no_model_gets_none(make_cell, name):
    cell = make_cell("prompt")
    alone = NO_OBJECTIVE.between(cell.region, cell.pretrained(), cell.finetuned(), draws("mask", "toy", 0))
    if localizer_of(name).needs_model:
        with pytest.raises((ParamsError, KeyError), match="has no model to take gradients of|encoder"):
            mask_of(name, alone, 300)
    else:
        assert mask_of(name, alone, 300).equals(mask_of(name, seeded(input_of(cell)), 300))


@pytest.mark.parametrize("name", NAMES)
def test_the_whole_region_is_the_largest_mask(quadratic, name):
    most = sum(values.numel() for n, values in quadratic.pretrained.items() if n.endswith(".bias"))
    whole = mask_of(name, quadratic.given(quadratic.curve), quadratic.region.size).selected
    assert 0 < most < whole == quadratic.region.size or (name, whole) == ("bias", most)


@pytest.mark.parametrize("name", NAMES)
def test_ties_are_broken_by_region_index(name):
    region = Region({"z.bias": (6,), "a.weight": (2, 3)})
    zeros, ones = ({n: make(shape) for n, shape in region.shapes.items()} for make in (torch.zeros, torch.ones))
    toy = Quadratic(region, zeros, ones)
    toy.target = toy.curve = ones
    first = mask_of(name, toy.given(toy.curve), 4).region_indices().tolist()
    assert (first == [0, 1, 2, 3]) == (name != "random"), "control: that one has no ties"


def test_a_localizer_of_ones_own_is_a_class_and_a_line_and_a_variant_of_it_a_line(make_cell, monkeypatch, tmp_path):
    """The example of the documentation, as it is printed there."""
    page = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    code = re.search(r'^```python\n("""Relative .*?)^```$', page, re.MULTILINE | re.DOTALL)[1]
    assert len(code.splitlines()) < 40
    (tmp_path / "relative.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr(localizers, "__path__", [*localizers.__path__, str(tmp_path)])
    [name, place] = re.search(r'`"(relative)": "([\w.]+)"`', page).groups()
    monkeypatch.setitem(METHODS, name, place)
    given, budget = input_of(make_cell("prompt")), Budget(120)
    [name, line] = re.search(r"`(relative_\w+): (\{of: relative.*?\})`", page).groups()
    variant = localizer_of(name, dict(re.findall(r"(\w+): (\w+)", line)) | {"least": 0.01})
    masks = [one.find(lambda: given, [budget])[0] for one in (localizer_of("relative"), variant, localizer_of("movement"))]
    assert {mask.selected for mask in masks} == {120}
    assert not any(masks[a].equals(masks[b]) for a, b in ((0, 1), (0, 2), (1, 2)))


def test_a_variant_is_a_localizer_with_other_settings_and_says_of_which():
    assert localizer_of("stitch", {"of": "learned", "steps": 7}) == localizer_of("learned", {"steps": 7})
    assert localizer_of("stitch", {"of": "learned"}) != localizer_of("learned", {"steps": 7}), "control"


@pytest.mark.parametrize(("name", "changes", "message"), [
    ("lerned", {}, "^at lerned: unknown localizer \\(did you mean 'learned'\\?\\); known: attribution, .*; a variant of one says `of`$"),
    ("mine", {"of": "lerned"}, "^at mine.of: unknown localizer 'lerned' \\(did you mean 'learned'\\?\\); known: "),
    ("mine", {"of": "mine"}, "^at mine.of: unknown localizer 'mine'"),
    ("mine", {"of": "learned", "step": 1}, "^at mine.step: unknown setting \\(did you mean 'steps'\\?\\); known: base_share, "),
    ("learned", {"of": "movement"}, "^at learned.of: unknown setting"),
    ("learned", {"steps": -1, "offset": "x"}, "at learned.offset: .*; at learned.steps: "),
    ("my-own", {"of": "learned"}, "^at my-own: should be a name of a-z, 0-9 and _"),
])  # fmt: skip
def test_a_mistake_in_a_line_is_told_with_the_nearest_name(name, changes, message):
    with pytest.raises(ParamsError, match=message):
        localizer_of(name, changes, "at ")


def test_a_localizer_is_imported_only_when_it_is_asked_for():
    folder = Path("stages/skill_grafting/localizers")
    known = {folder / f"{place.partition('.')[0]}.py" for place in METHODS.values()}
    assert closure(folder / "registry.py") & known == set()
    assert {path.stem for path in closure(folder / "learned.py") & known} == {"learned", "movement"}
    assert [kind_of(name).name for name in METHODS] == [*METHODS] == sorted(METHODS)


# --- Each one's own definition ---------------------------------------------------------------------------------


def test_baselines_are_what_they_say(triple):
    region, pretrained, finetuned = triple
    given = NO_OBJECTIVE.between(region, pretrained, finetuned, np.random.default_rng(0))
    assert mask_of("movement", given, 20).equals(movement_mask(*triple[1:], triple[0], 20))
    squares = {name: values**2 for name, values in pretrained.items()}
    assert mask_of("magnitude", given, 20).equals(top_k(region, squares, 20))
    assert {*mask_of("bias", given, 5).indices} == {*biases(region)} == {"a.bias"}
    still = NO_OBJECTIVE.between(region, pretrained, pretrained, np.random.default_rng(0))
    assert {*mask_of("bias", still, 5).indices} == {"a.bias"}, "no other parameter, though none moved"
    alone = Region({"a.bias": (11,)})
    order = movement_order(pretrained, finetuned, alone, 5)
    assert torch.equal(mask_of("bias", given, 5).indices["a.bias"], order.sort().values)


def test_movement_orders_by_distance_either_way_and_ties_by_index():
    region = Region({"w": (2, 3), "b": (2,)})
    pretrained = {"w": torch.ones(2, 3), "b": torch.zeros(2)}
    finetuned = {"w": torch.tensor([[1.0, -1.0, 1.5], [3.0, 1.0, 1.0]]), "b": torch.tensor([-0.5, 7.0])}
    assert movement(pretrained, finetuned, region)["w"].tolist() == [[0, 2, 0.5], [2, 0, 0]]
    assert movement_order(pretrained, finetuned, region, 8).tolist() == [7, 1, 3, 2, 6, 0, 4, 5]


def test_a_movement_mask_holds_the_smaller_ones_and_their_order(triple):
    """Many moved by the same distance, so that their numbers decide."""
    region, pretrained, _ = triple
    pretrained = {name: values.round() for name, values in pretrained.items()}
    generator = torch.Generator().manual_seed(0)
    finetuned = {
        name: values + torch.randint(4, values.shape, generator=generator) for name, values in pretrained.items()
    }
    order, mask = movement_order(pretrained, finetuned, region, 71), movement_mask(pretrained, finetuned, region, 40)
    assert sorted(order.tolist()) == [*range(region.size)]
    assert torch.equal(order_within(mask, pretrained, values_at(finetuned, mask)), order[:40])
    assert not torch.equal(order[:40], order[:40].sort().values), "control"
    assert movement_mask(pretrained, finetuned, region, 12).equals(GraftMask.from_region_indices(region, order[:12]))
    assert movement_mask(pretrained, finetuned, region, 0).selected == 0


def test_random_places_are_spread_over_the_region():
    region = Region({"small.weight": (100,), "large.weight": (900,)})
    zeros = {name: torch.zeros(shape) for name, shape in region.shapes.items()}
    drawn = (NO_OBJECTIVE.between(region, zeros, zeros, np.random.default_rng(seed)) for seed in range(200))
    counts = [len(mask_of("random", given, 100).indices.get("small.weight", [])) for given in drawn]
    # hypergeometric: mean 10, standard deviation 2.85, so 0.2 for the mean of 200
    assert abs(np.mean(counts) - 10) < 0.8 and np.std(counts) > 1.5


def test_more_examples_than_there_are_means_all(make_cell):
    cell = make_cell("prompt")
    given = input_of(cell)
    every, some, beyond = (given.squared_gradients(n) for n in (32, 12, 1000))
    assert same(every, beyond)
    assert all(bool((some[name] <= every[name] * (1 + 1e-4) + 1e-12).all()) for name in every), "a part of the same sum"
    assert any(bool((some[name] < 0.9 * every[name]).any()) for name in every), "control: but only a part"


def test_attribution_of_a_quadratic_loss_is_the_analytic_one(quadratic):
    q, delta = quadratic, {n: quadratic.finetuned[n] - quadratic.pretrained[n] for n in quadratic.pretrained}
    points = [0.0, 0.1, 0.3]
    analytic = {
        n: -q.curve[n] * (len(points) * (q.pretrained[n] - q.target[n]) + sum(points) * delta[n]) * delta[n]
        for n in delta
    }
    torch.testing.assert_close(attribution(q.given(), points), analytic, rtol=1e-4, atol=1e-6)
    signed = mask_of("attribution", q.given(), 20, path_points=points)
    assert signed.equals(top_k(q.region, analytic, 20))
    either = mask_of("attribution", q.given(), 20, path_points=points, sign="magnitude")
    assert either.equals(top_k(q.region, {n: values.abs() for n, values in analytic.items()}, 20))
    assert not either.equals(signed), "control: some movement is harmful"


def test_grown_masks_add_what_the_graft_gains_most_from(quadratic):
    q, mask = quadratic, quadratic.moved_most(10)
    for size in (20, 30):
        gains = q.gains(mask)
        gains[mask.region_indices()] = torch.inf
        mask = GraftMask.from_region_indices(q.region, gains.topk(size).indices)
    grown = mask_of("grown", q.given(), 30)
    assert grown.equals(mask)
    assert {*q.moved_most(10).region_indices().tolist()} <= {*grown.region_indices().tolist()}
    assert not grown.equals(q.moved_most(30)), "control"


def test_the_graft_put_in_place_is_the_graft(quadratic):
    mask = mask_of("random", quadratic.given(), 25)
    graft_into(quadratic.weights, quadratic.pretrained, quadratic.finetuned, mask)
    assert same(quadratic.weights, graft(quadratic.pretrained, quadratic.finetuned, mask))


@pytest.mark.parametrize("batch_size", [8, 128])
def test_other_batches_give_another_mask(make_cell, batch_size):
    cell = make_cell("prompt")
    k = cell.region.budget(0.05)
    masks = [mask_of("learned", input_of(cell, seed), k, batch_size=batch_size) for seed in (0, 1)]
    assert masks[0].equals(masks[1]) == (batch_size == 128), "control: other batches, another mask"
