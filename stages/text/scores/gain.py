"""Relative gain (paper, equation 5): the fraction of the fine-tuning gain on a task that is recovered by the graft."""

from typing import Any

from stages.text.scores.variants import FINETUNED, PRETRAINED

# tolerance for rounding: 0.90 - 0.85 is a little less than 0.05
ROUNDING = 1e-9
# the default of summary.least_gain
LEAST_GAIN = 0.05


def gained(pretrained: float, trained: float, least: float) -> bool:
    """True if the trained model's score is at least `least` above the pretrained model's, so that it can be divided by."""
    return trained - pretrained >= least - ROUNDING


def relative_gain(grafted: float, pretrained: float, trained: float, least: float) -> float | None:
    """(grafted - pretrained) / (trained - pretrained), scores on one task; None where the trained model did not gain `least`.

    0 is the pretrained model and 1 the trained one; a graft may do worse than the one or better than the other.
    With a difference near 0 below the line any number could come out, and with one below 0 a graft that does harm would
    seem to help.  So `least` is above 0.
    """
    return (grafted - pretrained) / (trained - pretrained) if gained(pretrained, trained, least) else None


def with_gain(scores: dict[str, dict[str, Any]], least: float = LEAST_GAIN) -> dict[str, dict[str, Any]]:
    """Rows by variant with the relative gain beside each score where both ends are known: a head alone retains much, and gains nothing."""
    if not {PRETRAINED, FINETUNED} <= scores.keys():
        return scores
    ends = scores[PRETRAINED]["score"], scores[FINETUNED]["score"]
    return {name: {**row, "gain": relative_gain(row["score"], *ends, least)} for name, row in scores.items()}
