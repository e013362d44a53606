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
from .localizer import Budget, LocalizerInput
from .movement import Movement, distance

# losses of so many steps are read from the device at once, since reading one waits for it
READ_STEPS = 10
# smaller batches than the training set don't show whether its loss falls: it is measured at the start, at most so often on the way,
# and at the end
MEASURED = 4
# examples of each batch whose mean losses Localize-and-Stitch sums (localize_utils.py: train_graft divides by first_batch, always 1)
SUMMED_BATCH = 8


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

    def refine(self, given: LocalizerInput, order: Tensor, budget: Budget) -> GraftMask:
        """The mask learned from the first int(base_share * k) of the order; see `learn_mask`."""
        base = GraftMask.from_region_indices(given.region, order[: int(self.base_share * budget.k)])
        start = MaskLogits.around(base, given.pretrained, given.finetuned, self.offset)
        gradient, settings = given.batch_gradients(self.batch_size), self.on_mean_loss(given.examples)
        watched = Watched(given.scores, given.loss, whole=0 < given.examples <= self.batch_size)
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
        """The binary mask: the k highest logits, or (threshold) those above 0 among them.

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
        return GraftMask.from_region_indices(self.region, above)


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
    of them, so that its loss is that.
    """

    scores: Callable[[], Mapping[str, float]] | None = None
    loss: Callable[[], float] | None = None
    whole: bool = False


@dataclass
class MaskSearch:
    """The state of the search: T, the step size, the history, and the best mask with its step and score."""

    start: MaskLogits
    rate: float
    watched: Watched
    history: list[dict[str, float]] = field(default_factory=list)
    unread: dict[int, Tensor] = field(default_factory=dict)
    best: tuple[GraftMask, int, float] | None = None

    def read_losses(self) -> None:
        """Put the losses of the last steps into the history; raises TrainingError with the first that is not a number."""
        values = torch.stack([*self.unread.values()]).tolist() if self.unread else []
        for step, value in zip(self.unread, values, strict=True):
            self.note(step, "train_loss", value)
        self.unread = {}

    def note(self, step: int, name: str, value: float) -> None:
        """Put a loss into the history; raises TrainingError if it is not a number."""
        if not math.isfinite(value):
            hint = (
                "lower the localizer's learning_rate"
                if step
                else "nothing was learned yet: check the rows and both models"
            )
            raise TrainingError(f"the loss became {value} at step {step}; {hint}")
        self.history.append({"step": step, name: value})

    def measure(self, step: int) -> None:
        """Put the loss on all training rows into the history, with the weights as they are."""
        self.read_losses()
        self.note(step, "whole_loss", self.watched.loss())

    def losses(self) -> list[float]:
        """Those on all training rows."""
        names = ("train_loss", "whole_loss") if self.watched.whole else ("whole_loss",)
        return [entry[name] for entry in self.history for name in names if name in entry]

    def rate_mask(self, mask: GraftMask, step: int, weights: Tensors) -> None:
        """Take a mask for the best if its graft's score, where it is asked for, is above that of all before."""
        score = 0.0
        if self.watched.scores:
            graft_into(weights, self.start.pretrained, self.start.finetuned, mask)
            found = self.watched.scores()
            self.history.append({"step": step, "selected": mask.selected, **found})
            score = sum(found.values())
        if self.best is None or score > self.best[2]:
            self.best = (mask, step, score)

    def take_step(self, step: int, weights: Tensors, settings: Learned, k: int, loss_gradient: Callable) -> None:
        """One step on T, from the weights that it stands for."""
        self.start.blend_into(weights)
        every = max(settings.eval_steps, settings.steps // MEASURED)
        if self.watched.loss and not self.watched.whole and step % every == 0:
            self.measure(step)
        self.unread[step] = loss_gradient()
        if step == 0 and settings.rate_kind == "relative":
            self.read_losses()
            self.rate = self.start.relative(weights, settings, k)
        self.start.step(weights, self.rate, settings.l1, settings.l1_of)

    def found(self, rule: str) -> GraftMask:
        """The best mask, with its record."""
        mask, step, _ = self.best
        losses = self.losses()
        ends = {"loss": [losses[0], losses[-1]]} if losses else {}
        return replace(mask, record={"rule": rule, "step": step, **ends, "history": self.history})


def learn_mask(
    weights: Tensors,
    start: MaskLogits,
    k: int,
    settings: Learned,
    loss_gradient: Callable[..., Tensor],
    watched: Watched | None = None,
) -> GraftMask:
    """Learn which k parameters carry the skill, or at most k (`rule`: threshold).

    weights: the live parameters, overwritten; `loss_gradient()` computes the training loss with them and leaves dLoss/dweight
    in their `.grad`.  `rate_kind="absolute"` steps by `learning_rate` times it (paper: 1e7), `"relative"` by MaskLogits.relative.
    Scores are asked for with the rounded graft in the weights after every `eval_steps` steps and at the end; the mask of the
    highest sum is returned, the first of equals.  Without them, or with `select` last, it is that of the last step.
    Its record: the `rule`, the `step` that the mask is of, the `loss` on all training rows at the start and at the
    end, the `history` of losses and scores.
    Raises TrainingError, within ten steps, if the loss is not a number.
    """
    watched = watched or Watched()
    if settings.select == "last":
        watched = replace(watched, scores=None)
    now = MaskSearch(start, settings.learning_rate, watched)
    for step in range(settings.steps):
        if step % READ_STEPS == 0:
            now.read_losses()
        if watched.scores and step and step % settings.eval_steps == 0:
            now.read_losses()
            now.rate_mask(start.rounded(k, settings.rule), step, weights)
        now.take_step(step, weights, settings, k, loss_gradient)
    now.read_losses()
    if watched.loss:
        start.blend_into(weights)
        now.measure(settings.steps)
    now.rate_mask(start.rounded(k, settings.rule), settings.steps, weights)
    return now.found(settings.rule)
