"""Training moves what it was told to, the same way every time, and says so when it diverges."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from skill_grafting.support.errors import TrainingError
from stages.text.models.label_model import LabelModel
from stages.text.models.predicting import dev_score, loss_gradient
from stages.text.models.structure import groups_of
from stages.text.tasks.runtime import seeded_torch
from stages.text.training import trainer
from stages.text.training.finetuning import Finetuned, finetune, grid_of, steps_for, trained_names
from stages.text.training.grid import Trained, search
from stages.text.training.trainer import Batches, Hooks, Training, TrainPlan, batches_of, train
from tests.pico import finetune_settings, values_of

PLAN = TrainPlan(steps=12, learning_rate=0.05, batch_size=8)


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


def fresh(cell) -> LabelModel:
    """The pretrained model of a cell, with a head that is always the same."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return cell.load("pretrained")


def batches(model: LabelModel, cell, plan: TrainPlan) -> Batches:
    """The training rows of a cell in shuffled batches."""
    return batches_of(model, model.encode(cell.rows["train"]), plan.batch_size, np.random.default_rng(0))


def run(cell, plan: TrainPlan, groups=("layers",), **more) -> tuple[LabelModel, dict[str, Tensor], Training]:
    """Train the pretrained model of a cell; gives it, what it was, and the record."""
    model = fresh(cell)
    before = values_of(model)
    trained = model.train_only(trained_names(groups_of(model), finetune_settings(train=[*groups])))
    return model, before, train(batches(model, cell, plan), trained, plan, Hooks(**more))


HARSH = {"weight_decay": 0.1, "clip_norm": 0.5}
PLANS = [replace(PLAN, momentum=0.9, **HARSH), replace(PLAN, optimizer="adamw", learning_rate=0.003, l1=0.01, **HARSH)]  # fmt: skip


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(
    ("mode", "chosen"),
    [
        ("standard", {"layers"}),
        ("prompt", {"layers"}),
        ("autoregressive", {"layers"}),
        ("prompt", {"layers", "embeddings", "lm_head"}),
    ],
)
def test_the_groups_that_are_trained_move_and_others_keep_every_bit(make_cell, mode, chosen, plan):
    model, before, _ = run(make_cell(mode), plan, chosen)
    groups, changed = groups_of(model), moved(before, values_of(model))
    assert {groups[name] for name in changed} == chosen | ({"head"} if mode == "standard" else set())
    unmoved = {name for name, group in groups.items() if group in ("layers", "head")} - changed
    assert all(name.endswith("key.bias") for name in unmoved), "a key's bias has no gradient: softmax ignores it"


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_by_the_authors_rule_biases_and_norms_named_as_berts_do_not_decay(make_cell, optimizer):
    ends = {}
    for decay in ((0.0, "all"), (0.1, "all"), (0.1, "authors")):
        plan = replace(PLAN, steps=1, optimizer=optimizer, weight_decay=decay[0], decay=decay[1])
        with seeded_torch("dropout"):
            ends[decay] = values_of(run(make_cell("standard"), plan, {"layers"})[0])
    none, every, authors = ends.values()
    shrunk = moved(none, authors)
    assert shrunk == {name for name in moved(none, every) if none[name].dim() > 1} != moved(none, every)
    # GPT-2's norms are not named so
    names = ["transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_attn.bias", "transformer.h.0.ln_1.weight"]
    weights = {name: torch.ones(2, 2) for name in names}
    plan = replace(PLAN, optimizer=optimizer, weight_decay=0.1, decay="authors")
    groups = trainer.TrainerState(weights, plan, None).optimizer.param_groups
    assert {group["weight_decay"]: len(group["params"]) for group in groups} == {0.0: 1, 0.1: 2}


def test_the_full_batch_gradient_does_not_depend_on_how_it_is_cut_into_batches(make_cell):
    cell, found = make_cell("prompt"), []
    for batch_tokens in (16, 64, 100_000):
        model = cell.load(batch_tokens=batch_tokens)
        weights = model.train_only({*cell.region.shapes})
        loss = float(loss_gradient(model, model.encode(cell.rows["train"])))
        assert loss == pytest.approx(-dev_score(model, model.encode(cell.rows["train"]))[1], rel=1e-5), "the mean over rows"
        found.append((loss, torch.cat([weight.grad.reshape(-1) for weight in weights.values()])))
    assert all(loss == pytest.approx(found[0][0], rel=1e-5) for loss, _ in found)
    assert all(torch.allclose(gradient, found[0][1], rtol=1e-3, atol=1e-6) for _, gradient in found)
    assert float(found[0][1].abs().max()) > 1e-4, "control: it is not all zero"


def finetuned(cell, seed: int = 0, **changes) -> Finetuned:
    return finetune(cell.to_train(seed), finetune_settings(**{"max_steps": 15, **changes}))


def test_a_model_is_that_of_its_seed_whatever_the_global_random_state_which_stays(make_cell):
    models = []
    for state, seed in ((1, 3), (2, 3), (1, 4)):
        torch.manual_seed(state)
        before = torch.get_rng_state()
        models.append(values_of(finetuned(make_cell("standard"), seed, dropout=0.1).model))
        assert torch.equal(torch.get_rng_state(), before)
    first, again, other = models
    assert not moved(first, again) and {"classifier.weight"} < moved(first, other)
    batches = [values_of(finetuned(make_cell("prompt"), seed, dropout=0.0).model) for seed in (3, 4)]
    assert moved(*batches), "where nothing else is drawn"


