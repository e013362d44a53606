"""The learned mask (paper, equations 2 to 4).

The paper relaxes a binary mask to

    gamma = base * (1 - sigmoid(S)) + (1 - base) * sigmoid(S),    sigmoid(S) near 0 at the start,

and takes gradient steps on S for the loss of  pretrained + gamma * (finetuned - pretrained).
Since 1 - sigmoid(S) = sigmoid(-S), putting T = -S on the base and T = S elsewhere gives
gamma = sigmoid(T), and a gradient step on S is the same step on T.  So one array of *mask logits* T
is all the state there is: it starts at +offset on the base and at -offset elsewhere, and
gamma > 0.5 means T > 0.  Beyond the model and its gradients this holds three arrays of the
region's size: pretrained, finetuned, T.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from stages.lib.graft.mask import GraftMask
from stages.lib.graft.region import Region, Tensors
from stages.lib.graft.select import kth_largest, top_k
from stages.lib.localizers.evidence import Evidence
from stages.lib.localizers.movement import movement_mask, rank_by_movement
from stages.lib.localizers.registry import Budget, FoundMask, Localizer
from stages.lib.localizers.settings import Learning


@dataclass(frozen=True)
class LearnedMask:
    """What came out: the best mask, the step it was found at, and what was seen on the way."""

    mask: GraftMask
    step: int
    history: list[dict[str, float]]


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
            logits[name].view(-1)[indices.to(logits[name].device)] = offset
        return cls(base.region, pretrained, finetuned, logits)

    def blend_into(self, weights: Tensors) -> None:
        """Set weights to pretrained + sigmoid(T) * (finetuned - pretrained), in place (equation 3)."""
        for name, logits in self.logits.items():
            torch.lerp(self.pretrained[name], self.finetuned[name], torch.sigmoid(logits), out=weights[name].data)

    def gradient(self, name: str, weight_gradient: Tensor, l1: float = 0.0) -> Tensor:
        """d(Loss + l1 * sum of sigmoid(T))/dT of one tensor, from dLoss/dweight."""
        gamma = torch.sigmoid(self.logits[name])
        slope = gamma.mul_(1 - gamma)
        if l1:
            return slope.mul_((self.finetuned[name] - self.pretrained[name]).mul_(weight_gradient).add_(l1))
        return slope.mul_(self.finetuned[name] - self.pretrained[name]).mul_(weight_gradient)

    def step(self, weights: Tensors, rate: float, l1: float = 0.0) -> None:
        """One gradient step on T."""
        for name, logits in self.logits.items():
            logits.sub_(self.gradient(name, weights[name].grad, l1), alpha=rate)

    def relative_rate(self, weights: Tensors, settings: Learning, k: int) -> float:
        """The step size that `rate_kind="relative"` stands for, from the first gradient.

        With learning_rate 1 the parameter that is at place `k` among those that want in would get there just at the
        last step, if gradients stayed as they are.  That has no unit of the loss, the model or the data set.
        Near -offset the slope of sigmoid grows like exp(T), so a logit that rises by u a step takes
        about 1/u steps to the threshold: the rate is learning_rate / (steps * u) for u at place `k`.
        """
        # kept in the weights, which are blended anew before they are used again: no fourth array
        for name, weight in weights.items():
            weight.data.copy_(self.gradient(name, weight.grad, settings.l1).neg_())
        wants_in = {name: weight.data for name, weight in weights.items()}
        positive = sum(int((rise > 0).sum()) for rise in wants_in.values())
        if positive == 0:
            return 0.0
        reference = float(kth_largest(self.region, wants_in, min(k, positive)))
        return settings.learning_rate / (settings.steps * reference)

    def rounded(self, budget: Budget) -> GraftMask:
        """The binary mask: the budget.k highest logits, or (threshold) those above 0 among them.

        Ranked by T, since sigmoid(T) saturates into ties; equal logits are ordered by movement.
        """
        k = budget.k
        if budget.rule == "threshold":
            k = min(k, sum(int((logits > 0).sum()) for logits in self.logits.values()))
        return top_k(self.region, self.logits, k, self.movement_at)

    def movement_at(self, name: str, indices: Tensor) -> Tensor:
        """|finetuned - pretrained| at these flat indices of one tensor."""
        at = indices.to(self.logits[name].device)
        return (self.finetuned[name].reshape(-1)[at] - self.pretrained[name].reshape(-1)[at]).abs()

    def round_into(self, weights: Tensors, mask: GraftMask) -> None:
        """Set weights to the binary graft, in place."""
        for name in self.region.shapes:
            weights[name].data.copy_(self.pretrained[name])
            if name in mask.indices:
                at = mask.indices[name].to(weights[name].device)
                weights[name].data.view(-1)[at] = self.finetuned[name].reshape(-1)[at]


def learn_mask(
    weights: Tensors,
    start: MaskLogits,
    budget: Budget,
    settings: Learning,
    loss_gradient: Callable[[], float],
    dev_score: Callable[[], tuple[float, float]] | None = None,
) -> LearnedMask:
    """Learn which parameters carry the skill, as many as the budget allows.

    weights: the live parameters of the model, overwritten; `loss_gradient()` computes the training
    loss with them and leaves dLoss/dweight in their `.grad`.  `rate_kind="absolute"` steps by `learning_rate` times
    the gradient, as the paper does (1e7, tuned to RoBERTa-base), `"relative"` by MaskLogits.relative_rate.
    `dev_score()` rates the model with the rounded graft in place every `eval_steps` steps, higher tuples better; the
    best one seen is returned, the first of equals.  Raises FloatingPointError if the loss is not a number.
    """
    history: list[dict[str, float]] = []
    best: tuple[tuple[float, float], GraftMask, int] | None = None
    rate = settings.learning_rate
    rates_dev = dev_score is not None and settings.eval_steps > 0
    for step in range(settings.steps + 1):
        if step == settings.steps or (rates_dev and step % settings.eval_steps == 0):
            mask, score = start.rounded(budget), (float(step), 0.0)
            if rates_dev:
                start.round_into(weights, mask)
                score = dev_score()
                rated = {"selected": mask.selected, "dev_accuracy": score[0], "dev_loss": -score[1]}
                history.append({"step": step, **rated})
            if best is None or score > best[0]:
                best = (score, mask, step)
        if step < settings.steps:
            start.blend_into(weights)
            loss = loss_gradient()
            if not math.isfinite(loss):
                raise FloatingPointError(f"the loss became {loss} at step {step}")
            if step == 0 and settings.rate_kind == "relative":
                rate = start.relative_rate(weights, settings, budget.k)
            start.step(weights, rate, settings.l1)
            history.append({"step": step, "train_loss": loss})
    return LearnedMask(best[1], best[2], history)


def refine_by_learning(evidence: Evidence, settings: Learning, order: Tensor, budget: Budget) -> FoundMask:
    """The learned mask whose base is the first int(base_share * k) of `order`."""
    base = movement_mask(evidence.region, order, int(settings.base_share * budget.k))
    start = MaskLogits.around(base, evidence.pretrained, evidence.finetuned, settings.offset)
    gradient = evidence.batch_gradients(settings.batch_size)
    learned = learn_mask(evidence.weights, start, budget, settings, gradient, evidence.dev_score)
    return FoundMask(learned.mask, {"rule": budget.rule, "step": learned.step, "history": learned.history})


LOCALIZER = Localizer("learned from a base of those that moved most", rank_by_movement, refine_by_learning)
