"""Mask learning is the paper's optimisation, on one array of logits."""

import math
from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from skill_grafting.grafting import select as numbered
from skill_grafting.grafting.apply import graft, transplant
from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.region import Region
from skill_grafting.localizers.learned import Learned, MaskLogits, Watched, learn_mask
from skill_grafting.localizers.localizer import Budget, LocalizerInput, Objective, find_masks
from skill_grafting.localizers.movement import movement_mask
from skill_grafting.localizers.registry import localizer_of
from skill_grafting.support.errors import TrainingError
from stages.text.models.objective import objective_of
from stages.text.models.predicting import dev_score, predict
from stages.text.scores.classification import accuracy, mcc
from stages.workflow.cells.cells import GraftCell
from tests.memory import PeakBytes
from tests.pico import TOY, localizer_settings, same

OFFSET = 1.0
ABSOLUTE = localizer_settings("learned", steps=20, learning_rate=100.0, rate_kind="absolute", offset=OFFSET)
RELATIVE = localizer_settings("learned", steps=10, learning_rate=1.0, offset=10.0)
SIGMOID = 1 / (1 + math.exp(10.0))  # of a logit before the first relative step


def changed(settings: Learned, **changes: Any) -> Learned:
    return settings.model_copy(update=changes)


class Small:
    """A small network between two sets of values, with its data and a base mask."""

    def __init__(self, dtype: torch.dtype = torch.float64, width: int = 8, base: int = 12) -> None:
        generator = torch.Generator().manual_seed(5)
        self.network = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3)).to(dtype)
        self.weights = dict(self.network.named_parameters())
        self.region = Region({name: tuple(weight.shape) for name, weight in self.weights.items()})
        before, moved = (
            {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in self.region.shapes.items()}
            for _ in range(2)
        )
        self.pretrained, self.finetuned = before, {name: before[name] + 0.5 * moved[name] for name in moved}
        self.inputs = torch.randn(24, 6, generator=generator).to(dtype)
        with torch.no_grad():
            self.labels = functional_call(self.network, self.finetuned, (self.inputs,)).argmax(1)
        self.base = self.moved_most(base)
        self.scale = 1.0

    def loss(self, values: dict[str, Tensor]) -> Tensor:
        """Training loss with these values in the network."""
        logits = functional_call(self.network, values, (self.inputs,))
        return self.scale * nn.functional.cross_entropy(logits, self.labels)

    def loss_gradient(self) -> Tensor:
        """The function that learn_mask asks for: the loss with the live weights, gradients left in `.grad`."""
        self.network.zero_grad(set_to_none=True)
        loss = self.loss(self.weights)
        loss.backward()
        return loss.detach()

    def moved_most(self, k: int) -> GraftMask:
        return movement_mask(self.pretrained, self.finetuned, self.region, k)

    def start(self, offset: float = OFFSET) -> MaskLogits:
        """T before the first step."""
        return MaskLogits.around(self.base, self.pretrained, self.finetuned, offset)

    def learn(self, settings: Learned, k: int = 30, scores: Callable | None = None) -> tuple[GraftMask, MaskLogits]:
        """The result and the final T."""
        logits, watched = self.start(settings.offset), Watched(scores, self.whole_loss, whole=True)
        return learn_mask(self.weights, logits, k, settings, self.loss_gradient, watched), logits

    def whole_loss(self) -> float:
        """Training loss with the live weights."""
        with torch.no_grad():
            return float(self.loss(self.weights))


def literal(small: Small, settings: Learned, sign: int = 1) -> dict[str, Tensor]:
    """Equations 2 to 4 as the paper prints them: S, autograd through gamma, plain gradient descent.

    `sign=-1` is the control: the base enters with the wrong sign.
    """
    base = {name: (logits > 0).double() for name, logits in small.start().logits.items()}
    s = {name: torch.full_like(small.pretrained[name], -settings.offset) for name in base}
    for _ in range(settings.steps):
        gammas, blended, moved = [], {}, {name: values.requires_grad_() for name, values in s.items()}
        for name, values in moved.items():
            inside = 1 - values.sigmoid() if sign > 0 else values.sigmoid()
            gamma = base[name] * inside + (1 - base[name]) * values.sigmoid()
            gammas.append(gamma.sum())
            blended[name] = small.pretrained[name].lerp(small.finetuned[name], gamma.to(values.dtype))
        loss = small.loss(blended) + settings.l1 * sum(gammas)
        gradients = torch.autograd.grad(loss, [*moved.values()])
        steps = zip(moved.items(), gradients, strict=True)
        s = {name: values.detach() - settings.learning_rate * gradient for (name, values), gradient in steps}
    return {name: torch.where(base[name] == 1, -values, values) for name, values in s.items()}


