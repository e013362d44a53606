"""Every localizer keeps the contract, and finds what its own definition says."""

import re
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given as of_any
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor, nn

from skill_grafting import localizers
from skill_grafting.grafting.apply import graft, graft_into, values_at
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.region import Region, Tensors
from skill_grafting.grafting.select import top_k
from skill_grafting.localizers import localizer as module
from skill_grafting.localizers.first_order import attribution
from skill_grafting.localizers.localizer import NO_OBJECTIVE, Budget, LocalizerInput, Objective, find_masks
from skill_grafting.localizers.movement import movement_mask, order_within
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


def alone(region: Region, pretrained: Tensors, finetuned: Tensors, seed: int = 0) -> LocalizerInput:
    return NO_OBJECTIVE.between(region, pretrained, finetuned, np.random.default_rng(seed))


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

    def objective(self, **more: Any) -> Objective:
        return Objective(self.weights, lambda _size: self.backward, self.backward, lambda *_: self.curve, **more)

    def given(self) -> LocalizerInput:
        return self.objective().between(self.region, self.pretrained, self.finetuned, np.random.default_rng(0))


@pytest.fixture
def quadratic(triple):
    return Quadratic(*triple)


# --- The contract, for each of them ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_contract_on_a_real_model(make_cell, name):
    cell, localizer = make_cell("prompt"), localizer_settings(name)
    given = input_of(cell)
    masks = {k: mask_of(name, seeded(given), k) for k in (1, 2, 300)}
    assert all(mask.region == cell.region and mask.selected == k for k, mask in masks.items()), "exactly k"
    assert same(given.pretrained, cell.pretrained()) and same(given.finetuned, cell.finetuned())
    assert masks[300] == mask_of(name, input_of(cell), 300), "the same again, whatever state the weights are left in"
    assert (masks[300] == mask_of(name, seeded(given, 1), 300)) == (name not in ("random", "talos")), "control: another seed draws others"
    assert localizer.find(lambda: seeded(given), [Budget(2), Budget(300)]) == [masks[2], masks[300]]
    if (order := localizer.rank(seeded(given), 300)) is not None:
        small, large = localizer.rank(seeded(given), 37).tolist(), order.tolist()
        assert small == large[:37] and len({*large}) == 300 and large != sorted(large), "nested, in an order of its own"
    weights_alone = alone(cell.region, cell.pretrained(), cell.finetuned())
    weights_alone = replace(weights_alone, generator=draws("mask", "toy", 0))
    if localizer.needs_model:
        with pytest.raises((ParamsError, KeyError), match="has no model to take gradients of|encoder"):
            mask_of(name, weights_alone, 300)
    else:
        assert mask_of(name, weights_alone, 300) == masks[300]


@pytest.mark.parametrize("name", NAMES)
def test_the_whole_region_is_the_largest_mask(quadratic, name):
    most = sum(values.numel() for n, values in quadratic.pretrained.items() if n.endswith(".bias"))
    whole = mask_of(name, quadratic.given(), quadratic.region.size).selected
    assert 0 < most < whole == quadratic.region.size or (name, whole) == ("bias", most)


@pytest.mark.parametrize("name", NAMES)
def test_ties_are_broken_by_region_index(name):
    region = Region({"z.bias": (6,), "a.weight": (2, 3)})
    toy = Quadratic(region, *({n: make(shape) for n, shape in region.shapes.items()} for make in (torch.zeros, torch.ones)))
    toy.target = toy.curve = toy.finetuned
    first = mask_of(name, toy.given(), 4).region_indices().tolist()
    assert (first == [0, 1, 2, 3]) == (name != "random"), "control: that one has no ties"


BARS = {"learned": (7, "step"), "grown": (3, "step"), "talos": (4, "step"), "attribution": (3, "step"), "fish": (None, "pass"), "movement": (4, "tensor")}


