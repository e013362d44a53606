"""The learned mask from another base: the parameters that save most loss instead of those that moved most."""

from .attribution import rank_by_attribution
from .learned import refine_by_learning
from .registry import Localizer

LOCALIZER = Localizer(
    "learned from a base of those that save most loss", rank_by_attribution, refine_by_learning, rank_needs_model=True
)
