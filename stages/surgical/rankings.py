"""Agreement of rankings of layers: by scores of several tasks, seeds and heads, by the learned masks, by movement in training."""

from collections.abc import Callable
from itertools import combinations, permutations
from typing import Any

import pandas as pd

from stages.lib.metrics.overlap import spearman
from stages.lib.report.load import frame_of
from stages.lib.report.stats import Estimate, estimate
from stages.surgical.experiment.selections import order
from stages.surgical.frames import CELL, LAYER, Surgical

PAIR = ["first", "second"]


def by_cell(scores: pd.Series) -> dict[tuple[str, Any], list[float]]:
    """(task, seed) -> scores by layer, from a series indexed by task, seed, layer."""
    return {cell: part.sort_index().tolist() for cell, part in scores.groupby(level=CELL, sort=False)}


def agreement(first: pd.Series, second: pd.Series, measure: Callable[..., float | None] = spearman) -> Estimate:
    """Mean agreement over the cells that both have."""
    left, right = by_cell(first), by_cell(second)
    rows = [(*cell, measure(left[cell], right[cell])) for cell in left if cell in right]
    return estimate(pd.DataFrame(rows, columns=[*CELL, "value"]).set_index(CELL).value.astype(float))


def across(data: Surgical) -> tuple[pd.Series, pd.Series]:
    """Spearman correlations of scores: (first, second, seed) of two tasks, and (task, seed) with the task's other seeds, their mean."""
    pairs = permutations(by_cell(data.chosen()).items(), 2)
    rows = [(*one, *other, spearman(left, right)) for (one, left), (other, right) in pairs]
    frame = pd.DataFrame(rows, columns=["first", "seed", "second", "other", "value"]).astype({"value": float})
    # each pair once
    tasks = frame[(frame.seed == frame.other) & (frame["first"] < frame["second"])]
    seeds = frame[frame["first"] == frame["second"]].groupby(["first", "seed"]).value.mean()
    return tasks.set_index([*PAIR, "seed"]).value, seeds.rename_axis(CELL)


def alike(data: Surgical) -> dict[str, Estimate]:
    """Agreement of the scores of two tasks, two seeds and two random heads; none of heads where there is one."""
    tasks, seeds = across(data)
    heads = [by_cell(data.chosen(head=head)) for head in sorted(data.fim["head"].unique())]
    rows = [(*cell, spearman(one[cell], other[cell])) for one, other in combinations(heads, 2) for cell in one]
    frame = pd.DataFrame(rows, columns=[*CELL, "value"]).set_index(CELL)
    values = {"between_tasks": estimate(tasks, PAIR), "between_seeds": estimate(seeds)}
    return {**values, "between_heads": estimate(frame.value.astype(float))}


def bridges(data: Surgical, task: str | None = None) -> dict[str, Estimate]:
    """Agreement by layer of the scores, the learned masks (over chance) and the movement in training; of one task or all."""
    moved = data.robustness[data.robustness.step == data.robustness.groupby("task")["step"].transform("max")]
    series = {
        "score": data.chosen(),
        "graft": data.regions.assign(lift=data.regions.share / data.regions.chance).set_index(LAYER)["lift"],
        "movement": moved.assign(share=moved.moved / moved.start).set_index(LAYER)["share"],
    }
    if task is not None:
        series = {name: values[values.index.get_level_values("task") == task] for name, values in series.items()}
    return {f"{one}_{other}": agreement(series[one], series[other]) for one, other in combinations(series, 2)}


def caught(data: Surgical, size: int) -> pd.DataFrame:
    """(task, seed) -> share, chance: of the learned mask inside the `size` layers with the highest scores."""
    rows = []
    for (task, seed), scores in by_cell(data.chosen()).items():
        region = data.regions[(data.regions.task == task) & (data.regions.seed == seed)]
        inside = region[region.layer.isin(order(scores)[:size])]
        if len(region):
            rows.append({"task": task, "seed": seed, "share": inside.share.sum(), "chance": inside.chance.sum()})
    return frame_of(rows, [*CELL, "share", "chance"]).set_index(CELL).astype(float)
