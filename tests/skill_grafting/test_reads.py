"""Loops don't wait for the device: how often values are read from it doesn't grow with each step, batch or tensor."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from skill_grafting.grafting.region import Region
from skill_grafting.grafting.select import top_k
from skill_grafting.localizers.movement import movement_mask
from skill_grafting.localizers.registry import Budget, find_mask
from skill_grafting.models.predicting import predict_each, token_temperature
from skill_grafting.training.training import TrainPlan, batches_of, train
from stages.workflow.core.cells import GraftCell, evidence_of
from tests.pico import localizer_settings

READS = ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__")


@contextmanager
def reads() -> Iterator[Counter]:
    """What this project's own code reads of tensors, each a wait for the device if they are on one."""
    seen, before = Counter(), {name: getattr(torch.Tensor, name) for name in READS}

    def counting(name: str) -> Callable:
        def read(tensor: torch.Tensor, *more: object, **options: object) -> object:
            seen[name] += "/stages/" in sys._getframe(1).f_code.co_filename
            return before[name](tensor, *more, **options)

        return read

    for name in READS:
        setattr(torch.Tensor, name, counting(name))
    try:
        yield seen
    finally:
        for name, method in before.items():
            setattr(torch.Tensor, name, method)


def test_losses_of_training_are_read_every_ten_steps(make_cell):
    model = make_cell("prompt").load("pretrained")
    examples, weights = model.encode(make_cell("prompt").rows["train"]), model.train_only({*model.groups()})

    def count(steps: int) -> int:
        plan = TrainPlan(steps, 0.01, 4, clip_norm=1.0, l1=0.01)
        with reads() as seen:
            train(batches_of(model, examples, 4, np.random.default_rng(0)), weights, plan)
        return seen.total()

    assert (count(10), count(11), count(40)) == (1, 2, 4)


def test_losses_of_mask_learning_are_read_every_ten_steps(make_cell):
    made = make_cell("prompt")
    cell = GraftCell.of(made.load(), 0, ["layers"], made.pretrained_folder)

    def count(steps: int) -> int:
        settings = localizer_settings("learned", steps=steps, learning_rate=1.0, rate_kind="absolute")
        evidence = evidence_of(cell, "learned", made.rows["train"])
        with reads() as seen:
            find_mask("learned", evidence, settings, Budget.of(cell.region, 0.02, "top_k", "graft.sparsity"))
        return seen.total()

    few = count(10)
    assert (count(11) - few, count(40) - few) == (1, 3)


@pytest.mark.parametrize(("mode", "copies"), [("prompt", 1), ("generative", 3)])
def test_predictions_are_copied_once_however_many_batches(make_cell, mode, copies):
    for batch_tokens in (32, 100_000):
        model = make_cell(mode).load(batch_tokens=batch_tokens)
        examples = model.encode(make_cell(mode).rows["dev"])
        with reads() as seen:
            predict_each(model, examples, lambda _: None, 1.0)
        assert seen["cpu"] == copies and seen.total() - seen["numpy"] == copies


def test_the_search_of_a_temperature_reads_its_losses_once_a_pass(make_cell):
    found = []
    for batch_tokens in (32, 100_000):
        model = make_cell("generative").load(batch_tokens=batch_tokens)
        examples = model.encode(make_cell("generative").rows["dev"])
        with reads() as seen:
            token_temperature(model, examples, (-2.0, 2.0))
        found.append(seen)
    assert found[0] == found[1] and found[0]["cpu"] == 2


def test_a_selection_copies_once_for_each_tensor():
    generator = torch.Generator().manual_seed(0)
    region = Region({f"layer.{number}": (40, 10) for number in range(6)})
    scores = {name: torch.randn(shape, generator=generator) for name, shape in region.shapes.items()}
    with reads() as seen:
        mask = top_k(region, scores, 100)
    assert seen["cpu"] == len(region.shapes)
    assert mask.equals(
        movement_mask(region, torch.cat([*scores.values()]).reshape(-1).sort(descending=True).indices, 100)
    )
