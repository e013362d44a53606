"""Training a mask's values alone: nothing else moves by a bit, and with everything selected it is training as ever."""

import copy
import re
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.region import Region, named_weights
from skill_grafting.modules.masked import masked_optimizer
from skill_grafting.support.errors import GraftError, MaskError, ModelError
from skill_grafting.support.fields import HEAD
from stages.text.models.batching import shuffled
from stages.text.models.structure import groups_of
from stages.text.training import finetuning, trainer
from stages.text.training.finetuning import at_point, finetune, trained_names
from stages.text.training.trainer import Batches, Hooks, TrainPlan, train
from tests.pico import finetune_settings, random_mask, same, values_of
from tests.text.test_training import batches, fresh

SGD = TrainPlan(steps=12, learning_rate=0.05, batch_size=8, weight_decay=0.1, clip_norm=0.5)
MOMENTUM = replace(SGD, momentum=0.9, schedule="linear")
ADAMW = replace(SGD, optimizer="adamw", learning_rate=0.003, l1=0.01)
PLANS = [ADAMW, replace(MOMENTUM, l1=0.01, clip_norm=0.0)]


def some(region, k: int = 300) -> GraftMask:
    return random_mask(region, k, 2)


def run(
    cell, plan: TrainPlan, only: GraftMask | None = None, names: set[str] | None = None, **more
) -> tuple[dict, dict]:
    """Every parameter before and after training, of these names; dropout is on, and the same in every run."""
    model = fresh(cell)
    before = values_of(model)
    trained = model.train_only(names or trained_names(groups_of(model), finetune_settings(), only))
    with torch.random.fork_rng():
        torch.manual_seed(3)
        train(batches(model, cell, plan), trained, plan, Hooks(**more), only)
    return before, values_of(model)


def changed(before: dict, after: dict) -> dict[str, Tensor]:
    """Name -> flat indices at which the bits differ, tensors without any left out."""
    found = {name: torch.nonzero((before[name] != after[name]).reshape(-1)).reshape(-1) for name in before}
    return {name: indices for name, indices in found.items() if len(indices)}


def stepped(weights: list[Tensor], buffers: list, plan: TrainPlan, rate: float) -> None:
    """One step of SGD, written out."""
    for number, weight in enumerate(weights):
        gradient = weight.grad.add(weight, alpha=plan.weight_decay)
        if plan.momentum:
            old = buffers[number]
            buffers[number] = gradient.clone() if old is None else old.mul(plan.momentum).add(gradient)
            gradient = buffers[number]
        weight.add_(gradient, alpha=-rate)


@pytest.mark.parametrize("plan", [SGD, MOMENTUM, replace(MOMENTUM, l1=0.01)])
def test_dense_training_is_sgd_as_written_out_here_bit_for_bit(make_cell, plan):
    cell = make_cell("standard")
    model = fresh(cell)
    weights = [*model.train_only(trained_names(groups_of(model), finetune_settings())).values()]
    starts, buffers = [weight.detach().clone() for weight in weights], [None] * len(weights)
    examples = model.encode(cell.rows["train"])
    batches = shuffled(examples, plan.batch_size, np.random.default_rng(0))
    model.model.train()
    with torch.random.fork_rng():
        torch.manual_seed(3)
        for step in range(plan.steps):
            model.model.zero_grad()
            batch = model.batch([examples[index] for index in next(batches)])
            torch.nn.functional.cross_entropy(model.logits(batch), batch.labels).backward()
            torch.nn.utils.clip_grad_norm_(weights, plan.clip_norm)
            with torch.no_grad():
                for weight, start in zip(weights, starts, strict=True):
                    if plan.l1:
                        weight.grad.add_((weight - start).sign_(), alpha=plan.l1)
                rate = plan.learning_rate * (1 - step / plan.steps if plan.schedule == "linear" else 1.0)
                stepped(weights, buffers, plan, rate)
    before, after = run(cell, plan)
    assert same(values_of(model), after) and not same(before, after)


@pytest.mark.parametrize("plan", PLANS)
def test_outside_the_mask_every_bit_stays(make_cell, plan):
    cell = make_cell("standard")
    mask = some(cell.region)
    moved = changed(*run(cell, plan, mask))
    head = {"classifier.weight", "classifier.bias"}
    assert moved.keys() - head <= mask.indices.keys() and head <= moved.keys()
    for name in moved.keys() - head:
        assert {*moved[name].tolist()} <= {*mask.indices[name].tolist()}, name
    assert sum(len(moved[name]) for name in moved.keys() - head) > 0.9 * mask.selected, "control: the mask is trained"
    dense = changed(*run(cell, plan))
    assert sum(len(dense[name]) for name in dense.keys() - head) > 0.9 * cell.region.size, "control: all else would"


