"""The learned mask from the base by attribution instead of movement."""

from .attribution import Attribution, rank_by_attribution
from .learned import Learning, refine_by_learning
from .registry import Localizer


class AttributionLearned(Learning, Attribution):
    """Settings of both."""

    def gradient_examples(self, rows: float, size: float) -> float:
        return Learning.gradient_examples(self, rows, size) + Attribution.gradient_examples(self, rows, size)


LOCALIZER = Localizer(
    "learned from a base of those that save most loss",
    rank_by_attribution,
    refine_by_learning,
    rank_needs_model=True,
    settings=AttributionLearned,
    arrays=2,
)
