"""The one trainer: gradient steps on chosen parameters of a model."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from skill_grafting.grafting.mask import GraftMask
from stages.text.models.batching import shuffled
from stages.text.models.encoding import Example
from stages.text.models.label_model import LabelModel
from stages.text.training.course import DevScore, Part, Proximal, TrainerState, Training, TrainPlan

Batches = Iterator[list[Part]]


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
    course, readers = TrainerState(trained, plan, only), {}
    for step in range(1, plan.steps + 1):
        batch = next(batches)
        readers |= {id(model): model for model, _ in batch}
        course.step(batch, step, hooks.proximal)
        hooks.on_step()
        course.look(step, hooks.dev_score)
    course.end()
    for model in readers.values():
        model.model.eval()
    return course.done