@pytest.mark.parametrize("plan", PLANS)
def test_selecting_the_whole_region_is_dense_training_bit_for_bit(make_cell, plan):
    cell = make_cell("autoregressive")
    before, dense = run(cell, plan)
    assert same(run(cell, plan, GraftMask.full(cell.region))[1], dense) and not same(before, dense)
    assert not same(run(cell, plan, some(cell.region))[1], dense), "control"


@pytest.mark.parametrize(("plan", "numbers"), [(MOMENTUM, 1), (replace(ADAMW, l1=0.0), 2)])
def test_the_optimizer_keeps_as_many_numbers_as_the_mask_selects(make_cell, monkeypatch, plan, numbers):
    cell, kept, make = make_cell("prompt"), [], trainer._optimizer
    monkeypatch.setattr(trainer, "_optimizer", lambda *given: kept.append(make(*given)) or kept[-1])
    run(cell, replace(plan, steps=2), some(cell.region, 37))
    states = kept[0][0].state.values()
    vectors = [value for state in states for value in state.values() if isinstance(value, Tensor) and value.dim()]
    assert sum(value.numel() for value in vectors) == numbers * 37


def test_a_mask_changes_neither_the_clipping_nor_the_step_of_what_it_selects(make_cell):
    cell = make_cell("prompt")
    mask, flat = some(cell.region, 50), cell.region.flatten

    def step(only: GraftMask | None, clip_norm: float) -> Tensor:
        model = fresh(cell)
        before, trained = values_of(model), model.train_only({*cell.region.shapes})
        plan = TrainPlan(steps=1, learning_rate=1.0, batch_size=32, clip_norm=clip_norm)
        with torch.random.fork_rng():
            torch.manual_seed(3)
            train(batches(model, cell, plan), trained, plan, Hooks(), only)
        return flat(values_of(model)) - flat(before)

    whole, part, inside = step(None, 1e-3), step(mask, 1e-3), mask.region_indices()
    assert torch.equal(part[inside], whole[inside]) and whole.norm() <= 1.001e-3
    assert int(part.count_nonzero()) <= 50 < int(whole.count_nonzero())
    assert step(mask, 0.0).norm() > 2 * part.norm(), "control: clipping shortens it"


@pytest.mark.parametrize("masked", [False, True])
def test_the_best_weights_come_back_the_first_of_equals(make_cell, masked):
    cell, seen, scores = make_cell("prompt"), [], iter([(0.5, -1.0), (0.9, -1.0), (0.9, -1.0), (0.6, -0.5)])
    model, only = fresh(cell), some(cell.region) if masked else None

    def score() -> tuple[float, float]:
        seen.append(values_of(model))
        return next(scores)

    trained = model.train_only(trained_names(groups_of(model), finetune_settings(), only))
    plan = replace(MOMENTUM, steps=10, eval_steps=3)
    done = train(batches(model, cell, plan), trained, plan, Hooks(score), only)
    looks = [(entry["step"], entry["loss"]) for entry in done.dev]
    assert done.step == 6 and looks == [(3, 1.0), (6, 1.0), (9, 1.0), (10, 0.5)]
    assert same(seen[1], values_of(model)) and not same(seen[2], seen[1])


def test_an_empty_mask_trains_a_new_head_alone(make_cell):
    cell = make_cell("standard")
    assert {*changed(*run(cell, SGD, GraftMask.empty(cell.region)))} == {"classifier.weight", "classifier.bias"}


def finetuned(cell, only: GraftMask | None = None, **changes) -> dict[str, Tensor]:
    settings = finetune_settings(**{"max_steps": 10, "optimizer": "sgd", "dropout": 0.1, **changes})
    return values_of(finetune(cell.to_train(), settings, only=only).model)


@pytest.mark.parametrize("plan", PLANS)
def test_bitfit_is_training_the_mask_of_all_biases_bit_for_bit(make_cell, plan):
    cell = make_cell("standard")
    biases = {name: torch.arange(shape[0]) for name, shape in cell.region.shapes.items() if name.endswith(".bias")}
    bitfit = run(cell, plan, names={*biases, *cell.anatomy.names([HEAD])})[1]
    assert same(bitfit, run(cell, plan, GraftMask(cell.region, biases))[1])
    assert not same(bitfit, run(cell, plan)[1]), "control"