def distance(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    return max(float((left[name] - right[name]).abs().max()) for name in left)


@pytest.mark.parametrize(("dtype", "l1"), [(torch.float64, 0.0), (torch.float32, 0.0), (torch.float64, 0.001)])
def test_learning_is_the_papers_equations_2_to_4(dtype, l1):
    small, settings = Small(dtype), changed(ABSOLUTE, l1=l1)
    learned = small.learn(settings)[1].logits
    assert distance(learned, small.start().logits) > 1, "control: the logits went somewhere"
    assert distance(learned, literal(small, settings)) < 1e-5
    assert distance(learned, literal(small, settings, sign=-1)) > 1, "control: a wrong sign on the base"


def test_blending_ends_at_the_two_models():
    small = Small()
    for offset, values in ((50.0, small.finetuned), (-50.0, small.pretrained)):
        logits = MaskLogits.around(GraftMask.full(small.region), small.pretrained, small.finetuned, offset)
        logits.blend_into(small.weights)
        assert distance({name: weight.detach() for name, weight in small.weights.items()}, values) < 1e-12


def test_relative_rate_has_no_unit_of_the_loss():
    masks = {}
    for kind, settings in (("relative", RELATIVE), ("absolute", ABSOLUTE)):
        for scale in (1.0, 1000.0, 0.001):
            small = Small()
            small.scale = scale
            masks[kind, scale] = small.learn(settings)[0]
    assert all(masks["relative", scale].equals(masks["relative", 1.0]) for scale in (1000.0, 0.001))
    start = Small().learn(changed(RELATIVE, steps=0))[0]
    assert not masks["relative", 1.0].equals(start), "control: it learned something"
    assert not any(masks["absolute", scale].equals(masks["absolute", 1.0]) for scale in (1000.0, 0.001)), "control"


def first_rate(k: int, rises: Tensor, steps: int = 1) -> float:
    """Step size where the loss lifts the mask logits by these amounts."""
    small, slope = Small(base=0), SIGMOID * (1 - SIGMOID)
    for (name, weight), part in zip(small.weights.items(), rises.split(small.region.sizes), strict=True):
        weight.grad = -part.view_as(weight) / slope / (small.finetuned[name] - small.pretrained[name])
    return small.start(10.0).relative(small.weights, changed(RELATIVE, steps=steps), k)


def test_the_relative_rate_never_takes_the_smallest_rise_for_its_measure():
    rises = torch.full((Small().region.size,), -1e-8, dtype=torch.float64)
    rises[:6] = torch.tensor([4.0, 3.0, 2.0, 1.0, 1e-3, 1e-13], dtype=torch.float64) * 1e-8
    for steps in (1, 7):  # the parameter at the place of the budget is at the threshold after them
        assert first_rate(3, rises, steps) == pytest.approx(1 / 2e-8 / steps, rel=1e-6)
    assert first_rate(6, rises) == first_rate(40, rises) == pytest.approx(1 / 2e-8, rel=1e-6)
    old = 1 / float(rises[rises > 0].min())
    assert old > 1e5 * first_rate(40, rises), "control: the smallest that wants in"


def test_the_relative_rate_is_measured_at_the_first_step_alone():
    small, start = Small(), Small().start(RELATIVE.offset)
    start.blend_into(small.weights)
    small.loss_gradient()
    rate = start.relative(small.weights, RELATIVE, 30)
    fixed = changed(RELATIVE, rate_kind="absolute", learning_rate=rate)
    assert same(Small().learn(RELATIVE)[1].logits, Small().learn(fixed)[1].logits)


def test_relative_rate_stands_still_if_nothing_wants_in():
    small = Small(base=5)

    def indifferent() -> Tensor:
        for weight in small.weights.values():
            weight.grad = torch.zeros_like(weight)
        return torch.tensor(1.0)

    result = learn_mask(small.weights, small.start(), 5, RELATIVE, indifferent)
    assert result.equals(small.base)


def test_threshold_has_those_above_it_and_never_more_than_the_budget():
    small = Small()
    settings = changed(ABSOLUTE, rule="threshold")
    free, logits = small.learn(settings, small.region.size)
    above = (small.region.flatten(logits.logits) > 0).nonzero().reshape(-1)
    assert 0 < len(above) < small.region.size
    assert torch.equal(free.region_indices(), above)
    tight = small.learn(settings, len(above) - 3)[0]
    assert tight.selected == len(above) - 3
    assert {*tight.region_indices().tolist()} < {*above.tolist()}
    assert tight.record["crossed"] == free.record["crossed"] == len(above)


@pytest.mark.parametrize("base", [0, 12])
def test_without_steps_top_k_is_the_movement_mask_and_a_threshold_gives_the_base(base):
    small, none = Small(base=base), changed(RELATIVE, steps=0)
    for budget in (base, 25, 40):
        assert small.learn(none, budget)[0].equals(small.moved_most(budget))
    assert small.learn(changed(none, rule="threshold"), 30)[0].equals(small.base)
    assert not small.learn(RELATIVE, 25)[0].equals(small.moved_most(25)), "control"


def test_the_last_step_is_scored_whatever_eval_steps_is_and_the_start_never():
    left = iter([0.25, 0.5])
    settings = changed(ABSOLUTE, steps=4, select="authors", eval_steps=3)
    found = Small().learn(settings, scores=lambda: {"train_score": 0.25, "dev_score": next(left)})[0].record
    assert found["step"] == 4 and [entry["step"] for entry in found["history"] if "dev_score" in entry] == [3, 4]
    assert [entry["step"] for entry in found["history"] if "train_loss" in entry] == [0, 1, 2, 3]


def losses_of(record: dict[str, Any], name: str) -> list[float]:
    return [entry[name] for entry in record["history"] if name in entry]


def test_the_record_says_where_the_loss_on_all_rows_began_and_ended():
    small = Small()
    found, logits = small.learn(RELATIVE)
    logits.blend_into(small.weights)
    losses = losses_of(found.record, "train_loss")
    assert found.record["loss"] == [losses[0], losses_of(found.record, "whole_loss")[0]] == [losses[0], small.whole_loss()]
    assert losses[0] > losses[-1] > found.record["loss"][1], "it went down"
    uphill = changed(RELATIVE, rate_kind="absolute", learning_rate=-3.0)
    start, end = small.learn(uphill)[0].record["loss"]
    assert end > start, "control: a search that climbs ends above where it began"


@pytest.mark.parametrize(("steps", "every"), [(20, 5), (6, 2), (0, 1)])
def test_with_batches_of_some_rows_the_loss_on_all_is_measured_at_most_four_times_before_the_end(steps, every):
    small, masks = Small(), []
    for watched in (Watched(loss=small.whole_loss), Watched()):
        settings, logits = changed(RELATIVE, steps=steps, eval_steps=2), small.start(10.0)
        found = learn_mask(small.weights, logits, 30, settings, small.loss_gradient, watched)
        masks.append((found, logits.logits))
        at = [entry["step"] for entry in found.record["history"] if "whole_loss" in entry]
        assert at == ([*range(0, steps, every), steps] if watched.loss else [])
        assert ("loss" in found.record) == bool(watched.loss)
    assert masks[0][0].equals(masks[1][0]) and same(masks[0][1], masks[1][1]), "looking changes nothing"


def input_in(small: Small, **more: Any) -> LocalizerInput:
    """What a localizer asks of a model, with the small network."""
    objective = Objective(small.weights, lambda _size: small.loss_gradient, small.loss_gradient, lambda *_: {}, **more)
    return objective.between(small.region, small.pretrained, small.finetuned, np.random.default_rng(0))


@pytest.mark.parametrize("rule", ["top_k", "threshold"])
@pytest.mark.parametrize("wrong", [0, 3, 6])
def test_the_authors_rule_is_their_loop(rule, wrong):
    """`train_graft`: after every step the score of the rounded graft on train plus dev, kept if it is above all before."""
    small, settings = Small(), changed(ABSOLUTE, select="authors", eval_steps=1, base_share=12 / 30, rule=rule)
    generator = torch.Generator().manual_seed(wrong)
    dev = torch.randn(9, 6, generator=generator).double()
    answers = functional_call(small.network, small.finetuned, (dev,)).argmax(1).roll(wrong)

    def scores(values: dict[str, Tensor]) -> dict[str, float]:
        sets = {"train_score": (small.inputs, small.labels), "dev_score": (dev, answers)}
        return {
            name: float((functional_call(small.network, values, (x,)).argmax(1) == y).double().mean())
            for name, (x, y) in sets.items()
        }

    baseline, theirs, seen = 0.0, None, []
    for step in range(1, settings.steps + 1):
        flat = small.region.flatten(literal(small, changed(settings, steps=step)))
        chosen = flat.topk(30).indices
        mask = GraftMask.from_region_indices(small.region, chosen if rule == "top_k" else chosen[flat[chosen] > 0])
        seen.append(sum(scores(graft(small.pretrained, small.finetuned, mask)).values()))
        if seen[-1] > baseline:
            baseline, theirs = seen[-1], (step, mask)

    given = input_in(small, scores=lambda: scores({n: w.detach() for n, w in small.weights.items()}))
    [found] = settings.find(lambda: given, [Budget(30)])
    assert found.record["step"] == theirs[0] and found.equals(theirs[1])
    assert [
        sum(entry[name] for name in ("train_score", "dev_score")) for entry in found.record["history"] if "dev_score" in entry
    ] == seen
    [last] = changed(settings, select="last").find(lambda: given, [Budget(30)])
    assert last.record["step"] == settings.steps and not last.equals(found), "control"


@pytest.mark.parametrize("pulled", [1.0, 0.0])
def test_localize_and_stitch_is_their_loop(pulled):
    """`localize_utils.py: train_graft`: gradients of batches of 8 are summed, and l1 pulls each value to the nearer of 0 and 1."""
    small, rate, l1 = Small(), 40.0, 0.05
    mask = {name: logits.clone() for name, logits in small.start().logits.items()}
    begun = {name: values > 0 for name, values in mask.items()}
    for _ in range(10):
        total = {name: torch.zeros_like(values) for name, values in mask.items()}
        blended = {name: small.pretrained[name].lerp(small.finetuned[name], mask[name].sigmoid()) for name in mask}
        for first in range(0, 24, 8):
            rows, live = (
                slice(first, first + 8),
                {name: values.clone().requires_grad_() for name, values in blended.items()},
            )
            logits = functional_call(small.network, live, (small.inputs[rows],))
            nn.functional.cross_entropy(logits, small.labels[rows]).backward()
            for name, values in live.items():
                total[name] += rate * values.grad * (small.finetuned[name] - small.pretrained[name])
        for name, values in mask.items():
            derivative = values.sigmoid() * (1 - values.sigmoid())
            values -= total[name] * derivative - l1 * pulled * torch.where(values > 0, derivative, -derivative)
    settings = changed(ABSOLUTE, steps=10, rate_kind="summed", learning_rate=rate, l1=l1 / rate, l1_of="distances")
    learned = small.learn(settings.on_mean_loss(examples=24))[1].logits
    assert any(bool(((values > 0) != begun[name]).any()) for name, values in mask.items()), "control: some crossed"
    assert (distance(learned, mask) < 1e-6) == bool(pulled), "control: without l1 it isn't theirs"
    assert distance(small.learn(settings.on_mean_loss(examples=8))[1].logits, mask) > 0.1, "control: of one batch"


def test_the_last_mask_is_kept_without_a_score():
    def refuse() -> dict[str, float]:
        raise AssertionError("it was scored")

    assert Small().learn(ABSOLUTE, scores=refuse)[0].record["step"] == ABSOLUTE.steps
    with pytest.raises(AssertionError, match="it was scored"):
        Small().learn(changed(ABSOLUTE, select="authors"), scores=refuse)
    assert Small().learn(changed(ABSOLUTE, select="authors"))[0].record["step"] == ABSOLUTE.steps, (
        "no scores to choose by"
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_ends_learning(bad):
    small, losses = Small(), [1.0, bad, *[1.0] * 8, bad]

    def gradient() -> Tensor:
        small.loss_gradient()
        return torch.tensor(losses.pop(0))

    with pytest.raises(TrainingError, match=f"the loss became {bad} at step 1; lower the localizer's learning_rate"):
        learn_mask(small.weights, small.start(), 30, ABSOLUTE, gradient)
    assert losses == [bad], "losses of ten steps are read at once"


def peak_arrays(settings: Learned, copies: int = 0) -> float:
    """Most region-sized arrays that learning itself makes at once, temporary ones too; the two models not counted."""
    generator = torch.Generator().manual_seed(0)
    region = Region({f"layer.{number}": (100, 100) for number in range(8)})
    pretrained, finetuned, weights, gradients = (
        {name: torch.randn(shape, generator=generator) for name, shape in region.shapes.items()} for _ in range(4)
    )

    def gradient() -> Tensor:
        for name, weight in weights.items():
            weight.grad = gradients[name]
        return torch.tensor(1.0)

    with PeakBytes() as counter:
        extra = [values.clone() for values in [*pretrained.values()] * copies]
        logits = MaskLogits.around(GraftMask.empty(region), pretrained, finetuned, settings.offset)
        scores, k = lambda: {"train_score": 0.0, "dev_score": 0.0}, region.size // 100
        learn_mask(weights, logits, k, settings, counter.leaving_out(gradient), Watched(scores))
    assert len(extra) == copies * len(weights)
    return counter.peak / (4 * region.size)


def test_beside_both_models_learning_holds_one_array_and_temporary_ones_of_a_piece(monkeypatch):
    monkeypatch.setattr(numbered, "CACHED", 1000)
    settings = changed(RELATIVE, select="authors", eval_steps=1, steps=2)
    assert 1.0 < peak_arrays(settings) < 1.2
    assert peak_arrays(settings, copies=1) > 1.9, "control: an extra copy is noticed"


def opened_in(make_cell) -> tuple[Any, GraftCell]:
    cell = make_cell("prompt")
    return cell, GraftCell.of(cell.load(), 0, ["layers"], cell.pretrained_folder)


def test_learned_masks_beat_random_ones_of_equal_size(make_cell):
    cell, opened = opened_in(make_cell)
    test = opened.model.encode(cell.rows["test"])
    whole, budget = dev_score(cell.load(), test)[0], Budget.of(opened.region, 0.1, "graft.sparsity")
    loss = objective_of(opened.model, opened.region.shapes, cell.rows["train"])
    [mask] = find_masks(localizer_of("learned"), loss, opened.region, (opened.pretrained, opened.finetuned), [budget])
    assert mask.selected == opened.region.budget(0.1)
    opened.model.put(transplant(opened.pretrained, opened.values_at(mask), mask))
    assert dev_score(opened.model, test)[0] > 0.95 * whole > 0.9
    random = torch.randperm(mask.region.size, generator=torch.Generator().manual_seed(0))[: budget.k]
    opened.model.put(graft(opened.pretrained, opened.finetuned, GraftMask.from_region_indices(opened.region, random)))
    assert dev_score(opened.model, test)[0] < 0.7 * whole, "control: random places do not carry the skill"


def test_scores_are_of_train_and_dev_by_the_tasks_own_metric(make_cell):
    cell, opened = opened_in(make_cell)
    model, rows = copy(opened.model), {"train": cell.rows["train"][:7], "dev": cell.rows["dev"][:11]}
    model.task = model.task.model_copy(update={"metric": "mcc"})
    objective = objective_of(model, opened.region.shapes, *rows.values())
    model.put(opened.pretrained)
    found = objective.scores()
    for (split, part), (name, score) in zip(rows.items(), found.items(), strict=True):
        assert name == f"{split}_score"
        logits, labels = predict(model, model.encode(part)).numpy(), [TOY.labels.index(row["label"]) for row in part]
        assert score == mcc(logits, np.array(labels)) != accuracy(logits, np.array(labels)), "control"
