"""Task arithmetic (Ilharco et al., 2023: Editing models with task arithmetic): vectors of whole models, their sums and what is added to a model.

Vectors and their sums are float64, so that they lose nothing of the float32 weights; a merged model has the type of the pretrained one.
Which names are merged is the caller's choice: those of `pretrained`.  A new head has no pretrained values: leave it out and keep it
trained.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..grafting.differences import difference, is_whole, widest
from ..grafting.region import Tensors
from ..support.errors import MaskError

# least number of tasks that have to select a parameter
LEAST = 2


def task_vector(pretrained: Tensors, finetuned: Tensors) -> dict[str, Tensor]:
    """finetuned - pretrained for every name of `pretrained`, same shapes, float64, or complex128 of complex numbers."""
    return {
        name: difference(values.detach(), finetuned[name].detach(), wide=True) for name, values in pretrained.items()
    }


def add(vectors: Mapping[str, Tensors]) -> dict[str, Tensor]:
    """The sum of the vectors of tasks, float64: task -> vector, at least one, all of the same names.

    Summed in the order of the tasks' names, so every order of `vectors` gives the same bits.
    """
    first, *others = sorted(vectors)
    total = {name: widest(values).clone() for name, values in vectors[first].items()}
    for task in others:
        for name, values in vectors[task].items():
            total[name] += values
    return total


def shifted(pretrained: Tensors, vector: Tensors, alpha: float = 1.0) -> dict[str, Tensor]:
    """pretrained + alpha * vector: new tensors of the type of `pretrained`.

    Alpha 0 gives the pretrained values bit for bit.  Alpha 1 with the vector of one task gives the
    fine-tuned ones bit for bit, but for float32 values that became 2^28 times smaller in fine-tuning.
    """
    if alpha == 0:
        return {name: values.detach().clone() for name, values in pretrained.items()}
    return {name: moved_by(values.detach(), vector[name], alpha) for name, values in pretrained.items()}


def moved_by(values: Tensor, vector: Tensor, alpha: float = 1.0, wide: bool = False) -> Tensor:
    """values + alpha * vector in the type of the values, or the `wide` one in which it is summed; whole numbers are rounded at the end."""
    if is_whole(values):
        along, kind = (alpha * vector).round(), values.dtype
        made = values.long() + along.long()
        roughly = values.double() + along  # which doesn't wrap around
        if not (
            torch.equal(made.to(kind).long(), made) and bool(((made.to(kind).double() - roughly).abs() < 2.0**62).all())
        ):
            raise MaskError(f"whole numbers come to more than {kind} holds; take another rule, or a smaller alpha")
        return made.to(kind)
    made = widest(values) + (vector if alpha == 1 else alpha * vector)
    return made if wide else made.to(values.dtype)


def alpha_grid(points: int) -> list[float]:
    """So many evenly spaced alphas from 0 to 1, both included; 21 points are 0, 0.05, ..., 1."""
    return [round(point / (points - 1), 10) for point in range(points)]


def choose_alpha(scores: Mapping[float, float]) -> float:
    """The alpha with the highest score, of equal ones the smallest; scores: alpha -> score, in any order."""
    return max(sorted(scores), key=scores.__getitem__)  # max keeps the first of equals


def normalised(score: float, single: float) -> float | None:
    """The score of a merged model on a task / that of the task's own model; None where that one scores 0."""
    return score / single if single else None


def mean_normalised(scores: Mapping[str, float], singles: Mapping[str, float]) -> float:
    """The mean over tasks of `normalised`, tasks whose own model scores 0 left out; 0 if that leaves none."""
    shares = [normalised(score, singles[task]) for task, score in sorted(scores.items())]
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if known else 0.0


def combined(
    pretrained: Tensors, vectors: Mapping[str, Tensors], coefficients: Mapping[str, float]
) -> dict[str, Tensor]:
    """pretrained + sum of coefficient * vector over the named vectors: new tensors of the type of `pretrained`.

    A coefficient of 0 is as good as none, so that points on an axis are those of a single vector, bit for bit.
    """
    moved = {name: alpha for name, alpha in coefficients.items() if alpha != 0}
    if not moved:
        return shifted(pretrained, {}, 0)
    if len(moved) == 1:
        [(name, alpha)] = moved.items()
        return shifted(pretrained, vectors[name], alpha)
    scaled = {name: {key: alpha * values for key, values in vectors[name].items()} for name, alpha in moved.items()}
    return shifted(pretrained, add(scaled))


def tall_mask(vector: Tensors, total: Tensors, strictness: float) -> dict[str, Tensor]:
    """Where a task's vector is larger than `strictness` (lambda) times that of all others together; bool, same shapes."""
    return {name: is_tall(own, total[name], strictness) for name, own in vector.items()}


def is_tall(own: Tensor, total: Tensor, strictness: float) -> Tensor:
    """The same of one tensor."""
    return own.abs() > strictness * (total - own).abs()


def within(vector: Tensors, mask: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A vector with 0 wherever the mask is not set."""
    return {name: values * mask[name] for name, values in vector.items()}


def agreed(masks: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Where LEAST masks are set, or more; bool."""
    return {name: torch.stack([mask[name] for mask in masks]).sum(0) >= LEAST for name in masks[0]}