@pytest.mark.parametrize(("train", "said"), [(["pooler"], "[pooler]"), ([], "[]")])
def test_where_there_is_nothing_to_train_the_groups_are_named(make_cell, train, said):
    groups = make_cell("autoregressive").anatomy.groups
    line = f"finetune.train: {said} are no parameters of this model, which has embeddings, layers, lm_head"
    with pytest.raises(ModelError, match=re.escape(line)):
        trained_names(groups, finetune_settings(train=train))
    head = {"score.weight": "head"}
    assert trained_names(head, finetune_settings(train=[])) == {*head}, "control: a new head can be trained alone"


def test_retraining_starts_where_finetuning_started_new_head_included(make_cell, monkeypatch):
    starts = []

    def watched(batches: Batches, *more: object) -> trainer.Training:
        first = next(batches)
        starts.append(values_of(first[0][0]))
        return train(chain([first], batches), *more)

    monkeypatch.setattr(finetuning, "train", watched)
    cell = make_cell("standard")
    for only in (None, some(cell.region)):
        finetuned(cell, only)
    assert same(*starts)
    assert all(torch.equal(starts[0][name], values) for name, values in cell.pretrained().items())


def test_with_a_mask_it_is_the_mask_that_says_what_moves(make_cell):
    cell, changes = make_cell("prompt"), {"train": ["layers", "embeddings", "lm_head"]}
    mask = some(cell.region)
    assert same(finetuned(cell, mask, **changes), finetuned(cell, mask))
    assert not same(finetuned(cell, **changes), finetuned(cell)), "control: without one the settings say so"


def test_one_grid_point_takes_the_place_of_the_grid():
    settings = finetune_settings(batch_sizes=[2, 4], learning_rates=[1e-2, 1e-3])
    one = at_point(settings, {"batch_size": 4, "learning_rate": 1e-3, "steps": 60})
    assert (one.batch_sizes, one.learning_rates) == ([4], [1e-3])
    others = {name for name in vars(settings) if vars(settings)[name] != vars(one)[name]}
    assert others == {"batch_sizes", "learning_rates"}


# --- Any optimizer on a mask -------------------------------------------------------------------------------------------


@pytest.fixture
def tied() -> tuple[nn.Module, GraftMask, Tensor]:
    """A language model whose head is its embedding, a mask in three of its tensors, one of them selected whole, and texts."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = nn.ModuleDict({"words": nn.Embedding(11, 4), "body": nn.Linear(4, 4), "out": nn.Linear(4, 11, bias=False)})
        texts = torch.randint(0, 11, (8, 3))
    model["out"].weight = model["words"].weight
    region = Region({"words.weight": (11, 4), "body.weight": (4, 4), "body.bias": (4,)})
    selected = {"words.weight": torch.tensor([0, 3, 17, 40]), "body.weight": torch.tensor([2]), "body.bias": torch.arange(4)}
    return model, GraftMask(region, selected), texts


def loss_of(model: nn.Module, texts: Tensor) -> Tensor:
    logits = model["out"](model["body"](model["words"](texts)).tanh())
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), texts[:, 1:].flatten())


def step(model: nn.Module, optimizer: torch.optim.Optimizer, texts: Tensor, steps: int = 6) -> nn.Module:
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, texts).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return model


def numbers(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def groups_of_weights(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def plain_loop(model, optimizer, texts, clipped=None, backwards=1, scheduler=None, scaler=None, closure=False, reload=None):
    """Six steps of a training that uses an optimizer's protocol in these ways."""
    scheduler = scheduler and scheduler(optimizer)
    for number in range(6):
        def evaluate(optimizer=optimizer) -> Tensor:
            optimizer.zero_grad()
            for _ in range(backwards):
                loss = loss_of(model, texts)
                (scaler.scale(loss) if scaler else loss).backward()
            if scaler:
                scaler.unscale_(optimizer)
            if clipped:
                torch.nn.utils.clip_grad_norm_(clipped(model, optimizer), 0.25)
            return loss

        if closure:
            optimizer.step(evaluate)
        else:
            evaluate()
            scaler.step(optimizer) if scaler else optimizer.step()
        if scaler:
            scaler.update()
        if scheduler:
            scheduler.step()
        if reload and number == 2:
            state, optimizer = copy.deepcopy(optimizer.state_dict()), reload()
            optimizer.load_state_dict(state)
    return numbers(model)


