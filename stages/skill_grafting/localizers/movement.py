"""Movement: rank parameters by how far fine-tuning moved them (paper, section 2.3)."""

import torch
from torch import Tensor

from ..grafting.mask import GraftMask
from ..grafting.region import Region, Tensors
from ..grafting.select import LazyTensors, ranking
from ..settings import Section
from .evidence import LocalizerInput
from .registry import Localizer


def movement(pretrained: Tensors, finetuned: Tensors, region: Region) -> Tensors:
    """|theta_ft - theta_pre| of every parameter of the region, same shapes; one tensor at a time, when it is asked for."""
    return LazyTensors(region.shapes, lambda name: (_exact(finetuned[name]) - _exact(pretrained[name])).abs())


def _exact(values: Tensor) -> Tensor:
    """As a type in which differences aren't rounded to the last digits of a narrower one, and whole numbers don't wrap around."""
    if values.dtype in (torch.bfloat16, torch.float16):
        return values.float()
    return values if values.is_floating_point() or values.is_complex() else values.double()


def movement_order(pretrained: Tensors, finetuned: Tensors, region: Region, k: int) -> Tensor:
    """Region indices (int64, shape (k,)) of the k parameters that moved most, furthest first."""
    return ranking(region, movement(pretrained, finetuned, region), k)


def movement_mask(region: Region, order: Tensor, k: int) -> GraftMask:
    """The mask of the k parameters that moved most, from a stored order; raises ValueError if that is of fewer."""
    if k > len(order):
        raise ValueError(f"the stored order has {len(order)} parameters, {k} were asked for")
    return GraftMask.from_region_indices(region, order[:k])


def rank_by_movement(evidence: LocalizerInput, _settings: Section, k: int) -> Tensor:
    """Region indices of the k parameters that moved most."""
    return movement_order(evidence.pretrained, evidence.finetuned, evidence.region, k)


LOCALIZER = Localizer("moved most in fine-tuning", rank_by_movement)
