"""The learned mask (paper, equations 2 to 4).

The paper relaxes a binary mask to

    gamma = base * (1 - sigmoid(S)) + (1 - base) * sigmoid(S),    sigmoid(S) near 0 at the start,

and takes gradient steps on S for the loss of  pretrained + gamma * (finetuned - pretrained).
Since 1 - sigmoid(S) = sigmoid(-S), putting T = -S on the base and T = S elsewhere gives
gamma = sigmoid(T), and a gradient step on S is the same step on T.  So one array of *mask logits* T
is all the state there is: it starts at +offset on the base and at -offset elsewhere, and
gamma > 0.5 means T > 0.  Beyond the model and its gradients this holds three arrays of the
region's size: pretrained, finetuned, T.

Steps are full-batch as long as the training set is no larger than `batch_size`.  `select` says which step's mask is kept: the
last one's, or that of the best score on train plus dev, as the paper's authors choose it (their `train_graft`).  The record
says where the loss on all training rows began and ended, of the weights between both models that the steps move, before rounding.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from ..grafting.apply import graft_into, put_at
from ..grafting.mask import GraftMask
from ..grafting.region import Region, Tensors
from ..grafting.select import Elementwise, best, pieces
from ..support.errors import ParamsError, TrainingError
from ..support.fields import Count, Positive, Rate, Weight
from .localizer import LOGGER, Budget, LocalizerInput
from .movement import Movement, distance

# losses of so many steps are read from the device at once, since reading one waits for it
READ_STEPS = 10
# smaller batches than the training set don't show whether its loss falls: it is measured at the start, at most so often on the way,
# and at the end
MEASURED = 4
# examples of each batch whose mean losses Localize-and-Stitch sums (localize_utils.py: train_graft divides by first_batch, always 1)
SUMMED_BATCH = 8
# share of the region from which on movement kept more (docs/METHODS.md)
LARGE = 0.1


class Learned(Movement):
    """The parameters that the paper's method learns, starting from those that moved most."""

    needs_model = True

    base_share: float = Field(0.1, ge=0, le=1, description="size of the base as a share of the budget")
    # beyond, the slope of a mask value this near 1 is lost in float32
    offset: float = Field(10.0, gt=0, le=12, description="mask logits start at -offset, on the base at +offset")
    l1: Weight = Field(0.0, description="weight in the loss of the sum over the region that l1_of names")
    l1_of: Literal["values", "distances"] = Field(
        "values",
        description="values: of the mask values; distances: of theirs to 0 or 1, whichever is nearer (Localize-and-Stitch)",
    )
    steps: Count = Field(20, description="gradient steps on the mask logits; 0 keeps the base alone")
    rate_kind: Literal["relative", "absolute", "summed"] = Field(
        "relative",
        description="relative: scale-free; absolute: on the mean loss, the paper's; summed: on the sum of the mean losses of "
        "batches of 8, Localize-and-Stitch's",
    )
    learning_rate: Rate = Field(
        4.0,
        description="relative: at 1 the mask is full at the last step, at 4 after a quarter of them; else the step size",
    )
    batch_size: Positive = Field(1024, description="examples per step; the whole training set if it is smaller")
    rule: Literal["top_k", "threshold"] = Field(
        "top_k", description="top_k: exactly the budget; threshold: mask values above 0.5, at most the budget"
    )
    select: Literal["last", "authors"] = Field(
        "authors",
        description="the step whose mask is kept; authors: best score on train plus dev, the last without dev rows",
    )
    eval_steps: Positive = Field(2, description="steps between scores, unless select is last")

    def steps_for(self, masks: int) -> int:
        """Those of each mask, which are apart."""
        return masks * self.steps

    def refine(self, given: LocalizerInput, order: Tensor, budget: Budget) -> GraftMask:
        """The mask learned from the first int(base_share * k) of the order; see `learn_mask`."""
        if budget.k >= LARGE * given.region.size:
            LOGGER.warning("learned: from 10 % of the region on, movement kept more in our study, and it takes no loss")
        base = GraftMask.from_region_indices(given.region, order[: int(self.base_share * budget.k)])
        start = MaskLogits.around(base, given.pretrained, given.finetuned, self.offset)
        gradient, settings = given.batch_gradients(self.batch_size), self.on_mean_loss(given.examples)
        watched = Watched(given.scores, given.loss, 0 < given.examples <= self.batch_size, given.on_step)
        return learn_mask(given.weights, start, budget.k, settings, gradient, watched)

    def on_mean_loss(self, examples: int) -> "Learned":
        """The same search as steps on the mean loss of all these training examples: `summed` as an absolute rate.

        The sum of the mean losses of batches of 8 is the mean loss times the number of batches, while l1 stands beside the sum.
        """
        if self.rate_kind != "summed":
            return self
        if not examples:
            raise ParamsError(
                "rate_kind: summed needs the number of training examples, which isn't known here; say absolute"
            )
        batches = examples / SUMMED_BATCH
        changes = {"rate_kind": "absolute", "learning_rate": self.learning_rate * batches, "l1": self.l1 / batches}
        return self.model_copy(update=changes)


