"""The numbers of multi-task learning for `dvc metrics`: nested dicts of n, mean and sd, nothing else.

    joint       paradigm -> pretrained, single, joint, difference (joint - single), undefined (cells without gains)
    gain        paradigm -> localizer -> sparsity -> own, others, ... (contrasts.GAIN_KINDS), and differences
    overlap     paradigm -> localizer -> sparsity -> ... (contrasts.OVERLAP_KINDS), chance, and a difference
    similarity  paradigm -> localizer -> sparsity -> rho, low, high, pairs

Accuracies, relative gains and overlaps are fractions; n, mean and sd are over cells (see contrasts.py).
"""

from typing import Any

from stages.lib.report.stats import clean, mean_of, paired
from stages.multitask.report import contrasts
from stages.multitask.report.collecting import Multitask
from stages.multitask.report.matrices import Key, similarity


def summary(found: Multitask) -> dict[str, Any]:
    """All of it, without what is off."""
    parts = {"joint": _joint(found)}
    for name, numbers in (("gain", _gain), ("overlap", _overlap), ("similarity", _similarity)):
        parts[name] = _nested(found, numbers)
    return clean({name: part for name, part in parts.items() if part})


def _joint(found: Multitask) -> dict[str, Any]:
    numbers = {}
    for paradigm, levels in found.levels.groupby("paradigm", sort=False):
        numbers[paradigm] = {name: mean_of(levels[name]).numbers() for name in ("pretrained", "single", "joint")}
        numbers[paradigm]["difference"] = paired(levels.joint, levels.single).numbers()
        numbers[paradigm]["undefined"] = int((~levels.gained.astype(bool)).sum())
    return numbers


def _nested(found: Multitask, numbers: Any) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key in found.matrices:
        paradigm, localizer, sparsity = key
        nested.setdefault(paradigm, {}).setdefault(localizer, {})[f"{sparsity:g}"] = numbers(found, key)
    return nested


def _gain(found: Multitask, key: Key) -> dict[str, Any]:
    values = {_word(kind): mean_of(contrasts.gain_by_cell(found, key, kind)) for kind in contrasts.GAIN_KINDS}
    differences = {
        "own_minus_others": contrasts.gain_difference(found, key, *contrasts.DOMINANCE),
        "purified_minus_union": contrasts.gain_difference(found, key, *contrasts.PURIFYING),
    }
    return {name: value.numbers() for name, value in {**values, **differences}.items() if value.n}


def _overlap(found: Multitask, key: Key) -> dict[str, Any]:
    values = {_word(kind): contrasts.overlap_rows(found, key, kind) for kind in contrasts.OVERLAP_KINDS}
    numbers: dict[str, Any] = {name: mean_of(rows.overlap).numbers() for name, rows in values.items() if len(rows)}
    chance = mean_of(contrasts.overlap_rows(found, key, contrasts.SAME_MODEL).chance)
    difference = contrasts.overlap_difference(found, key, *contrasts.LIKENESS)
    similar = {"similar_minus_dissimilar": difference.numbers()} if difference.n else {}
    return numbers | {"chance": chance.numbers()} | similar


def _similarity(found: Multitask, key: Key) -> dict[str, Any]:
    value = similarity(found, key)
    known = {"rho": value.rho, "low": value.low, "high": value.high}
    return {"pairs": value.pairs} | {name: number for name, number in known.items() if number is not None}


def _word(kind: str) -> str:
    return kind.replace(",", "").replace(" ", "_")
