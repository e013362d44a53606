"""Attribution: rank parameters by how much of the loss their own movement saves, to first order.

Moving parameter i by its share of the path from theta_pre to theta_ft lowers the loss by about
-dLoss/dtheta_i * delta_i, with delta = theta_ft - theta_pre.  Summed over points of the path this is
an integrated gradient: over the whole path it would add up to the loss that fine-tuning saved.
"""

import torch
from torch import Tensor

from ..graft.select import ranking
from .evidence import Evidence
from .registry import Localizer
from .settings import Attribution


def rank_by_attribution(evidence: Evidence, settings: Attribution, k: int) -> Tensor:
    """Region indices of the k parameters with the largest attribution.

    `settings.sign="signed"` ranks by the loss saved, so harmful movement comes last;
    `"magnitude"` ranks by its size either way.
    """
    scores = attribution(evidence, settings.path_points)
    if settings.sign == "magnitude":
        scores = {name: score.abs_() for name, score in scores.items()}
    return ranking(evidence.region, scores, k)


def attribution(evidence: Evidence, path_points: list[float]) -> dict[str, Tensor]:
    """-sum over alpha of dLoss/dtheta(pretrained + alpha * delta) * delta; one pass over the data for each alpha."""
    scores = {name: torch.zeros_like(evidence.pretrained[name]) for name in evidence.region.shapes}
    for alpha in path_points:
        evidence.put_between(alpha)
        evidence.full_gradient()
        for name, score in scores.items():
            score.sub_(evidence.weights[name].grad)
    for name, score in scores.items():
        score.mul_(evidence.finetuned[name] - evidence.pretrained[name])
    return scores


LOCALIZER = Localizer("saves most loss, to first order", rank_by_attribution, rank_needs_model=True)
