"""How well rankings of layers agree: between scores, seeds, tasks, checkpoints, and with where grafts lie."""

from collections.abc import Callable, Iterable
from itertools import combinations
from typing import Any

import pandas as pd

from stages.lib.metrics.ranks import kendall, spearman
from stages.lib.report.stats import Mean, mean_of
from stages.surgical.report.collecting import Surgical
from stages.surgical.selections import order

Agreement = Callable[[Any, Any], float | None]


def by_cell(scores: pd.Series) -> dict[tuple[str, Any], list[float]]:
    """(task, seed) -> scores by layer, from a series indexed by task, seed, layer."""
    return {
        key: group.sort_index(level="layer").tolist() for key, group in scores.groupby(["task", "seed"], sort=False)
    }


def agreement(first: pd.Series, second: pd.Series, measure: Agreement = spearman) -> Mean:
    """Mean agreement over the cells that both have."""
    left, right = by_cell(first), by_cell(second)
    return mean_of([_number(measure(left[cell], right[cell])) for cell in left if cell in right])


def between(data: Surgical, same: str, different: str) -> Mean:
    """Mean Spearman correlation of two cells with the same task and different seeds, or the other way round."""
    cells = by_cell(data.chosen())
    place = {"task": 0, "seed": 1}
    pairs = [
        pair
        for pair in combinations(cells, 2)
        if pair[0][place[same]] == pair[1][place[same]] and pair[0][place[different]] != pair[1][place[different]]
    ]
    return mean_of([_number(spearman(cells[one], cells[other])) for one, other in pairs])


def between_heads(data: Surgical) -> Mean:
    """Mean Spearman correlation of the scores of one cell under two random heads; none without heads."""
    heads = [data.chosen(head=head) for head in sorted(data.fim["head"].unique())]
    values = [agreement(*pair) for pair in combinations(heads, 2)]
    return mean_of([value.mean for value in values if value.n])


def variants(data: Surgical) -> list[dict[str, Any]]:
    """Every way to score with its Kendall and Spearman agreement with the way that chose the layers."""
    chosen = data.chosen()
    ways = data.fim[["target", "aggregation", "examples"]].drop_duplicates()
    return [
        {
            **way,
            "kendall": agreement(data.chosen(**way), chosen, kendall),
            "spearman": agreement(data.chosen(**way), chosen),
        }
        for way in ways.to_dict("records")
    ]


def checkpoints(data: Surgical) -> pd.DataFrame:
    """Rows task, seed, step, spearman, kendall (with step 0), moved (relative to the pretrained norm), dev_accuracy."""
    found = []
    for (task, seed), rows in data.robustness.groupby(["task", "seed"], sort=False):
        start = rows[rows.step == 0].score.tolist()
        for step, now in rows.groupby("step"):
            scores = now.score.tolist()
            whole = ((now.moved**2).sum() / (now.start**2).sum()) ** 0.5
            ranks = {"spearman": _number(spearman(start, scores)), "kendall": _number(kendall(start, scores))}
            known = {"dev_accuracy": now.dev_accuracy.iloc[0], "moved": float(whole)}
            found.append({"task": task, "seed": seed, "step": int(step), **ranks, **known})
    return pd.DataFrame(found, columns=["task", "seed", "step", "spearman", "kendall", "dev_accuracy", "moved"])


def movement(data: Surgical) -> pd.Series:
    """(task, seed, layer) -> how far each layer moved in all of fine-tuning, of its pretrained norm."""
    rows = data.robustness
    last = rows[rows.step == rows.groupby("task")["step"].transform("max")]
    return last.assign(share=last.moved / last.start).set_index(["task", "seed", "layer"])["share"]


def region_share(data: Surgical) -> pd.Series:
    """(task, seed, layer) -> share of the learned mask in the layer, over that of a random mask."""
    rows = data.regions
    return rows.assign(lift=rows.share / rows.chance).set_index(["task", "seed", "layer"])["lift"]


def caught(data: Surgical, size: int) -> pd.DataFrame:
    """Rows task, seed, share, chance: of the learned mask inside the `size` layers with the highest scores."""
    found = []
    for (task, seed), scores in by_cell(data.chosen()).items():
        rows = data.regions[(data.regions.task == task) & (data.regions.seed == seed)]
        if rows.empty:
            continue
        inside = rows[rows.layer.isin(order(scores)[:size])]
        found.append({"task": task, "seed": seed, "share": inside.share.sum(), "chance": inside.chance.sum()})
    return pd.DataFrame(found, columns=["task", "seed", "share", "chance"])


def sizes(data: Surgical, kinds: Iterable[str] = ("top",)) -> list[int]:
    """Numbers of layers for which every one of these kinds of selections was made."""
    made = [{*data.surgery[data.surgery.kind == kind]["size"].dropna()} for kind in kinds]
    return sorted(map(int, set.intersection(*made))) if made else []


def _number(value: float | None) -> float:
    return float("nan") if value is None else value
