"""Gradients that are used and freed one tensor at a time are those of the whole, bit for bit."""

import pytest
import torch

from skill_grafting.grafting.region import portions
from skill_grafting.localizers.attribution import each_attribution
from skill_grafting.localizers.evidence import LocalizerInput
from skill_grafting.models.evidence import evidence_about, in_portions
from skill_grafting.models.predicting import loss_gradient, tensor_gradients
from stages.workflow.core.cells import GraftCell
from tests.pico import localizer_settings

# tokens of a batch: all rows in one, and several
BATCHES = {"one batch": 4096, "several batches": 64}


def evidence_of(cell, batch_tokens: int, most: int | None = None) -> LocalizerInput:
    opened = GraftCell.of(cell.load(batch_tokens=batch_tokens), 0, ["layers"], cell.pretrained_folder)
    parts = (opened.model, opened.region, opened.pretrained, opened.finetuned, cell.rows["train"], ("mask", "toy", 0))
    evidence = evidence_about(*parts)
    return in_portions(evidence, most) if most else evidence


@pytest.mark.parametrize("mode", ["prompt", "standard", "autoregressive"])
@pytest.mark.parametrize("tokens", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("most", [None, 2000])
def test_each_gradient_is_that_of_the_whole(make_cell, mode, tokens, most):
    model = make_cell(mode).load("pretrained", batch_tokens=tokens)
    model.model.register_parameter("unused", torch.nn.Parameter(torch.ones(3)))
    names = {*make_cell(mode).region.shapes, "unused"}
    examples = model.encode(make_cell(mode).rows["train"])
    weights = model.train_only(names)
    loss_gradient(model, examples)
    known = {name: weight.grad.clone() for name, weight in weights.items()}
    assert not known["unused"].any()
    found: dict[tuple[str, int], torch.Tensor] = {}
    take = lambda *part: found.update({part[:2]: part[2].clone()})  # noqa: E731
    tensor_gradients(model, examples, [lambda: None] * 2, take, most)
    assert {*found} == {(name, point) for name in names for point in (0, 1)}
    assert all(torch.equal(gradient, known[name]) for (name, _), gradient in found.items())
    assert all(weight.requires_grad and weight.grad is None for weight in weights.values())
    assert {name for name, weight in model.parameters().items() if weight.requires_grad} == names


@pytest.mark.parametrize("tokens", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("sign", ["signed", "magnitude"])
def test_attribution_is_what_it_was_with_a_sum_of_the_whole_region(make_cell, tokens, sign):
    evidence, settings = evidence_of(make_cell("prompt"), tokens, 2000), localizer_settings("attribution", sign=sign)
    scores = {name: torch.zeros_like(values) for name, values in evidence.pretrained.items()}
    for alpha in settings.path_points:
        evidence.put_between(alpha)
        evidence.full_gradient()
        for name, score in scores.items():
            score.sub_(evidence.weights[name].grad)
    for name, score in scores.items():
        score.mul_(evidence.finetuned[name] - evidence.pretrained[name])
    found: dict[str, torch.Tensor] = {}
    each_attribution(evidence, settings.path_points, found.__setitem__)
    assert all(torch.equal(found[name], scores[name]) for name in scores)
    wanted = {name: score.abs() for name, score in scores.items()} if sign == "magnitude" else scores
    order = settings.rank(evidence, 200)
    flat = evidence.region.flatten(wanted)
    assert order.tolist() == torch.sort(flat, descending=True, stable=True).indices[:200].tolist()


@pytest.mark.parametrize(("tokens", "most", "numbers"), [(4096, None, 0), (64, 2000, 2000), (64, None, 18_000)])
def test_gradients_are_freed_as_they_are_taken(make_cell, tokens, most, numbers):
    """Whenever one is taken the others that are alive are no more than were allowed; without a bound, as a control, all are."""
    model = make_cell("prompt").load("pretrained", batch_tokens=tokens)
    weights, alive = model.train_only({*make_cell("prompt").region.shapes}), []

    def take(*_: object) -> None:
        alive.append(sum(weight.numel() for weight in weights.values() if weight.grad is not None))

    tensor_gradients(model, model.encode(make_cell("prompt").rows["train"]), [lambda: None], take, most)
    assert len(alive) == len(weights) and max(alive) <= numbers and (max(alive) > 16_000) == (numbers == 18_000)


def test_portions_are_as_full_as_they_may_be():
    assert portions({"a": 3, "b": 4, "c": 9, "d": 1, "e": 2}, 7) == [["a", "b"], ["c"], ["d", "e"]]
    assert portions({"a": 3, "b": 4}, 100) == [["a", "b"]]
