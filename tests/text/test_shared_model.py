"""Several tasks on one backbone: what one of them is given all see, and each reads its own labels."""

import pytest
import torch

from skill_grafting.support.fields import HEAD, LAYERS
from stages.text.models.encoding import Example
from stages.text.models.label_model import LabelModel
from stages.text.models.predicting import loss_of, predict
from stages.text.models.shared import SharedModel
from stages.text.models.structure import groups_of
from stages.text.training.trainer import Batches, Hooks, TrainPlan, train
from tests.pico import PAIRS, TOY, model_settings, pair_rows, runtime, toy_rows

ROWS = {"toy": toy_rows(12), "pairs": pair_rows(12)}
MODES = ["standard", "prompt"]


def load(make_cell, mode: str, dropout: float | None = None) -> SharedModel:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        folder = make_cell(mode).pretrained_folder
        return SharedModel.load(folder, [TOY, PAIRS], model_settings(mode), runtime(), dropout)


def examples(shared: SharedModel) -> dict[str, list[Example]]:
    return {task: view.encode(ROWS[task]) for task, view in shared.views.items()}


def in_turn(shared: SharedModel, tasks: list[str]) -> Batches:
    encoded = examples(shared)
    while True:
        yield from ([(shared.views[task], encoded[task])] for task in tasks)


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
    layer = next(name for name, group in groups_of(first).items() if group == LAYERS)
    first.put({layer: torch.zeros_like(first.parameters()[layer])})
    assert not second.parameters()[layer].any()
    heads = [name for name, group in groups_of(first).items() if group == HEAD]
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


def test_a_batch_of_parts_has_the_gradient_of_the_mean_over_all_their_rows(make_cell):
    shared = load(make_cell, "prompt", dropout=0.0)
    trained = shared.train_only({name for name, group in groups_of(shared.first).items() if group == LAYERS})
    start, encoded = {name: weight.detach().clone() for name, weight in trained.items()}, examples(shared)
    parts = [(shared.views["toy"], encoded["toy"][:3]), (shared.views["pairs"], encoded["pairs"][:5])]
    rows = sum(loss_of(view, view.batch(part), "sum") for view, part in parts) / 8
    expected = dict(zip(trained, torch.autograd.grad(rows, [*trained.values()], allow_unused=True), strict=True))
    done = train(iter([parts]), trained, TrainPlan(steps=1, learning_rate=1.0, batch_size=8))
    assert done.curve[0]["train_loss"] == pytest.approx(rows.item())
    for name, gradient in expected.items():
        torch.testing.assert_close(start[name] - trained[name].detach(), gradient, atol=1e-6, rtol=1e-4)


def test_what_holds_weights_back_is_called_with_the_rate_of_the_step_just_taken(make_cell):
    shared, rates = load(make_cell, "standard"), []
    trained = shared.train_only({name for name, group in groups_of(shared.views["toy"]).items() if group == LAYERS})
    start = {name: weight.detach().clone() for name, weight in trained.items()}

    def pull(leaves, rate):
        rates.append(rate)
        for name, leaf in leaves.items():
            leaf.data.copy_(start[name])

    train(in_turn(shared, ["toy"]), trained, TrainPlan(steps=6, learning_rate=0.05, batch_size=8, schedule="linear"), Hooks(proximal=pull))
    assert rates == pytest.approx([0.05 * (1 - step / 6) for step in range(6)])
    assert all(torch.equal(weight, start[name]) for name, weight in trained.items())
