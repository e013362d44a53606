"""Names of the merging methods, and which single-task models each merges; imports no heavy library.

A merged model is made of grafts, each within its mask, or of whole fine-tuned models.  A localizer's name with a share
of the region, such as stitch_0.01, stands for grafts of that size by that localizer, stitched by the mean.
"""

import re

from ..metrics.variants import FINETUNED, GRAFTED

MEAN, SUM, SEQUENCE, LARGEST = "mean", "sum", "sequence", "largest"
# rules for a parameter that several grafts select
RULES = (MEAN, SUM, SEQUENCE, LARGEST)
STITCHES = {f"stitch_{rule}": rule for rule in RULES}
GRAFTED_ARITHMETIC, AVERAGE, ARITHMETIC, TIES, DARE = "grafted_arithmetic", "average", "arithmetic", "ties", "dare"
CONSENSUS = "consensus"
# the single-task models of methods that look for masks of their own
LOCALIZED = "localized"
# method -> the single-task model that it is made of
KINDS = dict.fromkeys([*STITCHES, GRAFTED_ARITHMETIC], GRAFTED) | dict.fromkeys(
    [AVERAGE, ARITHMETIC, TIES, DARE, CONSENSUS], FINETUNED
)
NAMES = tuple(KINDS)
# these add a vector to the pretrained model, scaled by an alpha that dev chooses
TUNED = (GRAFTED_ARITHMETIC, ARITHMETIC, TIES, DARE, CONSENSUS)
# the variant of a merged model beside the single-task ones
MERGED = "merged"

_WITH_SHARE = re.compile(r"([a-z]\w*)_(1|0\.[0-9]+)")


def kind_of(method: str) -> str:
    """The single-task model that a method merges."""
    return KINDS.get(method, LOCALIZED)


def read_localized(method: str) -> tuple[str, float] | None:
    """Localizer and share of the region of a name such as stitch_0.01; None for any other name."""
    match = _WITH_SHARE.fullmatch(method)
    return (match[1], float(match[2])) if match and float(match[2]) else None
