"""The one trainer: gradient steps on chosen parameters of a model."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from skill_grafting.grafting.mask import GraftMask
from skill_grafting.modules.masked import MaskedParameters
from skill_grafting.support.errors import TrainingError
from stages.text.models.batching import shuffled
from stages.text.models.encoding import Example
from stages.text.models.label_model import LabelModel
from stages.text.models.predicting import DIVERGED, loss_of

Score = tuple[float, float]  # accuracy, and the loss with its sign turned
Best = tuple[Score, int, dict[str, Tensor]]
DevScore = Callable[[], Score]
Part = tuple[LabelModel, list[Example]]
Proximal = Callable[[dict[str, Tensor], float], object]
Batches = Iterator[list[Part]]

# Losses are averaged over this many steps in the stored curve; they stay on the device until then, since reading one waits for it.
CURVE_STEPS = 10
# in the names of what does not decay by `decay: authors`, but in none of GPT-2's norms (src/trainer.py:189, src/gpt_trainer.py:21 at 76f4aa8)
NO_DECAY = ("bias", "LayerNorm.weight")


@dataclass(frozen=True)
class TrainPlan:
    """The plan of training: everything but the data and the parameters.

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
    decay: Literal["all", "authors"] = "all"
    clip_norm: float = 0.0
    l1: float = 0.0
    eval_steps: int = 0
    ties: Literal["loss", "first", "last"] = "loss"
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        if self.warmup_steps and self.warmup_steps >= self.steps:
            raise TrainingError(
                f"the warm-up of {self.warmup_steps} steps is not shorter than training's {self.steps}, so that the "
                f"learning rate would never reach {self.learning_rate}; lower surgery.training.warmup_steps"
            )

    def is_better(self, score: Score, best: Score) -> bool:
        """Whether the weights with this dev score take the place of the best so far."""
        if self.ties == "loss":
            return score > best
        return score[0] > best[0] or (self.ties == "last" and score[0] == best[0])

    def factor(self, step: int) -> float:
        """The factor of the learning rate in a step, counted from 0."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return 1.0
        return max(0.0, 1 - (step - self.warmup_steps) / (self.steps - self.warmup_steps))


@dataclass
class Training:
    """The outcome of training: losses, dev scores, and the step whose weights the model now has."""

    step: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)
    dev: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Hooks:
    """Functions called during training: `dev_score` rates the weights as they are, `on_step` comes after every step.

    `proximal` may move the leaves that it is called with, right after the optimizer has, and is told the step's learning rate.
    """

    dev_score: DevScore | None = None
    on_step: Callable[[], object] = lambda: None
    proximal: Proximal | None = None


NO_HOOKS = Hooks()


def batches_of(model: LabelModel, examples: list[Example], batch_size: int, generator: np.random.Generator) -> Batches:
    """Endless shuffled batches of one model's examples."""
    return ([(model, [examples[row] for row in batch])] for batch in shuffled(examples, batch_size, generator))


def train(
    batches: Batches,
    trained: dict[str, Tensor],
    plan: TrainPlan,
    hooks: Hooks = NO_HOOKS,
    only: GraftMask | None = None,
) -> Training:
    """Train `trained` (live parameters, the only ones that require gradients) and leave them trained.

    Each step takes a batch in parts, each with the model that reads it, which may be another view of the same weights (see
    models/shared.py).
    With `only`, what the mask doesn't select of its region keeps every bit, and the optimizer's state has the size of the
    mask; parameters outside the region (a new head) are trained whole.  Clipping looks at the gradient of all of `trained`,
    so that what the mask selects moves at the rate at which it would move among them.

    With `plan.eval_steps` the weights of the best dev score are kept, of equals by `plan.ties`; else the
    last.  `plan.l1` adds l1 * ||theta - theta_start||_1 to the loss (paper, section 3.2), its gradient once that of the rest is
    clipped.
    Raises TrainingError, within ten steps, if the loss is not a number.
    """
    state, readers = TrainerState(trained, plan, only), {}
    for step in range(1, plan.steps + 1):
        batch = next(batches)
        readers |= {id(model): model for model, _ in batch}
        state.step(batch, step, hooks.proximal)
        hooks.on_step()
        state.look(step, hooks.dev_score)
    state.end()
    for model in readers.values():
        model.model.eval()
    return state.done


