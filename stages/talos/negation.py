"""How far to move against a task vector: as far as the target falls while a control task stays."""

from collections.abc import Mapping


def choose_negation(target: Mapping[float, float], control: Mapping[float, float], retention: float) -> float:
    """The alpha with the lowest target score whose control score is at least retention * that at alpha 0.

    Both map alpha -> score on dev; of equal scores the smallest alpha is chosen, and alpha 0 is always
    allowed.  Raises ValueError unless both have the same alphas, 0 among them.
    """
    if target.keys() != control.keys() or 0 not in control:
        raise ValueError("target and control need the same alphas, 0 among them")
    floor = retention * control[0]
    allowed = [alpha for alpha in sorted(target) if alpha == 0 or control[alpha] >= floor]
    return min(allowed, key=target.__getitem__)  # min keeps the first of equals


def is_weak(zero_shot: float, chance: float, margin: float) -> bool:
    """Whether a control that starts at this score has nothing to lose: less than margin above chance."""
    return zero_shot < chance + margin
