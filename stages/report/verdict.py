"""What the numbers say about the paper's claims, whether they agree with it or not."""

from collections.abc import Callable
from typing import Any

from stages.lib.metrics.variants import FINETUNED, GRAFTED, MOVEMENT_GRAFTED, PRETRAINED
from stages.lib.report.document import Claim, Verdict
from stages.lib.report.format import UNKNOWN, percent, points

DECIMALS = 2


def judge(summary: dict[str, Any], retained_target: float, ece_target: float) -> list[Claim]:
    """Four claims, each judged by its average over tasks, with the tasks that do not follow it."""
    return [
        _keeps_score(summary, retained_target),
        _lowers_ece(summary, ece_target),
        _beats_movement(summary, "score", "The learned graft scores higher than the movement graft of equal size"),
        _beats_movement(
            summary,
            "agreement",
            "The learned graft agrees more with the fine-tuned model than the movement graft of equal size",
        ),
    ]


def _keeps_score(summary: dict[str, Any], target: float) -> Claim:
    average = summary["average"]
    kept, movement, pretrained = (
        percent(average[variant].get("retained"), DECIMALS) for variant in (GRAFTED, MOVEMENT_GRAFTED, PRETRAINED)
    )
    return Claim(
        f"The graft keeps at least {100 * target:g} % of the fine-tuned score",
        _at_least(average[GRAFTED].get("retained"), target),
        f"keeps {kept} % (for comparison, the movement graft keeps {movement} %, the pretrained model alone {pretrained} %)",
        _exceptions(
            summary,
            lambda task: task[GRAFTED].get("retained_mean"),
            target,
            lambda value: f"{percent(value, DECIMALS)} %",
        ),
    )


def _lowers_ece(summary: dict[str, Any], target: float) -> Claim:
    average = summary["average"]
    reduction, of_cells = (average[GRAFTED].get(name) for name in ("ece_reduction", "ece_reduction_mean_of_cells"))
    before, after = (percent(average[variant]["ece"], DECIMALS) for variant in (FINETUNED, GRAFTED))
    return Claim(
        f"The graft's ECE is at least {100 * target:g} % lower than the fine-tuned model's",
        _at_least(reduction, target),
        f"from {before} % to {after} %, which is {_change(reduction)} (mean over single cells: {_change(of_cells)})",
        _exceptions(summary, lambda task: task[GRAFTED].get("ece_reduction"), target, _change),
    )


def _beats_movement(summary: dict[str, Any], measure: str, text: str) -> Claim:
    average = summary["average"]["grafted_minus_movement"]
    better = f"better in {average[f'{measure}_better_cells']} of {average['cells']} cells"
    levels = " against ".join(
        f"{percent(summary['average'][variant].get(measure), DECIMALS)} %" for variant in (GRAFTED, MOVEMENT_GRAFTED)
    )
    return Claim(
        text,
        Verdict.of(average[measure] > 0),
        f"{levels}, {points(average[measure], DECIMALS)} points, {better}",
        [
            f"{name} {points(task['grafted_minus_movement'][measure], DECIMALS)}"
            for name, task in summary["task"].items()
            if not task["grafted_minus_movement"][measure] > 0
        ],
    )


def _at_least(value: float | None, target: float) -> Verdict:
    return Verdict.of(None if value is None else value >= target)


def _exceptions(
    summary: dict[str, Any], read: Callable[[dict], float | None], target: float, write: Callable[[float | None], str]
) -> list[str]:
    values = {name: read(task) for name, task in summary["task"].items()}
    return [f"{name} {write(value)}" for name, value in values.items() if value is None or value < target]


def _change(reduction: float | None) -> str:
    if reduction is None:
        return UNKNOWN
    return f"{percent(abs(reduction), DECIMALS)} % {'lower' if reduction >= 0 else 'higher'}"