class TrainerState:
    """The state of a training: the leaves, the optimizer, losses and dev scores so far, and the best weights."""

    def __init__(self, trained: dict[str, Tensor], plan: TrainPlan, only: GraftMask | None) -> None:
        self.plan, self.leaves = plan, MaskedParameters(trained, only)
        self.start = self.leaves.snapshot() if plan.l1 else {}
        self.optimizer, self.scheduler = _optimizer(self.leaves, plan)
        self.done, self.losses = Training(plan.steps), list[float]()
        self.unread: dict[int, Tensor] = {}
        self.best: Best | None = None

    def step(self, batch: list[Part], step: int, proximal: Proximal | None) -> None:
        """One step on a batch."""
        self.unread[step] = _gradients(batch, self.leaves, self.plan)
        _pull_back(self.leaves, self.start, self.plan.l1)
        self.optimizer.step()
        if proximal:
            proximal(self.leaves.values, self.scheduler.get_last_lr()[0])
        self.leaves.write_back()
        self.scheduler.step()

    def look(self, step: int, dev_score: DevScore | None) -> None:
        """Note the loss, and the dev score with the best weights so far, if these are due after a step."""
        plan, last = self.plan, step == self.plan.steps
        rates = dev_score and plan.eval_steps and (step % plan.eval_steps == 0 or last)
        if step % CURVE_STEPS == 0 or last or rates:
            self.read_losses()
        if step % CURVE_STEPS == 0 or last:
            self.done.curve.append({"step": step, "train_loss": float(np.mean(self.losses))})
            self.losses = []
        if rates:
            score = dev_score()
            self.done.dev.append({"step": step, "accuracy": score[0], "loss": -score[1]})
            if self.best is None or plan.is_better(score, self.best[0]):
                self.best = score, step, self.leaves.snapshot()

    def read_losses(self) -> None:
        """Take the losses of the last steps from the device; raises TrainingError with the first step whose is not a number."""
        if not self.unread:
            return
        for step, value in zip(self.unread, torch.stack([*self.unread.values()]).tolist(), strict=True):
            if not math.isfinite(value):
                plan = self.plan
                raise TrainingError(
                    f"the loss became {value} at step {step} of {plan.steps} (learning rate {plan.learning_rate}, "
                    f"batch size {plan.batch_size}); {DIVERGED}"
                )
            self.losses.append(value)
        self.unread = {}

    def end(self) -> None:
        """Restore the best weights, if dev was rated."""
        if self.best:
            self.done.step = self.best[1]
            self.leaves.restore(self.best[2])


def _gradients(batch: list[Part], leaves: MaskedParameters, plan: TrainPlan) -> Tensor:
    """Leave the gradient of a batch's loss, the mean over the rows of all its parts, in the leaves; gives the loss."""
    leaves.clear()  # so that a head whose task isn't in this batch doesn't move
    rows, losses = sum(len(examples) for _, examples in batch), []
    for model, examples in batch:
        model.model.train()
        loss = loss_of(model, model.batch(examples)) * (len(examples) / rows)
        loss.backward()
        losses.append(loss.detach())
    if plan.clip_norm:
        leaves.clip(plan.clip_norm)
    leaves.take_gradients()
    return torch.stack(losses).sum()


@torch.no_grad()
def _pull_back(leaves: MaskedParameters, start: dict[str, Tensor], l1: float) -> None:
    """Add the gradient of l1 * ||theta - start||_1."""
    for name, before in start.items():
        leaf = leaves.values[name]
        if leaf.grad is not None:
            leaf.grad.add_(torch.sign(leaf - before), alpha=l1)


def _optimizer(leaves: MaskedParameters, plan: TrainPlan) -> tuple[Any, Any]:
    kept, parts = NO_DECAY if plan.decay == "authors" else (), {0.0: [], plan.weight_decay: []}
    for name, leaf in leaves.values.items():
        parts[0.0 if any(part in name for part in kept) else plan.weight_decay].append(leaf)
    groups = [{"params": part, "weight_decay": decay} for decay, part in parts.items() if part]
    if plan.optimizer == "sgd":
        optimizer = torch.optim.SGD(groups, lr=plan.learning_rate, momentum=plan.momentum)
    else:
        optimizer = torch.optim.AdamW(groups, lr=plan.learning_rate)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, plan.factor)
