"""Arithmetic on many tensors at once, as on CUDA, gives the bits of one tensor after another."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from skill_grafting.grafting import apply, region
from skill_grafting.grafting.region import grouped, portions
from skill_grafting.localizers import learned
from skill_grafting.localizers.evidence import Scores
from skill_grafting.training import course
from skill_grafting.training.finetuning import finetune
from stages.continual import methods
from tests.pico import finetune_settings, same, values_of
from tests.skill_grafting.test_learned import ABSOLUTE, RELATIVE, Small, changed


def test_tensors_are_taken_together_on_cuda_alone(monkeypatch):
    monkeypatch.setattr(region, "TOGETHER", 10)
    sizes = {"a": 4, "b": 6, "c": 1, "large": 99, "d": 10}
    for device, groups in (
        ("cpu", [["a"], ["b"], ["c"], ["large"], ["d"]]),
        ("cuda", [["a", "b"], ["c"], ["large"], ["d"]]),
    ):
        tensors = {
            name: SimpleNamespace(device=torch.device(device), numel=lambda size=size: size)
            for name, size in sizes.items()
        }
        assert grouped(tensors) == groups


@pytest.fixture(params=[300, 2**24])
def both(request, monkeypatch):
    """What a function gives tensor by tensor, and with groups of at most so many numbers."""

    def together(tensors: dict[str, Tensor]) -> list[list[str]]:
        found = portions({name: tensor.numel() for name, tensor in tensors.items()}, request.param)
        assert len(found) < len(tensors), "control: some are taken together"
        return found

    def run(function):
        alone = function()
        with monkeypatch.context() as patch:
            for module in (apply, learned, course, methods):
                patch.setattr(module, "grouped", together)
            return alone, function()

    return run


@pytest.mark.parametrize("settings", [ABSOLUTE, RELATIVE, changed(RELATIVE, l1=0.5, select="authors", eval_steps=3)])
def test_mask_learning_and_the_graft_it_rates(both, settings):
    def learn() -> tuple:
        small, grafts = Small(torch.float32, width=40), []

        def scores() -> Scores:
            grafts.append({name: weight.detach().clone() for name, weight in small.weights.items()})
            return Scores(len(grafts) / 100, 0.0)

        found, logits = small.learn(settings, scores=scores)
        assert bool(grafts) == (settings.select == "authors")
        return logits.logits, found.mask.indices, found.history, grafts

    (logits, mask, history, grafts), (others, other, their_history, their_grafts) = both(learn)
    assert same(logits, others) and same(mask, other) and history == their_history
    assert all(same(*pair) for pair in zip(grafts, their_grafts, strict=True))


def test_the_pull_of_l1(both, make_cell):
    settings = finetune_settings(max_steps=5, l1=0.01)
    alone, together = both(lambda: values_of(finetune(make_cell("prompt").to_train(), settings).model))
    assert same(alone, together)


def test_the_pull_of_ewc(both):
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (5, 4), "b": (3,), "c": (7,), "d": (4, 4)}
    fisher, centre, weights = (
        {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()} for _ in range(3)
    )

    def pulled() -> dict[str, Tensor]:
        elastic = methods.Elastic()
        elastic.add({name: values.square() for name, values in fisher.items() if name != "b"}, centre)
        leaves = {name: weight.clone() for name, weight in weights.items()}
        elastic.pull(leaves, 2.0)
        return leaves

    alone, together = both(pulled)
    assert same(alone, together) and torch.equal(alone["b"], weights["b"])
    assert not torch.equal(alone["a"], weights["a"]), "control"