SGD_OF = {"lr": 0.25, "momentum": 0.5}  # powers of two: nothing is rounded on the way
TWO_GROUPS = {"make": lambda leaves: torch.optim.SGD([{"params": leaves[:1], "lr": 0.5}, {"params": leaves[1:]}], **SGD_OF)}
PROTOCOL: dict[str, dict] = {
    "as it is": {},
    "clipped by the model": {"clipped": lambda model, _: model.parameters()},
    "clipped by its groups": {"clipped": lambda _, optimizer: groups_of_weights(optimizer)},
    "two backward passes": {"backwards": 2},
    "a scheduler": {"scheduler": lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)},
    "a scaler": {"scaler": lambda: torch.amp.GradScaler("cpu", init_scale=1024.0), "clipped": lambda model, _: model.parameters()},
    "a closure": {"closure": True, "clipped": lambda _, optimizer: groups_of_weights(optimizer)},
    "groups": TWO_GROUPS,
    "its state": {"reload": True},
}


@pytest.mark.parametrize("way", PROTOCOL)
def test_masked_sgd_is_dense_sgd_within_the_mask_bit_for_bit_however_it_is_used(tied, way):
    model, mask, texts = tied
    options, inside, found = {**PROTOCOL[way]}, mask.dense(), []
    make = options.pop("make", lambda leaves: torch.optim.SGD(leaves, **SGD_OF))

    def dense(live: nn.Module) -> torch.optim.Optimizer:
        """Steps of all weights, whose gradients are cleared outside of the mask at the last moment."""
        weights = {name: weight for name, weight in live.named_parameters() if name in mask.indices}

        def clear(*_: object) -> None:
            for name, weight in weights.items():
                weight.grad.mul_(inside[name])

        optimizer = make([*weights.values()])
        optimizer.register_step_pre_hook(clear)
        return optimizer

    for made in (dense, lambda live: masked_optimizer(live, mask, make)):
        live = copy.deepcopy(model)
        given = {**options, "reload": partial(made, live)} if "reload" in options else options
        given = {**given, "scaler": given["scaler"]()} if "scaler" in given else given
        if way == "a closure" and made is dense:  # whose hook comes too early
            given = {**given, "closure": False}
        found.append(plain_loop(live, made(live), texts, **given))
    assert same(*found) and {*changed(numbers(model), found[0])} == {*mask.indices}
    plain = plain_loop(model, masked_optimizer(model, mask, torch.optim.SGD, **SGD_OF), texts)
    assert same(found[1], plain) == (way in ("as it is", "its state")), "control: the others move otherwise"


def test_hooks_see_weights_and_a_step_that_fails_leaves_the_groups_as_they_were(tied):
    model, mask, texts = tied
    optimizer, seen = masked_optimizer(model, mask, torch.optim.SGD, lr=0.25), []
    weights = [weight for name, weight in model.named_parameters() if name in mask.indices]
    hook = lambda one, *_: seen.append(all(a is b for a, b in zip(groups_of_weights(one), weights, strict=True)))  # noqa: E731
    optimizer.register_step_pre_hook(hook), optimizer.register_step_post_hook(hook)
    step(model, optimizer, texts, 2)
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    hook(optimizer)
    assert seen == [True] * 6 and isinstance(optimizer, torch.optim.SGD) and model["out"].weight is model["words"].weight


def test_the_state_has_the_mask_s_size_is_saved_and_is_of_this_mask_alone(tied):
    model, mask, texts = tied
    options = {"make": torch.optim.AdamW, "lr": 0.05, "weight_decay": 0.5}
    before, one = numbers(model), masked_optimizer(model, mask, **options)
    step(model, one, texts, 3)
    found = changed(before, numbers(model))
    assert all(set(at.tolist()) <= set(mask.indices[name].tolist()) for name, at in found.items()) and found
    state = [values for entry in one.state.values() for values in entry.values() if values.dim()]
    assert sum(values.numel() for values in state) == 2 * len(mask)
    again = copy.deepcopy(model)
    other = masked_optimizer(again, mask, **options)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    fresh_state = masked_optimizer(copy.deepcopy(model), mask, **options)
    assert same(numbers(step(again, other, texts, 3)), numbers(step(model, one, texts, 3)))
    another = masked_optimizer(model, GraftMask(mask.region, {**mask.indices, "body.weight": torch.tensor([3])}), **options)
    plain = torch.optim.AdamW(model.parameters())
    for foreign in (one, plain):
        with pytest.raises(MaskError, match="state_dict: is of another mask than this optimizer's, or of none"):
            another.load_state_dict(foreign.state_dict())
    assert not same(numbers(step(copy.deepcopy(model), fresh_state, texts, 0)), before), "control"


