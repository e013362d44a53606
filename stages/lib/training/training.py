"""The one trainer: gradient steps on chosen parameters of a model."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..data.batching import shuffled
from ..data.encoding import Example
from ..errors import TrainingError
from ..graft.mask import GraftMask
from ..models.label_model import LabelModel
from .sparse import Leaves

Batches = Iterator[tuple[LabelModel, list[Example]]]
Best = tuple[tuple[float, float], int, dict[str, Tensor]]

# Losses are averaged over this many steps in the stored curve.
CURVE_STEPS = 10


@dataclass(frozen=True)
class TrainPlan:
    """How to train: everything but the data and the parameters.

    The learning rate rises evenly over the first `warmup_steps`, and then follows the schedule over
    the rest.  Raises TrainingError if the rise takes as long as training or longer.
    """

    steps: int
    learning_rate: float
    batch_size: int
    optimizer: Literal["sgd", "adamw"] = "sgd"
    schedule: Literal["constant", "linear"] = "constant"
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    l1: float = 0.0
    eval_steps: int = 0
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        if self.warmup_steps and self.warmup_steps >= self.steps:
            raise TrainingError(
                f"the warm-up of {self.warmup_steps} steps is not shorter than training's {self.steps}, so that the "
                f"learning rate would never reach {self.learning_rate}; lower surgery.training.warmup_steps"
            )

    def factor(self, step: int) -> float:
        """What the learning rate is multiplied by in a step, counted from 0."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return 1.0
        return max(0.0, 1 - (step - self.warmup_steps) / (self.steps - self.warmup_steps))


@dataclass
class Training:
    """What training did: losses, dev scores, and the step whose weights the model now has."""

    step: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)
    dev: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Hooks:
    """What training calls on its way: `dev_score` rates the weights as they are, `on_step` comes after every step.

    `penalty` adds to the gradients of the leaves it is called with (see sparse.py).
    """

    dev_score: Callable[[], tuple[float, float]] | None = None
    on_step: Callable[[], object] = lambda: None
    penalty: Callable[[dict[str, Tensor]], object] | None = None


def batches_of(model: LabelModel, examples: list[Example], batch_size: int, generator: np.random.Generator) -> Batches:
    """Endless shuffled batches of one model's examples."""
    return ((model, [examples[row] for row in batch]) for batch in shuffled(examples, batch_size, generator))


def train(
    batches: Batches, trained: dict[str, Tensor], plan: TrainPlan, hooks: Hooks = Hooks(), only: GraftMask | None = None
) -> Training:
    """Train `trained` (live parameters, the only ones that require gradients) and leave them trained.

    Each step takes a batch and the model that reads it, which may be another view of the same weights (see models/shared.py).
    With `only`, what the mask doesn't select of its region keeps every bit, and the optimizer's state has the size of the
    mask; parameters outside the region (a new head) are trained whole.  Clipping looks at the gradient of all of `trained`,
    so that what the mask selects moves at the rate at which it would move among them.

    With `plan.eval_steps` the weights of the best dev score are kept, the first of equals; else the
    last.  `plan.l1` adds l1 * ||theta - theta_start||_1 to the loss (paper, section 3.2).
    Raises TrainingError if the loss is not a number.
    """
    leaves = Leaves(trained, only)
    start = leaves.snapshot() if plan.l1 else {}
    optimizer, scheduler = _optimizer(leaves.values, plan)
    done, best, losses, readers = Training(plan.steps), None, [], {}
    for step in range(1, plan.steps + 1):
        model, examples = next(batches)
        readers[id(model)] = model
        losses.append(_gradients(model, examples, leaves, plan, step))
        _pull_back(leaves, start, plan.l1)
        if hooks.penalty:
            hooks.penalty(leaves.values)
        optimizer.step()
        leaves.write_back()
        scheduler.step()
        hooks.on_step()
        if step % CURVE_STEPS == 0 or step == plan.steps:
            done.curve.append({"step": step, "train_loss": float(np.mean(losses))})
            losses = []
        if hooks.dev_score and plan.eval_steps and (step % plan.eval_steps == 0 or step == plan.steps):
            best = _better(best, step, hooks.dev_score(), leaves, done)
    if best:
        done.step = best[1]
        leaves.restore(best[2])
    for model in readers.values():
        model.model.eval()
    return done


def _gradients(model: LabelModel, examples: list[Example], leaves: Leaves, plan: TrainPlan, step: int) -> float:
    """Leave the gradient of a batch's loss in the leaves; gives the loss."""
    model.model.train()
    leaves.clear()  # so that a head whose task isn't in this batch keeps still
    batch = model.batch(examples)
    loss = torch.nn.functional.cross_entropy(model.logits(batch), batch.labels)
    loss.backward()
    value = float(loss.detach())
    if not math.isfinite(value):
        raise TrainingError(
            f"the loss became {value} at step {step} of {plan.steps} (learning rate {plan.learning_rate}, batch size "
            f"{plan.batch_size}); lower finetune.learning_rates, or set finetune.clip_norm"
        )
    if plan.clip_norm:
        leaves.clip(plan.clip_norm)
    leaves.take_gradients()
    return value


def _better(best: Best | None, step: int, score: tuple[float, float], leaves: Leaves, done: Training) -> Best:
    """Note a dev score; gives the better of the best so far and the weights as they are."""
    done.dev.append({"step": step, "accuracy": score[0], "loss": -score[1]})
    return (score, step, leaves.snapshot()) if best is None or score > best[0] else best


@torch.no_grad()
def _pull_back(leaves: Leaves, start: dict[str, Tensor], l1: float) -> None:
    """Add the gradient of l1 * ||theta - start||_1."""
    for name, origin in start.items():
        if leaves.values[name].grad is not None:
            leaves.values[name].grad.add_((leaves.values[name] - origin).sign_(), alpha=l1)


def _optimizer(trained: dict[str, Tensor], plan: TrainPlan) -> tuple[Any, Any]:
    weights = list(trained.values())
    if plan.optimizer == "sgd":
        optimizer = torch.optim.SGD(
            weights, lr=plan.learning_rate, momentum=plan.momentum, weight_decay=plan.weight_decay
        )
    else:
        optimizer = torch.optim.AdamW(weights, lr=plan.learning_rate, weight_decay=plan.weight_decay)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, plan.factor)
