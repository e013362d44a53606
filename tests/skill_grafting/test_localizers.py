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
from skill_grafting.grafting.apply import graft, values_at
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.mask_file import StoredMask, read_mask, write_mask
from skill_grafting.grafting.region import Region, Tensors
from skill_grafting.grafting.select import top_k
from skill_grafting.localizers.attribution import each_attribution
from skill_grafting.localizers.bias import biases
from skill_grafting.localizers.evidence import LocalizerInput
from skill_grafting.localizers.learned import Learning, MaskLogits, learn_mask
from skill_grafting.localizers.movement import movement, movement_mask, movement_order, order_within
from skill_grafting.localizers.names import NAMES
from skill_grafting.localizers.registry import Budget, find_mask, localizer_of
from skill_grafting.models.evidence import draws, evidence_about, from_tensors
from stages.workflow.core.cells import GraftCell
from tests.imports import closure
from tests.pico import localizer_settings, same

ROOT = Path(__file__).parents[2]
LOCALIZERS = {name: localizer_of(name) for name in NAMES}


def evidence_of(cell, seed: int = 0) -> LocalizerInput:
    opened = GraftCell.of(cell.load(), 0, ["layers"], cell.pretrained_folder)
    words = ("mask", "toy", seed)
    return evidence_about(opened.model, opened.region, opened.pretrained, opened.finetuned, cell.rows["train"], words)


def seeded(evidence: LocalizerInput, seed: int = 0) -> LocalizerInput:
    return replace(evidence, generator=draws("mask", "toy", seed))


def mask_of(name: str, evidence: LocalizerInput, k: int, **changes: Any) -> GraftMask:
    return find_mask(name, evidence, localizer_settings(name, **changes), Budget(k)).mask


def ranked(name: str, evidence: LocalizerInput, k: int) -> Tensor:
    return LOCALIZERS[name].rank(evidence, localizer_settings(name), k)


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

    def learn(self, base: GraftMask, settings: Learning, budget: Budget) -> GraftMask:
        start = MaskLogits.around(base, self.pretrained, self.finetuned, settings.offset)
        return learn_mask(self.weights, start, budget, settings, self.backward).mask

    def evidence(self, squares: Tensors | None = None) -> LocalizerInput:
        return LocalizerInput(
            self.region, self.pretrained, self.finetuned, self.weights, lambda _size: self.backward, self.backward,
            lambda *_: squares, np.random.default_rng(0),
        )  # fmt: skip


@pytest.fixture
def quadratic(triple):
    return Quadratic(*triple)


# --- The contract, for each of them ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_contract_on_a_real_model(make_cell, tmp_path, name):
    cell, localizer = make_cell("prompt"), LOCALIZERS[name]
    evidence = evidence_of(cell)
    masks = {k: mask_of(name, seeded(evidence), k) for k in (0, 1, 2, 300)}
    assert all(mask.region == cell.region and mask.selected <= k for k, mask in masks.items())
    assert name == "stitch" or all(mask.selected == k for k, mask in masks.items()), "exactly k"
    assert same(evidence.pretrained, cell.pretrained()) and same(evidence.finetuned, cell.finetuned())
    assert masks[300].equals(mask_of(name, evidence_of(cell), 300)), (
        "the same again, whatever state the weights are left in"
    )
    if name == "random":
        assert not masks[300].equals(mask_of(name, seeded(evidence, 1), 300)), "control: another seed draws others"
    write_mask(tmp_path / "mask", StoredMask(masks[300], values_at(evidence.finetuned, masks[300]), {}, {}))
    read = read_mask(tmp_path / "mask")
    assert read.mask.equals(masks[300]) and same(read.values, values_at(cell.finetuned(), masks[300]))
    if localizer.refine is None:
        small, large = (ranked(name, seeded(evidence), k).tolist() for k in (37, 300))
        assert small == large[:37] and len({*large}) == 300 and sorted(large) == masks[300].region_indices().tolist()
        assert large != sorted(large), "control: the order is not that of the region"
    if not localizer.needs_model:
        alone = from_tensors(cell.region, cell.pretrained(), cell.finetuned(), draws("mask", "toy", 0))
        assert mask_of(name, alone, 300).equals(masks[300]), "two sets of weights are enough"


@pytest.mark.parametrize("name", NAMES)
def test_the_whole_region_is_the_largest_mask(quadratic, name):
    region = quadratic.region
    evidence = quadratic.evidence(quadratic.curve)
    most = sum(values.numel() for n, values in evidence.pretrained.items() if n.endswith(".bias"))
    whole = mask_of(name, evidence, region.size).selected
    assert whole < region.size if name == "stitch" else whole == (most if name == "bias" else region.size)
    if name == "bias":
        assert 0 < most < region.size, "control: there are others than biases"


