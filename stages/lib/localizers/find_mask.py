"""One mask of one localizer, with what can go wrong said in the words of params.yaml."""

from typing import Any

from torch import Tensor

from stages.lib.errors import MaskError, TrainingError
from stages.lib.graft.mask import GraftMask
from stages.lib.localizers.evidence import Evidence
from stages.lib.localizers.registry import LOCALIZERS


def find_mask(
    localizer: str, evidence: Evidence, settings: Any, sparsity: float, setting: str, order: Tensor | None = None
) -> GraftMask:
    """The mask of that share of the region by a localizer of the registry; `settings` is the `graft` section.

    `setting` is the dotted key that the sparsity came from, `order` the localizer's ranking if it is
    known already.  Raises MaskError if the share is less
    than one parameter, TrainingError if the loss diverges.
    """
    size = evidence.region.size
    k = evidence.region.budget(sparsity)
    if k == 0:
        raise MaskError(
            f"{setting}: {sparsity} of {size:,} graftable parameters is less than one; the smallest is {1 / size:.2g}"
        )
    try:
        return LOCALIZERS[localizer].mask(evidence, settings, k, order)
    except FloatingPointError as error:
        raise TrainingError(f"{error}; lower graft.learning_rate ({settings.learning_rate})") from error
