"""Relative gain (paper, equation 5): which part of a multi-task model's gain on a task a graft brings."""


def gained(pretrained: float, joint: float, least: float) -> bool:
    """True if the joint model's accuracy is at least `least` above the pretrained model's, so that it can be divided by."""
    return joint - pretrained >= least


def relative_gain(grafted: float, pretrained: float, joint: float, least: float) -> float | None:
    """(grafted - pretrained) / (joint - pretrained), accuracies on one task; None where the joint model did not gain `least`.

    0 is the pretrained model and 1 the joint one; a graft may do worse than the one or better than the other.
    With a difference near 0 below the line any number could come out, and with one below 0 a graft that does harm would
    seem to help.  Raises ValueError unless `least` is above 0.
    """
    if not least > 0:
        raise ValueError(f"least must be above 0, not {least}")
    return (grafted - pretrained) / (joint - pretrained) if gained(pretrained, joint, least) else None
