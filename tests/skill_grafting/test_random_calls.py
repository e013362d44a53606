"""Random calls of the Python API on random modules: what a naive reference says by name, or a GraftError, and all models as before.

GRAFT_CALLS=5000 pytest tests/skill_grafting/test_random_calls.py makes as many calls, and -s shows what they came to.
"""

import copy
import logging
import math
import os
import random
import warnings
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import skill_grafting as sg
from skill_grafting.grafting.region import named_weights
from skill_grafting.modules import swapping
from skill_grafting.support.errors import GraftError

CALLS = int(os.environ.get("GRAFT_CALLS", "400"))
KINDS = [torch.float32] * 6 + [
    torch.float64, torch.bfloat16, torch.float16, torch.float8_e5m2, torch.float8_e4m3fn, torch.complex64, torch.int64, torch.uint8, torch.uint16, torch.bool,
]  # fmt: skip
SHAPES = [(3, 4), (8,), (2, 3, 2), (), (0,), (1,), (5, 1)]
Own = type("Own", (KeyError,), {})


class Some(nn.Module):
    """Parameters and buffers of any kind."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 2)
        for number in range(dice.randrange(4)):
            kind, shape = dice.choice(KINDS), dice.choice(SHAPES)
            values = (torch.randn(shape) * 3).to(kind)
            if len(shape) == 2 and dice.random() < 0.2:
                values = values.t().contiguous().t()
            if shape == (8,) and dice.random() < 0.1:
                values = values[:1].expand(8)
            if shape == (8,) and kind.is_floating_point and dice.random() < 0.3:
                values = torch.full(shape, -0.0).to(kind)
            own = nn.Parameter(values, requires_grad=kind.is_floating_point and kind.itemsize > 1)
            if dice.random() < 0.2:
                self.register_buffer(f"b{number}", own.detach(), persistent=dice.random() < 0.5)
            else:
                setattr(self, f"p{number}", own)
        if dice.random() < 0.15:
            self.tied = self.body
        if dice.random() < 0.1:
            self.twin = nn.Parameter(torch.zeros(4, 4))
            self.twin.data = self.body.weight.data if dice.random() < 0.5 else self.body.weight.data.view(-1)[:8]
        if dice.random() < 0.1:
            self.register_buffer("seen", self.body.bias.detach())

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.norm(self.body(inputs)))


def pair(dice: random.Random) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(dice.randrange(10**6))
    base = Some(dice).eval()
    state = dice.getstate()
    tuned = copy.deepcopy(base)
    dice.setstate(state)
    for values in [*tuned.parameters(), *tuned.buffers()]:
        if dice.random() < 0.8 and values.numel():
            with torch.no_grad():
                moved = (torch.randn(values.shape) * 2).to(values.dtype)
                kept = torch.rand(values.shape) < 0.4
                values.data = torch.where(kept, values.data, moved)
                if dice.random() < 0.03 and values.is_floating_point():
                    values.data.view(-1)[0] = dice.choice([math.nan, -math.inf])
    if dice.random() < 0.1:
        tuned = dice.choice([lambda m: m.bfloat16(), lambda m: m.double(), lambda m: nn.DataParallel(m), lambda m: m.to("meta")])(tuned)
    return base, tuned


def bytes_in(values: Tensor) -> list[int]:
    return values.detach().clone().contiguous().view(-1).view(torch.uint8).tolist()


def bits(model: nn.Module) -> dict:
    """Every number of a model, to the bit, and the object that holds it."""
    every = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: (id(v), v.dtype, v.shape, v.is_meta or bytes_in(v)) for name, v in every}


def equal(first: Tensor, second: Tensor) -> bool:
    return first.dtype == second.dtype and first.shape == second.shape and bool(((first == second) | (first.isnan() & second.isnan())).all())


def reference(base: nn.Module, tuned: nn.Module, mask: sg.GraftMask) -> dict[str, Tensor]:
    """base + mask * (tuned - base) by name; the head and buffers are those of the tuned model."""
    tuned = tuned.module if isinstance(tuned, nn.DataParallel) else tuned
    after = {**named_weights(tuned), **dict(tuned.named_buffers())}
    made = {}
    for name, before in {**named_weights(base), **dict(base.named_buffers())}.items():
        whole = (name.startswith("head.") and name not in mask.region.shapes) or name in dict(base.named_buffers())
        inside = mask.dense().get(name, torch.zeros(before.shape, dtype=torch.bool))
        narrow = name in after and after[name].dtype != before.dtype and before.dtype.itemsize < 4
        if name in base._non_persistent_buffers_set and (narrow or name not in after):
            made[name] = before  # a table that the model makes itself, in a type that doesn't hold the other's, or that the other lacks
            continue
        if name in dict(base.named_buffers()) and equal(before.to(after[name].dtype), after[name]):
            made[name] = before  # rounding is no movement
            continue
        made[name] = after[name].to(before.dtype) if whole else torch.where(inside, after[name].to(before.dtype), before)
    return made


def values_of(model: nn.Module) -> dict[str, Tensor]:
    return {**named_weights(model), **dict(model.named_buffers())}


def usual(dice: random.Random, fit: list, mistaken: list) -> object:
    return dice.choice(mistaken if dice.random() < 0.08 else fit)


def find(dice: random.Random, base: nn.Module, tuned: nn.Module) -> sg.GraftMask:
    method = usual(dice, ["movement", "random", "magnitude", "bias"], ["lerned", None, 5])
    sparsity = usual(dice, [1.0, 0.5, 0.2, 0.3], [0.01, 0, -1, math.nan, "x", None])
    parameters = usual(dice, [None, "all", "*", "body.*", lambda name: "weight" in name], ["nothing", ["p*"], 5, []])
    return sg.localize(base, tuned, sparsity=sparsity, method=method, parameters=parameters, progress=False, seed=1)


def do_graft(dice: random.Random, base: nn.Module, tuned: nn.Module) -> None:
    mask = find(dice, base, tuned)
    wanted, made = reference(base, tuned, mask), values_of(sg.graft(base, tuned, mask))
    assert made.keys() == wanted.keys() and [name for name in wanted if not equal(made[name], wanted[name])] == []


INSIDE: list[Callable[[nn.Module], object]] = [
    lambda m: None,
    lambda m: m.train()(torch.randn(5, 4)) is m.eval(),
    lambda m: setattr(m.norm, "running_mean", torch.zeros(9)),
    lambda m: setattr(m.body, "weight", nn.Parameter(torch.zeros(4, 4))),
    lambda m: setattr(m, "body", copy.deepcopy(m.body)),
    lambda m: m.norm.running_var.mul_(3),
]


def do_grafted(dice: random.Random, base: nn.Module, tuned: nn.Module) -> None:
    mask, own, act = find(dice, base, tuned), dice.random() < 0.3, dice.choice(INSIDE)
    wanted, body, weight = reference(base, tuned, mask), base.body, base.body.weight
    try:
        with sg.grafted(base, tuned, mask) as given:
            made = values_of(base)
            assert given is base and [name for name in wanted if not equal(made[name], wanted[name])] == []
            act(base)
            if own:
                raise Own
    except Own:
        assert own
    base.eval()
    base.body = body
    if not len(mask.indices.get("body.weight", ())):  # what isn't swapped stays as it was left
        base.body.weight = weight


def do_merge(dice: random.Random, base: nn.Module, tuned: nn.Module) -> None:
    how = usual(dice, ["mean", "sum", "largest", "sequence", "average", "arithmetic", "consensus", "dare", "ties"], ["tie", None])
    mask = find(dice, base, tuned)
    other = mask if dice.random() < 0.5 else mask & ~mask if dice.random() < 0.5 else find(dice, base, tuned)
    entry = usual(dice, [(tuned, mask)], [tuned, (tuned,), (mask, tuned), None])
    tasks = usual(dice, [{"a": entry}, {"a": entry, "b": (tuned, other)}], [{}, [entry], None, {1: entry}])
    made, share = {name: one.detach() for name, one in values_of(sg.merge(base, tasks, how, share=dice.choice([1.0, 0.9]) if how in ("dare", "ties") else None)).items()}, {task: one[1] for task, one in tasks.items()}
    after, before = values_of(tuned.module if isinstance(tuned, nn.DataParallel) else tuned), values_of(base)
    for name, start in ((name, start) for name, start in before.items() if name in after):  # all but a table that the tuned model lacks
        inside = [one.dense().get(name, torch.zeros(start.shape, dtype=torch.bool)) for one in share.values()]
        anywhere, everywhere = torch.stack(inside).any(0), torch.stack(inside).all(0)
        assert equal(torch.where(anywhere, start, made[name]), start), f"{how}: outside the masks of {name}"
        still = (after[name] == start) | (after[name].isnan() & start.isnan()) if after[name].dtype == start.dtype else ~anywhere
        found, known = (torch.where(still, one.detach(), torch.zeros_like(start)) for one in (made[name], start))
        assert name not in dict(base.named_parameters()) or bytes_in(found) == bytes_in(known), f"{how}: unmoved values of {name}"
        stitched = how in ("mean", "largest", "sequence") or (how == "average" and bool((anywhere == everywhere).all()))
        if stitched and name in mask.region.shapes:
            found, known = (torch.where(anywhere, one.detach().to(start.dtype), start.detach()).to(torch.complex128) for one in (made[name], after[name]))
            assert torch.allclose(found, known, rtol=1e-6, atol=1e-6, equal_nan=True), f"{how} of {name}"


def do_optimizer(dice: random.Random, base: nn.Module, tuned: nn.Module) -> None:
    mask, model = find(dice, base, tuned), copy.deepcopy(base).train()
    before = {name: weight.detach().clone() for name, weight in named_weights(model).items()}
    make = usual(dice, [torch.optim.SGD, torch.optim.AdamW], [list, None])
    optimizer = sg.masked_optimizer(model, mask, make, lr=usual(dice, [0.1], [-1, "x"]))
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().sum().backward()
        optimizer.step()
    for name, weight in named_weights(model).items():
        inside = mask.dense().get(name, torch.zeros(weight.shape, dtype=torch.bool))
        assert equal(torch.where(inside, before[name], weight.detach()), before[name])


DO = [do_graft, do_grafted, do_grafted, do_merge, do_optimizer]


def calls(count: int, start: int = 0) -> tuple[Counter, list[str]]:
    """What that many calls came to, and all that went wrong."""
    came_to, wrong = Counter(), []
    for number in range(start, start + count):
        dice = random.Random(number)
        base, tuned = pair(dice)
        before, act = (bits(base), bits(tuned)), dice.choice(DO)
        sides = dice.choices([(base, tuned), (base, base), (base, None), (base, Some(dice))], [20, 1, 1, 1])[0]
        try:
            act(dice, *sides)
            came_to["right"] += 1
        except GraftError as error:
            came_to[type(error).__name__] += 1
            if "\n" in str(error):
                wrong.append(f"{number} {act.__name__}: more than a line: {error}")
        except AssertionError as error:
            wrong.append(f"{number} {act.__name__}: wrong: {str(error)[:300]}")
        except Exception as error:
            wrong.append(f"{number} {act.__name__}: raw {type(error).__name__}: {str(error)[:300]}")
        if (bits(base), bits(tuned)) != before:
            wrong.append(f"{number} {act.__name__}: a model is not as before")
    return came_to, wrong


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("skill_grafting").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.getLogger("skill_grafting").setLevel(logging.NOTSET)


@pytest.mark.timeout(3600)
def test_random_calls_are_right_or_refused_and_leave_every_model_as_it_was():
    came_to, wrong = calls(CALLS)
    print(dict(came_to), f"wrong or raw: {len(wrong)} of {CALLS}")
    assert wrong == [] and came_to["right"] > CALLS / 5


def test_a_buffer_that_is_not_put_back_is_found(monkeypatch):
    put_back = swapping._Kept._put_buffer

    def forgets(kept: object, part: nn.Module, name: str, *more: object) -> None:
        if name != "running_var":
            put_back(kept, part, name, *more)

    monkeypatch.setattr(swapping._Kept, "_put_buffer", forgets)
    _, wrong = calls(100)
    assert any("do_grafted: a model is not as before" in line for line in wrong)
