"""Several tasks on one backbone: what one of them is given all see, and each reads its own labels."""

from collections.abc import Iterator

import pytest
import torch

from stages.lib.data.encoding import Example
from stages.lib.models.anatomy import HEAD, LAYERS
from stages.lib.models.label_model import LabelModel
from stages.lib.models.predicting import predict
from stages.lib.models.shared import SharedModel
from stages.lib.training.training import Hooks, TrainPlan, train
from tests.pico import PAIRS, TOY, model_settings, pair_rows, runtime, toy_rows

ROWS = {"toy": toy_rows(12), "pairs": pair_rows(12)}
MODES = ["standard", "prompt"]


def load(make_cell, mode: str) -> SharedModel:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return SharedModel.load(make_cell(mode).pretrained_folder, [TOY, PAIRS], model_settings(mode), runtime())


def examples(shared: SharedModel) -> dict[str, list[Example]]:
    return {task: view.encode(ROWS[task]) for task, view in shared.views.items()}


def in_turn(shared: SharedModel, tasks: list[str]) -> Iterator[tuple[LabelModel, list[Example]]]:
    encoded = examples(shared)
    while True:
        yield from ((shared.views[task], encoded[task]) for task in tasks)


@pytest.mark.parametrize("mode", MODES)
def test_each_view_predicts_as_a_model_of_its_own_with_these_weights(make_cell, mode):
    shared, encoded = load(make_cell, mode), examples(load(make_cell, mode))
    for task, view in shared.views.items():
        alone = LabelModel.load(make_cell(mode).pretrained_folder, view.task, model_settings(mode), runtime())
        alone.put({name: weight.detach() for name, weight in view.parameters().items()})
        expected = predict(alone, encoded[task])
        assert torch.equal(predict(view, encoded[task]), expected)
        other = next(name for name in shared.views if name != task)
        predict(shared.views[other], encoded[other])
        assert torch.equal(predict(view, encoded[task]), expected), "also after another task was read"


@pytest.mark.parametrize("mode", MODES)
def test_what_one_view_is_given_all_see(make_cell, mode):
    shared = load(make_cell, mode)
    first, second = shared.views.values()
    layer = next(name for name, group in first.groups().items() if group == LAYERS)
    first.put({layer: torch.zeros_like(first.parameters()[layer])})
    assert not second.parameters()[layer].any()
    heads = [name for name, group in first.groups().items() if group == HEAD]
    assert all(first.parameters()[name] is not second.parameters()[name] for name in heads)
    assert {*shared.heads()["toy"]} == {*heads} and bool(heads) == (mode == "standard")


def test_heads_have_names_of_their_own_and_nothing_is_named_twice(make_cell):
    shared = load(make_cell, "standard")
    weights = shared.parameters()
    heads = {f"{task}:classifier.{part}" for task in ROWS for part in ("weight", "bias")}
    assert {name for name in weights if ":" in name} == heads
    assert len({id(weight) for weight in weights.values()}) == len(weights)


def test_a_head_moves_only_in_steps_of_its_own_task(make_cell):
    plan = TrainPlan(steps=4, learning_rate=0.05, batch_size=8, momentum=0.9, weight_decay=0.1)
    moved = {}
    for tasks in (["toy"], ["toy", "pairs"]):
        shared = load(make_cell, "standard")
        trained = shared.train_only({*shared.parameters()})
        before = {name: weight.detach().clone() for name, weight in trained.items()}
        train(in_turn(shared, tasks), trained, plan)
        moved[len(tasks)] = {name for name in before if not torch.equal(before[name], trained[name])}
    assert not any(name.startswith("pairs:") for name in moved[1])
    assert any(name.startswith("pairs:") for name in moved[2]), "control: its own steps do move it"
    assert not any(view.model.training for view in shared.views.values())


def test_a_penalty_holds_weights_back(make_cell):
    plan = TrainPlan(steps=6, learning_rate=0.05, batch_size=8)
    distances = []
    for strength in (0.0, 10.0):
        shared = load(make_cell, "standard")
        trained = shared.train_only({name for name, group in shared.views["toy"].groups().items() if group == LAYERS})
        start = {name: weight.detach().clone() for name, weight in trained.items()}

        def pull(leaves, strength=strength, start=start):
            for name, leaf in leaves.items():
                leaf.grad.add_(leaf.detach() - start[name], alpha=strength)

        train(in_turn(shared, ["toy"]), trained, plan, Hooks(penalty=pull))
        distances.append(sum(float((trained[name].detach() - start[name]).norm()) for name in start))
    assert distances[1] < 0.8 * distances[0]