@pytest.mark.parametrize("name", NAMES)
def test_ties_are_broken_by_region_index(name):
    region = Region({"z.bias": (6,), "a.weight": (2, 3)})
    zeros, ones = ({n: make(shape) for n, shape in region.shapes.items()} for make in (torch.zeros, torch.ones))
    toy = Quadratic(region, zeros, ones)
    toy.target = toy.curve = ones
    first = mask_of(name, toy.evidence(toy.curve), 4).region_indices().tolist()
    # nothing crosses the threshold of stitch
    expected = [] if name == "stitch" else [0, 1, 2, 3]
    assert (first == expected) == (name != "random"), "control: that one has no ties"


@pytest.mark.parametrize("name", NAMES)
def test_what_needs_no_model_gets_none(triple, name):
    region, pretrained, finetuned = triple
    evidence, localizer = from_tensors(region, pretrained, finetuned, np.random.default_rng(0)), LOCALIZERS[name]
    if not localizer.rank_needs_model:
        assert len(ranked(name, evidence, 9)) == 9
    if localizer.rank_needs_model or localizer.refine:
        with pytest.raises(RuntimeError, match="has no model to take gradients of"):
            (ranked if localizer.rank_needs_model else mask_of)(name, evidence, 9)


def test_a_localizer_of_ones_own_is_one_file(make_cell, monkeypatch, tmp_path):
    """The example of the documentation, as it is printed there."""
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]
    code = re.search(r'^```python\n(""".*?^LOCALIZER = .*?)^```$', "\n".join(pages), re.MULTILINE | re.DOTALL)[1]
    assert len(code.splitlines()) < 40
    (tmp_path / "relative.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr(localizers, "__path__", [*localizers.__path__, str(tmp_path)])
    evidence = evidence_of(make_cell("prompt"))
    mask = mask_of("relative", evidence, 120)
    assert mask.selected == 120 and not mask.equals(mask_of("movement", evidence, 120))


def test_a_localizer_is_imported_only_when_it_is_asked_for():
    folder = Path("stages/skill_grafting/localizers")
    known = {folder / f"{name}.py" for name in NAMES}
    assert closure(folder / "registry.py") & known == set()
    assert {path.stem for path in closure(folder / "stitch.py") & known} == {"stitch", "learned", "movement"}


# --- Each one's own definition ---------------------------------------------------------------------------------


def test_baselines_are_what_they_say(triple):
    region, pretrained, finetuned = triple
    evidence = from_tensors(region, pretrained, finetuned, np.random.default_rng(0))
    assert mask_of("movement", evidence, 20).equals(movement_mask(*triple[1:], triple[0], 20))
    squares = {name: values**2 for name, values in pretrained.items()}
    assert mask_of("magnitude", evidence, 20).equals(top_k(region, squares, 20))
    assert {*mask_of("bias", evidence, 5).indices} == {*biases(region)} == {"a.bias"}
    still = from_tensors(region, pretrained, pretrained, np.random.default_rng(0))
    assert {*mask_of("bias", still, 5).indices} == {"a.bias"}, "no other parameter, though none moved"
    alone = Region({"a.bias": (11,)})
    order = movement_order(pretrained, finetuned, alone, 5)
    assert torch.equal(mask_of("bias", evidence, 5).indices["a.bias"], order.sort().values)


def test_movement_orders_by_distance_either_way_and_ties_by_index():
    region = Region({"w": (2, 3), "b": (2,)})
    pretrained = {"w": torch.ones(2, 3), "b": torch.zeros(2)}
    finetuned = {"w": torch.tensor([[1.0, -1.0, 1.5], [3.0, 1.0, 1.0]]), "b": torch.tensor([-0.5, 7.0])}
    assert movement(pretrained, finetuned, region)["w"].tolist() == [[0, 2, 0.5], [2, 0, 0]]
    assert movement_order(pretrained, finetuned, region, 8).tolist() == [7, 1, 3, 2, 6, 0, 4, 5]


def test_a_movement_mask_holds_the_smaller_ones_and_their_order(triple):
    """Also where half of them moved by the same distance, so that their numbers decide."""
    region, pretrained, finetuned = triple
    pretrained = {name: values.round() for name, values in pretrained.items()}
    for name in region.shapes:
        finetuned[name] = torch.where(torch.randn(region.shapes[name]) > 0, finetuned[name], pretrained[name] + 1)
    order, mask = movement_order(pretrained, finetuned, region, 71), movement_mask(pretrained, finetuned, region, 40)
    assert sorted(order.tolist()) == [*range(region.size)]
    assert torch.equal(order_within(mask, pretrained, values_at(finetuned, mask)), order[:40])
    assert not torch.equal(order[:40], order[:40].sort().values), "control"
    assert movement_mask(pretrained, finetuned, region, 12).equals(GraftMask.from_region_indices(region, order[:12]))
    assert movement_mask(pretrained, finetuned, region, 0).selected == 0


def test_random_places_are_spread_over_the_region():
    region = Region({"small.weight": (100,), "large.weight": (900,)})
    zeros = {name: torch.zeros(shape) for name, shape in region.shapes.items()}
    drawn = (from_tensors(region, zeros, zeros, np.random.default_rng(seed)) for seed in range(200))
    counts = [len(mask_of("random", evidence, 100).indices.get("small.weight", [])) for evidence in drawn]
    # hypergeometric: mean 10, standard deviation 2.85, so 0.2 for the mean of 200
    assert abs(np.mean(counts) - 10) < 0.8 and np.std(counts) > 1.5


def test_more_examples_than_there_are_means_all(make_cell):
    cell = make_cell("prompt")
    evidence = evidence_of(cell)
    every, some, beyond = (evidence.squared_gradients(n) for n in (32, 12, 1000))
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
    found: dict[str, torch.Tensor] = {}
    each_attribution(q.evidence(), points, found.__setitem__)
    torch.testing.assert_close(found, analytic, rtol=1e-4, atol=1e-6)
    signed = mask_of("attribution", q.evidence(), 20, path_points=points)
    assert signed.equals(top_k(q.region, analytic, 20))
    either = mask_of("attribution", q.evidence(), 20, path_points=points, sign="magnitude")
    assert either.equals(top_k(q.region, {n: values.abs() for n, values in analytic.items()}, 20))
    assert not either.equals(signed), "control: some movement is harmful"


def test_grown_masks_add_what_the_graft_gains_most_from(quadratic):
    q, mask = quadratic, quadratic.moved_most(10)
    for size in (20, 30):
        gains = q.gains(mask)
        gains[mask.region_indices()] = torch.inf
        mask = GraftMask.from_region_indices(q.region, gains.topk(size).indices)
    grown = mask_of("grown", q.evidence(), 30)
    assert grown.equals(mask)
    assert {*q.moved_most(10).region_indices().tolist()} <= {*grown.region_indices().tolist()}
    assert not grown.equals(q.moved_most(30)), "control"


def test_the_graft_put_in_place_is_the_graft(quadratic):
    mask = mask_of("random", quadratic.evidence(), 25)
    quadratic.evidence().put_graft(mask)
    assert same(quadratic.weights, graft(quadratic.pretrained, quadratic.finetuned, mask))


@pytest.mark.parametrize("batch_size", [8, 128])
def test_other_batches_give_another_mask(make_cell, batch_size):
    cell = make_cell("prompt")
    k = cell.region.budget(0.05)
    masks = [mask_of("learned", evidence_of(cell, seed), k, batch_size=batch_size) for seed in (0, 1)]
    assert masks[0].equals(masks[1]) == (batch_size == 128), "control: other batches, another mask"


def test_stitching_as_its_authors_do_keeps_what_crosses_the_threshold(quadratic):
    q, k = quadratic, 60
    how = {"base_share": 0.1, "rate_kind": "absolute", "learning_rate": 5.0, "l1": 0.02, "offset": 1.0, "steps": 20}
    stitched = mask_of("stitch", q.evidence(), k, **how)
    base, settings = q.moved_most(q.region.budget(0.1)), localizer_settings("stitch", **how)
    assert stitched.equals(q.learn(base, settings, Budget(k, "threshold")))
    assert 0 < stitched.selected < k == mask_of("learned", q.evidence(), k, **how).selected, "control: no exact k"


def penalised(q: Quadratic, logits: dict[str, Tensor], l1: float) -> Tensor:
    total = torch.zeros(())
    for name, t in logits.items():
        w = q.pretrained[name] + t.sigmoid() * (q.finetuned[name] - q.pretrained[name])
        total = total + (q.curve[name] * (w - q.target[name]) ** 2).sum() / 2 + l1 * t.sigmoid().sum()
    return total


@pytest.mark.parametrize("l1", [0.0, 0.3])
def test_the_gradient_with_l1_is_autograds(quadratic, l1):
    q = quadratic
    logits = MaskLogits.around(q.moved_most(20), q.pretrained, q.finetuned, 1.5)
    logits.blend_into(q.weights)
    q.backward()
    leaves = {name: t.clone().requires_grad_() for name, t in logits.logits.items()}
    wanted = dict(zip(leaves, torch.autograd.grad(penalised(q, leaves, l1), list(leaves.values())), strict=True))
    ours = {name: logits.gradient(name, q.weights, l1) for name in q.weights}
    torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-6)
    if l1:
        without = {name: logits.gradient(name, q.weights) for name in q.weights}
        gap = max(float((ours[name] - without[name]).abs().max()) for name in ours)
        assert gap == pytest.approx(l1 * 0.1491, rel=1e-3), "sigmoid'(1.5), at every parameter"
    before = {name: t.clone() for name, t in logits.logits.items()}
    logits.step(q.weights, 2.0, l1)
    torch.testing.assert_close(logits.logits, {name: before[name] - 2.0 * wanted[name] for name in before})