def test_a_diverging_loss_names_what_to_lower(make_cell):
    said = r"the loss became (nan|inf) at step \d+ of 15 \(learning rate 1000000000000.0, batch size 8\); lower the learning rate, or clip_norm"
    with pytest.raises(TrainingError, match=said):
        finetuned(make_cell("prompt"), optimizer="sgd", learning_rates=[1e12], clip_norm=0.0)


@pytest.mark.parametrize(("steps", "said"), [(60, "the loss became"), (1, "the loss on dev became nan")])
def test_a_diverging_grid_point_is_recorded_and_passed_over(make_cell, steps, said):
    settings = {"optimizer": "sgd", "learning_rates": [1e12, 0.05], "clip_norm": 0.0, "max_steps": steps}
    done = finetuned(make_cell("prompt"), **settings)
    failed, fine = done.record["grid"]
    assert failed["learning_rate"] == 1e12 and said in failed["failed"] and "dev_accuracy" not in failed
    assert done.record["chosen"]["learning_rate"] == 0.05 == fine["learning_rate"] and "failed" not in fine
    assert all(bool(value.isfinite().all()) for value in values_of(done.model).values())


def test_the_best_grid_point_is_kept(make_cell):
    cell = make_cell("prompt")
    done = finetuned(cell, learning_rates=[1e-6, 1e-2, 1e-6], batch_sizes=[8, 4], max_steps=30)
    best = max(done.record["grid"], key=lambda point: (point["dev_accuracy"], -point["dev_loss"]))
    assert len(done.record["grid"]) == 6 and done.record["chosen"]["learning_rate"] == 1e-2 == best["learning_rate"]
    score = dev_score(done.model, done.model.encode(cell.rows["dev"]))
    assert done.record["dev_accuracy"] == best["dev_accuracy"] == score[0]
    assert best["dev_loss"] == pytest.approx(-score[1]), "of dev, not of what it was trained on"
    assert min(point["dev_accuracy"] for point in done.record["grid"]) < best["dev_accuracy"], "control"


def test_the_first_of_equal_grid_points_is_kept():
    found = search([{"rate": 1}, {"rate": 2}, {"rate": 3}], lambda point: Trained(point, (0.5, -1.0)))
    assert found.kept == found.point == {"rate": 1}
    assert [point["dev_loss"] for point in found.grid] == [1.0] * 3


@pytest.mark.parametrize(("ties", "step"), [("loss", 6), ("first", 4), ("last", 8)])
def test_of_equal_dev_accuracies_the_step_is_kept_that_the_rule_names(make_cell, ties, step):
    scores = iter([(0.5, -0.1), (0.7, -0.3), (0.7, -0.2), (0.7, -0.4), (0.6, -0.1), (0.6, -0.1)])
    plan = replace(PLAN, eval_steps=2, ties=ties)
    assert run(make_cell("prompt"), plan, dev_score=lambda: next(scores))[2].step == step


def test_every_grid_point_starts_from_the_same_weights(make_cell):
    cell = make_cell("standard")
    twice = finetuned(cell, learning_rates=[3e-3, 3e-3]).record["grid"]
    assert twice[0] == twice[1]


def test_without_eval_steps_the_last_weights_stay(make_cell):
    def refuse() -> tuple[float, float]:
        raise AssertionError("dev was rated")

    model, _, done = run(make_cell("prompt"), PLAN, dev_score=refuse)
    assert done.step == 12 and not model.model.training, "without dropout in what follows"


def test_the_curve_is_the_mean_of_ten_steps_and_falls(make_cell, monkeypatch):
    plan = replace(PLAN, optimizer="adamw", learning_rate=0.01, steps=35)
    torch.manual_seed(0)
    done = run(make_cell("prompt"), plan)[2]
    monkeypatch.setattr(trainer, "CURVE_STEPS", 1)
    torch.manual_seed(0)
    losses = [entry["train_loss"] for entry in run(make_cell("prompt"), plan)[2].curve]
    means = [np.mean(losses[start : start + 10]) for start in range(0, 35, 10)]
    assert [entry["train_loss"] for entry in done.curve] == pytest.approx(means)
    assert [entry["step"] for entry in done.curve] == [10, 20, 30, 35]
    assert done.curve[-1]["train_loss"] < 0.5 * done.curve[0]["train_loss"]


def test_steps_are_sixteen_for_each_example_up_to_the_caps_and_never_none():
    steps = {(2, 128): 2048, (2, 1): 16, (2, 1024): 16384, (2, 8192): 16384, (3, 8192): 24576}
    assert {sizes: steps_for(finetune_settings(max_steps=None), *sizes) for sizes in steps} == steps
    assert steps_for(finetune_settings(max_steps=300), 2, 128) == 300
    assert steps_for(finetune_settings(max_steps=None, steps_per_example=0.001), 2, 128) == 1
    assert len(grid_of(finetune_settings(batch_sizes=[2, 4], learning_rates=[1, 2, 3]))) == 6