@pytest.mark.parametrize("name", BARS)
def test_a_bar_has_an_end_where_it_is_known_and_reaches_it(quadratic, monkeypatch, name):
    bars = []

    @contextmanager
    def drawn(*seen: object):
        bars.append([*seen, 0])
        yield lambda: bars[-1].append(bars[-1].pop() + 1)

    monkeypatch.setattr(module, "watched", drawn)
    localizer, ends = localizer_of(name, {"steps": 7} if name == "learned" else {}), (quadratic.pretrained, quadratic.finetuned)
    objective = quadratic.objective(module=nn.Linear(1, 1)) if localizer.needs_model else NO_OBJECTIVE
    find_masks(localizer, objective, quadratic.region, ends, [Budget(5)], title="t")
    [(title, total, unit, watched, moved)] = bars
    assert (title, total or None, unit) == ("t", *BARS[name]) and moved == total and bool(watched) == (unit == "pass")


def test_a_localizer_of_ones_own_is_a_class_and_a_line_and_a_variant_of_it_a_line(make_cell, monkeypatch, tmp_path):
    """The example of the documentation, as it is printed there."""
    page = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    code = re.search(r'^```python\n("""Relative .*?)^```$', page, re.MULTILINE | re.DOTALL)[1]
    assert len(code.splitlines()) < 40
    (tmp_path / "relative.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr(localizers, "__path__", [*localizers.__path__, str(tmp_path)])
    monkeypatch.setitem(METHODS, *re.search(r'`"(relative)": "([\w.]+)"`', page).groups())
    given, budget = input_of(make_cell("prompt")), Budget(120)
    [name, line] = re.search(r"`(relative_\w+): (\{of: relative.*?\})`", page).groups()
    variant = localizer_of(name, dict(re.findall(r"(\w+): (\w+)", line)) | {"least": 0.01})
    masks = [one.find(lambda: given, [budget])[0] for one in (localizer_of("relative"), variant, localizer_of("movement"))]
    assert {mask.selected for mask in masks} == {120} and all(masks[a] != masks[b] for a, b in ((0, 1), (0, 2), (1, 2)))


def test_a_variant_is_a_localizer_with_other_settings_and_says_of_which():
    assert localizer_of("stitch", {"of": "learned", "steps": 7}) == localizer_of("learned", {"steps": 7})
    assert localizer_of("stitch", {"of": "learned"}) != localizer_of("learned", {"steps": 7}), "control"


@pytest.mark.parametrize(("name", "changes", "word"), [
    ("lerned", {}, "^at lerned: .*'learned'.*; a variant of one says `of`$"), ("mine", {"of": "lerned"}, "^at mine.of: .*'learned'"),
    ("mine", {"of": "mine"}, "^at mine.of: "), ("mine", {"of": "learned", "step": 1}, "^at mine.step: .*'steps'"),
    ("learned", {"of": "movement"}, "^at learned.of: "), ("learned", {"steps": -1, "offset": "x"}, "at learned.offset: .*; at learned.steps: "),
    ("my-own", {"of": "learned"}, "^at my-own: "),
])  # fmt: skip
def test_a_mistake_in_a_line_is_told_with_the_nearest_name(name, changes, word):
    with pytest.raises(ParamsError, match=word):
        localizer_of(name, changes, "at ")


def test_a_localizer_is_imported_only_when_it_is_asked_for():
    folder = Path("stages/skill_grafting/localizers")
    known = {folder / f"{place.partition('.')[0]}.py" for place in METHODS.values()}
    assert closure(folder / "registry.py") & known == set()
    assert {path.stem for path in closure(folder / "learned.py") & known} == {"learned", "movement"}
    assert [kind_of(name).name for name in METHODS] == [*METHODS] == sorted(METHODS)


# --- Each one's own definition ---------------------------------------------------------------------------------


@settings(deadline=None, derandomize=True, max_examples=50)
@of_any(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 10**6), st.integers(1, 4), st.floats(0, 1))
def test_masks_of_weights_alone_are_those_of_a_stable_sort(sizes, seed, levels, share):
    """Of a few values, so that many are equal: exactly k, nested, the lower index first, and few where few may be selected."""
    draw = np.random.default_rng(seed)
    region = Region({f"t{number}.{draw.choice(['bias', 'weight'])}": (size, 2) for number, size in enumerate(sizes)})
    before, after = ({name: torch.from_numpy(draw.integers(-levels, levels, shape)).float() for name, shape in region.shapes.items()} for _ in range(2))
    bias = region.flatten({name: torch.full(shape, name.endswith("bias")) for name, shape in region.shapes.items()})
    flat, moved = region.flatten(before), (region.flatten(after) - region.flatten(before)).abs()
    every, k = torch.ones(region.size, dtype=torch.bool), round(share * region.size)
    for name, scores, may in (("movement", moved, every), ("magnitude", flat.abs(), every), ("bias", moved, bias), ("lota", moved, moved > 0)):
        order = torch.sort(torch.where(may, scores, -1), descending=True, stable=True).indices[: min(k, int(may.sum()))]
        assert localizer_of(name).rank(alone(region, before, after), k).tolist() == order.tolist(), name
        mask = mask_of(name, alone(region, before, after), k)
        assert mask.region_indices().tolist() == sorted(order.tolist()), name
        if name == "movement":
            assert order_within(mask, before, values_at(after, mask)).tolist() == order.tolist()


