"""Every localizer by its name.  A new one is a file beside this and a line in LOCALIZERS.

A localizer *ranks* the parameters of the region, best first; the mask of k parameters is the first
k of its ranking, so masks are nested.  One that looks for the best set of a given size besides
*refines*: its masks start from the ranking and need not be nested.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from stages.lib.graft.mask import GraftMask
from stages.lib.localizers.attribution import rank_by_attribution
from stages.lib.localizers.bias import rank_biases
from stages.lib.localizers.evidence import Evidence
from stages.lib.localizers.fish import rank_by_fisher
from stages.lib.localizers.grown import grow
from stages.lib.localizers.magnitude import rank_by_magnitude
from stages.lib.localizers.movement import movement_order, ticket_order
from stages.lib.localizers.random import rank_by_chance
from stages.lib.localizers.refined import refine_by_learning, refine_by_stitching
from stages.lib.localizers.stratified import rank_by_layer, rank_by_tensor
from stages.lib.localizers.talos import rank_by_insensitivity, refine_by_rounds


@dataclass(frozen=True)
class Localizer:
    """One way to find the parameters that carry a skill.

    rank(evidence, settings, k) gives region indices (int64), best first, exactly min(k, the number
    it has an opinion about) of them.  refine(evidence, settings, order, k), where there is one, gives the mask
    of k parameters, starting from that order.  `settings` is the validated `localizer` section.
    `rank_needs_model` says whether the rank needs the model, or only the two sets of weights, and
    `refines_rank` whether refine looks at the order, so that it has to be made first.
    """

    about: str
    rank: Callable[[Evidence, Any, int], Tensor]
    refine: Callable[[Evidence, Any, Tensor | None, int], GraftMask] | None = None
    rank_needs_model: bool = False
    refines_rank: bool = True

    def mask(self, evidence: Evidence, settings: Any, k: int, order: Tensor | None = None) -> GraftMask:
        """The mask of k parameters: the first k of the ranking, made here unless given, or what it is refined to."""
        if order is None and (self.refine is None or self.refines_rank):
            order = self.rank(evidence, settings, k)
        if k == 0:
            return GraftMask.empty(evidence.region)
        if self.refine is None:
            return GraftMask.from_region_indices(evidence.region, order[:k])
        return self.refine(evidence, settings, order, k)


def rank_by_movement(evidence: Evidence, _settings: Any, k: int) -> Tensor:
    """Region indices of the k parameters that moved most (paper, section 2.3)."""
    return movement_order(evidence.pretrained, evidence.finetuned, evidence.region, k)


def rank_by_ticket(evidence: Evidence, _settings: Any, k: int) -> Tensor:
    """Region indices of the k parameters that moved most, those that did not move left out (LoTA: Panda et al., 2024).

    This is movement, the base of the paper's masks, but for a lottery ticket never being padded with
    parameters that fine-tuning left alone.
    """
    return ticket_order(evidence.pretrained, evidence.finetuned, evidence.region, k)


LOCALIZERS: dict[str, Localizer] = {
    "movement": Localizer("moved most in fine-tuning", rank_by_movement),
    "magnitude": Localizer("largest before fine-tuning", rank_by_magnitude),
    "random": Localizer("drawn at random", rank_by_chance),
    "bias": Localizer("biases that moved most; fewer if there are fewer", rank_biases),
    "fish": Localizer("largest empirical Fisher information before fine-tuning", rank_by_fisher, rank_needs_model=True),
    "layerwise": Localizer("moved most, the same share of every layer", rank_by_layer),
    "tensorwise": Localizer("moved most, the same share of every tensor", rank_by_tensor),
    "attribution": Localizer("saves most loss, to first order", rank_by_attribution, rank_needs_model=True),
    "grown": Localizer("moved most, then what the graft gains most from", rank_by_movement, grow),
    "learned": Localizer("learned from a base of those that moved most", rank_by_movement, refine_by_learning),
    "stitch": Localizer("learned from all that moved most, with an l1 penalty", rank_by_movement, refine_by_stitching),
    "attribution_learned": Localizer(
        "learned from a base of those that save most loss", rank_by_attribution, refine_by_learning, True
    ),
    "talos": Localizer(
        "least sensitive before fine-tuning, found in rounds", rank_by_insensitivity, refine_by_rounds, True, False
    ),
    "lota": Localizer("moved most, a lottery ticket; fewer if fewer moved", rank_by_ticket),
}
