"""The one trainer: gradient steps on chosen parameters of a model."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import Tensor

from ..data.batching import shuffled
from ..data.encoding import Example
from ..grafting.mask import GraftMask
from ..loops import loop as kept_loop
from ..models.label_model import LabelModel
from .course import DevScore, Part, Proximal, TrainerState, Training, TrainPlan

Batches = Iterator[list[Part]]


@dataclass(frozen=True)
class Hooks:
    """Functions called during training: `dev_score` rates the weights as they are, `on_step` comes after every step.

    `proximal` may move the leaves that it is called with, right after the optimizer has, and is told the step's learning rate.
    Only where it `resumes`, training keeps checkpoints and goes on from one: then `on_step` is called for the steps before it,
    too, and nothing else is.
    """

    dev_score: DevScore | None = None
    on_step: Callable[[], object] = lambda: None
    proximal: Proximal | None = None
    resumes: bool = False


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
    loop = kept_loop(plan.steps) if hooks.resumes else None
    course, readers = TrainerState(trained, plan, only), {}
    resumed = loop.resume(course.put) if loop else 0
    for step in range(1, plan.steps + 1):
        batch = next(batches)
        readers |= {id(model): model for model, _ in batch}
        if step <= resumed:  # its batch is drawn and it is counted, nothing else
            hooks.on_step()
            continue
        course.step(batch, step, hooks.proximal)
        hooks.on_step()
        course.look(step, hooks.dev_score)
        if loop:
            loop.keep(partial(course.state, step))
    course.end()
    if loop:
        loop.finish(partial(course.state, plan.steps, finished=True))
    for model in readers.values():
        model.model.eval()
    return course.done
