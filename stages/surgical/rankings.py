"""Agreement of rankings of layers: by scores of several tasks, seeds and heads, by masks, by movement in training."""

from collections.abc import Iterable
from itertools import combinations, permutations
from typing import Any

import pandas as pd

from stages.surgical.selections import order
from stages.text.scores.overlap import spearman
from stages.workflow.records import frame_of

CELL, PAIR = ["task", "seed"], ["first", "second"]
LAYER = [*CELL, "layer"]
LAYERS_TO_RANK = 4  # two layers have two rankings and three have six: they agree or disagree by chance


def chosen(fim: pd.DataFrame, examples: int, **way: Any) -> pd.Series:
    """(task, seed, layer) -> score by this target, aggregation (and head), its mean over heads.

    Of a cell without so many examples it is the score of the most that were asked for below that, as in surgery.
    """
    rows = fim[fim.examples <= examples]
    for name, value in way.items():
        rows = rows[rows[name] == value]
    rows = rows[rows.examples == rows.groupby(CELL)["examples"].transform("max")]
    return rows.groupby(LAYER, sort=False)["score"].mean()


def by_cell(scores: pd.Series) -> dict[tuple[str, Any], list[float]]:
    """(task, seed) -> scores by layer, from a series indexed by task, seed, layer."""
    by_layer = scores.sort_index(level="layer", sort_remaining=False, kind="stable")
    return {cell: part.tolist() for cell, part in by_layer.groupby(level=CELL, sort=False)}


def agreement(first: pd.Series, second: pd.Series) -> pd.Series:
    """(task, seed) -> Spearman correlation of two rankings, of the cells that both have; undefined where one has no order."""
    left, right = by_cell(first), by_cell(second)
    rows = [(*cell, spearman(left[cell], right[cell])) for cell in left if cell in right]
    return pd.DataFrame(rows, columns=[*CELL, "value"]).set_index(CELL).value.astype(float)


def across(scores: pd.Series) -> tuple[pd.Series, pd.Series]:
    """Spearman correlations of scores: (first, second, seed) of two tasks, and (task, seed) with the task's other seeds, their mean."""
    pairs = permutations(by_cell(scores).items(), 2)
    rows = [(*one, *other, spearman(left, right)) for (one, left), (other, right) in pairs]
    frame = pd.DataFrame(rows, columns=["first", "seed", "second", "other", "value"]).astype({"value": float})
    # each pair once
    tasks = frame[(frame.seed == frame.other) & (frame["first"] < frame["second"])]
    seeds = frame[frame["first"] == frame["second"]].groupby(["first", "seed"]).value.mean()
    return tasks.set_index([*PAIR, "seed"]).value, seeds.rename_axis(CELL)


def of_pairs(tasks: pd.Series, seeds: pd.Series) -> pd.DataFrame:
    """Of each pair of tasks their agreement (`tasks`), the mean of both tasks' own over seeds (`seeds`), and the difference."""
    same = sum(seeds.reindex(tasks.index.droplevel(level)).to_numpy() for level in PAIR) / 2
    return pd.DataFrame({"tasks": tasks, "seeds": same, "apart": same - tasks}).dropna().reset_index()


def of_heads(fim: pd.DataFrame, examples: int, **way: Any) -> pd.DataFrame:
    """Agreement of the scores of every two random heads of a cell; none where there is one head."""
    heads = [chosen(fim, examples, head=head, **way) for head in sorted(fim["head"].unique())]
    found = [agreement(one, other) for one, other in combinations(heads, 2)]
    return pd.concat(found).reset_index() if found else frame_of([], [*CELL, "value"])


def mask_share_in_top(scores: pd.Series, regions: pd.DataFrame, sizes: Iterable[int]) -> pd.DataFrame:
    """task, seed, size, share, chance: the share of the mask inside the `size` layers with the highest scores."""
    rows, layers = [], sorted(scores.index.unique("layer"))
    for (task, seed), own in by_cell(scores).items():
        region = regions[(regions.task == task) & (regions.seed == seed)]
        for size in sizes if len(region) else ():
            inside = region[region.layer.isin([layers[place] for place in order(own)[:size]])]
            rows.append([task, seed, size, inside.share.sum(), inside.chance.sum()])
    return pd.DataFrame(rows, columns=[*CELL, "size", "share", "chance"])


def over_training(steps: pd.DataFrame) -> pd.DataFrame:
    """Agreement of each ranking during training with that of step 0, and movement relative to the pretrained norm."""
    rows = []
    for (task, seed), cell in steps.groupby(CELL, sort=False):
        start = cell[cell.step == 0].score.tolist()
        for step, now in cell.groupby("step"):
            moved = float(((now.moved**2).sum() / (now.start**2).sum()) ** 0.5)
            rows.append([task, seed, int(step), spearman(start, now.score.tolist()), now.dev_accuracy.iloc[0], moved])
    columns = [*CELL, "step", "spearman", "dev_accuracy", "moved"]
    return pd.DataFrame(rows, columns=columns).astype({"spearman": float})