def test_weights_that_are_loaded_or_turned_later_are_those_that_a_step_starts_from(tied):
    model, mask, texts = tied
    optimizer, loaded = masked_optimizer(model, mask, torch.optim.SGD, lr=0.3), numbers(model)
    loaded = {name: values + 1 for name, values in loaded.items()}
    model.load_state_dict(loaded, strict=False)
    wanted = copy.deepcopy(model)
    step(wanted, masked_optimizer(wanted, mask, torch.optim.SGD, lr=0.3), texts)
    assert same(numbers(step(model, optimizer, texts)), numbers(wanted))
    model.double()
    assert step(model, optimizer, texts)["body"].weight.dtype == torch.float64


@pytest.mark.parametrize("as_keyword", [True, False])
def test_a_closure_is_evaluated_where_the_optimizer_is(as_keyword):
    model, target = nn.Linear(4, 3), torch.arange(12.0).reshape(3, 4)
    mask = GraftMask(Region({"weight": (3, 4)}), {"weight": torch.tensor([0, 5, 7])})
    before = numbers(model)
    optimizer = masked_optimizer(model, mask, torch.optim.LBFGS, max_iter=50)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = ((model.weight - target) ** 2).sum()
        loss.backward()
        return loss

    optimizer.step(closure=closure) if as_keyword else optimizer.step(closure)
    inside = mask.dense()["weight"]
    torch.testing.assert_close(model.weight[inside], target[inside], rtol=0, atol=1e-3)
    assert torch.equal(model.weight[~inside], before["weight"][~inside])


def test_trainer_trains_a_mask_alone(make_cell, tmp_path):
    from transformers import Trainer, TrainingArguments

    model = fresh(make_cell("standard")).model
    region = Region({name: tuple(weight.shape) for name, weight in named_weights(model).items()})
    mask, before = some(region), numbers(model)
    optimizer = masked_optimizer(model, mask, torch.optim.AdamW, lr=0.01, weight_decay=0.1)
    rows = [{"input_ids": torch.arange(5, 11), "labels": number % 2} for number in range(8)]
    quiet = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no"}
    arguments = TrainingArguments(str(tmp_path), max_steps=3, per_device_train_batch_size=4, **quiet)
    Trainer(model, arguments, train_dataset=rows, optimizers=(optimizer, None)).train()
    found = changed(before, numbers(model))
    assert found and all(set(at.tolist()) <= set(mask.indices[name].tolist()) for name, at in found.items())


def reloaded(model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    model.load_state_dict({name: values.clone() for name, values in model.state_dict().items()}, assign=True)
    return optimizer


BAD = {
    "another model": (lambda m, mask: masked_optimizer(nn.Linear(4, 4), mask, torch.optim.SGD), "the mask is of other models: these have no words.weight"),
    "no mask": (lambda m, mask: masked_optimizer(m, mask.indices, torch.optim.SGD), "mask: should be a GraftMask, not a dict"),
    "nothing": (lambda m, mask: masked_optimizer(m, mask & ~mask, torch.optim.SGD), "selects nothing, so there is nothing to train"),
    "frozen": (lambda m, mask: masked_optimizer(m.requires_grad_(False), mask, torch.optim.SGD), "body.weight, which is frozen: requires_grad_|words.weight, which is frozen"),
    "options": (lambda m, mask: masked_optimizer(m, mask, torch.optim.SGD, rate=1), "make: no optimizer of these options: TypeError: .*'rate'"),
    "a rate": (lambda m, mask: masked_optimizer(m, mask, torch.optim.SGD, lr=-1), "make: no optimizer of these options: ValueError: Invalid learning rate"),
    "replaced": (lambda m, mask: reloaded(m, masked_optimizer(m, mask, torch.optim.SGD)).step(), "words.weight was replaced since the optimizer was made|body.* was replaced"),
    "a copy of it": (lambda m, mask: copy.deepcopy(masked_optimizer(m, mask, torch.optim.SGD)), "an optimizer of a mask can't be copied: make one of the copied"),
    "more groups": (lambda m, mask: masked_optimizer(m, mask, torch.optim.SGD).add_param_group({"params": []}), "add_param_group: SGD moves what the mask selects alone"),
    "no optimizer": (lambda m, mask: masked_optimizer(m, mask, list), "make: should make an optimizer of torch, not a list"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_what_can_t_be_optimized_is_one_line(tied, what):
    act, message = BAD[what]
    with pytest.raises(GraftError, match=message):
        act(*tied[:2])