def test_a_ticket_holds_a_zero_that_changed_its_sign():
    zeros, signs = {"x": torch.zeros(4)}, {"x": torch.tensor([0.0, -0.0, 1.0, 0.0])}
    assert mask_of("lota", alone(Region({"x": (4,)}), zeros, signs), 4).indices["x"].tolist() == [1, 2]


def test_random_places_are_spread_over_the_region():
    region = Region({"small.weight": (100,), "large.weight": (900,)})
    zeros = {name: torch.zeros(shape) for name, shape in region.shapes.items()}
    masks = (mask_of("random", alone(region, zeros, zeros, seed), 100) for seed in range(200))
    counts = [len(mask.indices.get("small.weight", [])) for mask in masks]
    # hypergeometric: mean 10, standard deviation 2.85, so 0.2 for the mean of 200
    assert abs(np.mean(counts) - 10) < 0.8 and np.std(counts) > 1.5


def test_more_examples_than_there_are_means_all(make_cell):
    given = input_of(make_cell("prompt"))
    every, some, beyond = (given.squared_gradients(n) for n in (32, 12, 1000))
    assert same(every, beyond)
    assert all(bool((some[name] <= every[name] * (1 + 1e-4) + 1e-12).all()) for name in every), "a part of the same sum"
    assert any(bool((some[name] < 0.9 * every[name]).any()) for name in every), "control: but only a part"


def test_attribution_of_a_quadratic_loss_is_the_analytic_one(quadratic):
    q, points = quadratic, [0.0, 0.1, 0.3]
    analytic = {}
    for n, before in q.pretrained.items():
        delta = q.finetuned[n] - before
        analytic[n] = -q.curve[n] * (len(points) * (before - q.target[n]) + sum(points) * delta) * delta
    torch.testing.assert_close(attribution(q.given(), points), analytic, rtol=1e-4, atol=1e-6)
    signed, either = (mask_of("attribution", q.given(), 20, path_points=points, sign=sign) for sign in ("signed", "magnitude"))
    assert signed == top_k(q.region, analytic, 20) != either, "control: some movement is harmful"
    assert either == top_k(q.region, {n: values.abs() for n, values in analytic.items()}, 20)


def test_grown_masks_add_what_the_graft_gains_most_from(quadratic):
    q, first, most = quadratic, *(movement_mask(quadratic.pretrained, quadratic.finetuned, quadratic.region, k) for k in (10, 30))
    mask = first
    for size in (20, 30):
        gains = q.gains(mask)
        gains[mask.region_indices()] = torch.inf
        mask = GraftMask.from_region_indices(q.region, gains.topk(size).indices)
    assert mask_of("grown", q.given(), 30) == mask != most and (first - mask).selected == 0, "control: not those that moved most"


def test_the_graft_put_in_place_is_the_graft(quadratic):
    mask = mask_of("random", quadratic.given(), 25)
    graft_into(quadratic.weights, quadratic.pretrained, quadratic.finetuned, mask)
    assert same(quadratic.weights, graft(quadratic.pretrained, quadratic.finetuned, mask))


def test_other_batches_give_another_mask(make_cell):
    cell = make_cell("prompt")
    given, k = [input_of(cell, seed) for seed in (0, 1)], cell.region.budget(0.05)
    for size, equal in ((8, False), (128, True)):  # control: other batches, another mask
        assert (mask_of("learned", given[0], k, batch_size=size) == mask_of("learned", given[1], k, batch_size=size)) == equal