@dataclass
class MaskLogits:
    """T for every tensor of the region, with the two models it blends."""

    region: Region
    pretrained: Tensors
    finetuned: Tensors
    logits: dict[str, Tensor]

    @classmethod
    def around(cls, base: GraftMask, pretrained: Tensors, finetuned: Tensors, offset: float) -> "MaskLogits":
        """T = +offset on the base mask, -offset elsewhere."""
        logits = {name: torch.full_like(pretrained[name], -offset) for name in base.region.shapes}
        for name, indices in base.indices.items():
            put_at(logits[name], indices, torch.tensor(offset, dtype=torch.float64))
        return cls(base.region, pretrained, finetuned, logits)

    def blend_into(self, weights: Tensors) -> None:
        """Set weights to pretrained + sigmoid(T) * (finetuned - pretrained), in place (equation 3)."""
        for name, logits in self.logits.items():
            for weight, before, after, part in pieces(
                weights[name], self.pretrained[name], self.finetuned[name], logits
            ):
                weight.copy_(before).lerp_(after, part.sigmoid())

    def step(self, weights: Tensors, rate: float, l1: float = 0.0, l1_of: str = "values") -> None:
        """One gradient step on T."""
        for name, logits in self.logits.items():
            for part, *given in pieces(logits, *self._given(name, weights)):
                part.sub_(_gradient(part, *given, l1, l1_of), alpha=rate)

    def _given(self, name: str, weights: Tensors) -> tuple[Tensor, Tensor, Tensor]:
        return self.pretrained[name], self.finetuned[name], weights[name].grad

    def relative(self, weights: Tensors, settings: Learned, k: int) -> float:
        """The step size that `rate_kind="relative"` stands for, from the first gradient of the loss.

        Its measure is u, how far the loss lifts the parameter at place `k` among those that it wants in.  Near -offset the
        slope of sigmoid grows like exp(T), so a logit that rises by u a step takes about 1/u steps to the threshold:
        with learning_rate 1, i.e. learning_rate / (steps * u), that parameter would get there just at the last step.
        It has no unit of the loss, the model or the data set.  Where the loss wants in few more than `k` the measure is the
        median of them: the least of all is next to 0.
        """
        # stored in the weights, which are overwritten before their next use: saves a fourth array
        rises = {name: weight.data for name, weight in weights.items()}
        for name, logits in self.logits.items():
            for rise, *given in pieces(rises[name], logits, *self._given(name, weights)):
                rise.copy_(_gradient(*given).neg_())
        wanted = int(sum((rise > 0).sum() for rise in rises.values()))
        if wanted == 0:
            return 0.0
        measure = float(best(self.region, rises, min(k, (wanted + 1) // 2))[0].min())
        return settings.learning_rate / (settings.steps * measure)

    def rounded(self, k: int, rule: Literal["top_k", "threshold"]) -> GraftMask:
        """The binary mask: the k highest logits, or (threshold) those above 0 among them, of which its record has the number, `crossed`.

        Ranked by T, since sigmoid(T) saturates into ties; equal logits are ordered by movement.
        """
        # one more than k shows whether others equal the least of them
        logits, indices = best(self.region, self.logits, min(k + 1, self.region.size))
        least = logits.min().clamp(min=0 if rule == "threshold" else -torch.inf)
        above = indices[logits > least]
        if len(above) < k and (rule == "top_k" or least > 0):
            moved = Elementwise(
                self.region.shapes, partial(_moved_at, least), self.logits, self.pretrained, self.finetuned
            )
            above = torch.cat([above, best(self.region, moved, k - len(above))[1]])
        mask = GraftMask.from_region_indices(self.region, above)
        if rule == "top_k":
            return mask
        return replace(mask, record={"crossed": sum(int((part > 0).sum()) for part in self.logits.values())})


def _gradient(
    logits: Tensor, before: Tensor, after: Tensor, gradient: Tensor, l1: float = 0.0, l1_of: str = "values"
) -> Tensor:
    """d(Loss + l1 * sum)/dT, from dLoss/dweight; the sum is of sigmoid(T), or of min(sigmoid(T), 1 - sigmoid(T))."""
    gamma = logits.sigmoid()
    slope = gamma.mul_(1 - gamma)
    moved = after - before
    if l1:
        pull = l1 if l1_of == "values" else torch.where(logits > 0, -l1, l1)
        return slope.mul_(moved.mul_(gradient).add_(pull))
    return slope.mul_(moved).mul_(gradient)


def _moved_at(least: Tensor, logits: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """How far those moved whose logits are the least, and -inf for all others."""
    return torch.where(logits == least, distance(before, after), -torch.inf)


@dataclass(frozen=True)
class Watched:
    """What a search is watched by, with the weights as they are; what isn't there is not looked at.

    scores: those of a graft, by which its mask may be chosen.  loss: the mean loss on all training rows; `whole`: each batch has all
    of them, so that its loss is that.  on_step: is told of each step.
    """

    scores: Callable[[], Mapping[str, float]] | None = None
    loss: Callable[[], float] | None = None
    whole: bool = False
    on_step: Callable[[], object] = lambda: None


UNWATCHED = Watched()


@dataclass
class History:
    """Losses and scores of a search, by step, in the order in which they were measured."""

    entries: list[dict[str, float]] = field(default_factory=list)
    unread: dict[int, Tensor] = field(default_factory=dict)

    def add(self, step: int, **values: float) -> None:
        """Put in what was measured at a step, after the losses that weren't read yet; raises TrainingError if a loss is no number."""
        self.read()
        for name, value in values.items():
            if name.endswith("loss") and not math.isfinite(value):
                first = "nothing was learned yet: check the rows and both models"
                hint = "lower the localizer's learning_rate" if step else first
                raise TrainingError(f"the loss became {value} at step {step}; {hint}")
        self.entries.append({"step": step, **values})

    def take(self, step: int, loss: Tensor) -> None:
        """Keep the training loss of a step, which is on the device, until it is read with others."""
        self.unread[step] = loss
        if len(self.unread) == READ_STEPS:
            self.read()

    def read(self) -> None:
        """Put in the losses of the last steps, which are still on the device."""
        losses, self.unread = self.unread, {}
        for step, value in zip(losses, torch.stack([*losses.values()]).tolist() if losses else (), strict=True):
            self.add(step, train_loss=value)

    def record(self, whole: bool) -> dict[str, list]:
        """The `history`, and the first and the last `loss` on all training rows; `whole`: each batch has all of them."""
        names = ("train_loss", "whole_loss") if whole else ("whole_loss",)
        losses = [entry[name] for entry in self.entries for name in names if name in entry]
        return ({"loss": [losses[0], losses[-1]]} if losses else {}) | {"history": self.entries}


def learn_mask(
    weights: Tensors, start: MaskLogits, k: int, settings: Learned, gradient: Callable, watched: Watched = UNWATCHED
) -> GraftMask:
    """Learn which k parameters carry the skill, or at most k (`rule`: threshold); overwrites the logits and the live weights.

    `gradient()` gives the training loss of the weights as they are, and leaves dLoss/dweight in their `.grad`.
    The mask is that of the highest sum of scores, the first of equals; without scores, or with `select` last, that of the last step.
    Its record: the `rule`, its `step`, the `loss` on all training rows at the start and at the end, the `history`.
    Raises TrainingError, within ten steps, if the loss is not a number.
    """
    rate, history, best = settings.learning_rate, History(), None
    scores = watched.scores if settings.select == "authors" else None

    def better(step: int) -> tuple[float, int, GraftMask]:
        history.read()
        mask, found = start.rounded(k, settings.rule), {}
        if scores:
            graft_into(weights, start.pretrained, start.finetuned, mask)
            found = scores()
            history.add(step, selected=mask.selected, **found)
        score = sum(found.values())
        return (score, step, mask) if best is None or score > best[0] else best

    for step in range(settings.steps):
        if scores and step and step % settings.eval_steps == 0:
            best = better(step)
        start.blend_into(weights)  # equation 3
        if watched.loss and not watched.whole and step % max(settings.eval_steps, settings.steps // MEASURED) == 0:
            history.add(step, whole_loss=watched.loss())
        history.take(step, gradient())
        if step == 0 and settings.rate_kind == "relative":
            history.read()
            rate = start.relative(weights, settings, k)
        start.step(weights, rate, settings.l1, settings.l1_of)  # equation 4
        watched.on_step()
    if watched.loss:
        start.blend_into(weights)
        history.add(settings.steps, whole_loss=watched.loss())
    _, step, mask = better(settings.steps)
    return replace(mask, record={"rule": settings.rule, **mask.record, "step": step, **history.record(watched.whole)})
