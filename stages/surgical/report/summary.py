"""The surgical numbers for `dvc metrics`: nested dicts of n, mean and sd, nothing else.

    fim         between_tasks, between_seeds, between_heads; way -> kendall, spearman (with the way that chooses)
    surgery     selection -> score, accuracy, trained, runs, flagged; minus_all, minus_random with low, high, positive
    robustness  task -> step -> spearman, kendall, moved, dev_accuracy
    bridge      score_graft, score_movement, graft_movement; top -> k -> share, chance

Measures are fractions 0..1 and correlations -1..1; cells are (task, seed), the draws of a random
selection count as one cell.
"""

from typing import Any

from stages.lib.report.stats import clean, mean_of
from stages.surgical.report import ranking
from stages.surgical.report.collecting import Surgical
from stages.surgical.report.tables import INDEX, against


def summary(data: Surgical) -> dict[str, Any]:
    """All of it, without the stages that are off."""
    parts = {"fim": _fim(data), "surgery": _surgery(data), "robustness": _robustness(data), "bridge": _bridge(data)}
    return clean({name: part for name, part in parts.items() if part})


def _fim(data: Surgical) -> dict[str, Any]:
    found = {
        "between_tasks": ranking.between(data, "seed", "task").numbers(),
        "between_seeds": ranking.between(data, "task", "seed").numbers(),
        "between_heads": ranking.between_heads(data).numbers(),
    }
    for way in ranking.variants(data):
        name = f"{way['target']}-{way['aggregation']}-{way['examples']}"
        found[name] = {measure: way[measure].numbers() for measure in ("kendall", "spearman")}
    return found


def _surgery(data: Surgical) -> dict[str, Any]:
    flagged, found = data.flagged(), {}
    for selection, runs in data.surgery.groupby("selection", sort=False):
        means = {name: mean_of(runs.groupby(INDEX)[name].mean()).numbers() for name in ("score", "accuracy")}
        counts = {"runs": len(runs), "flagged": int((flagged.selection == selection).sum())}
        found[selection] = {**means, **counts, "trained": float((runs.trained / runs.model_parameters).mean())}
        size = runs["size"].iloc[0]
        for name, other in (("minus_all", "all"), ("minus_random", f"random_{size:g}" if size else "")):
            difference = against(data, selection, other)
            if difference.n:
                found[selection][name] = difference.numbers()
    return found


def _robustness(data: Surgical) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for (task, step), rows in ranking.checkpoints(data).groupby(["task", "step"], sort=False):
        measures = ("spearman", "kendall", "moved", "dev_accuracy")
        found.setdefault(task, {})[str(step)] = {name: mean_of(rows[name]).numbers() for name in measures}
    return found


def _bridge(data: Surgical) -> dict[str, Any]:
    scores, regions, moved = data.chosen(), ranking.region_share(data), ranking.movement(data)
    pairs = {"score_graft": (scores, regions), "score_movement": (scores, moved), "graft_movement": (regions, moved)}
    found: dict[str, Any] = {name: ranking.agreement(*pair).numbers() for name, pair in pairs.items()}
    for size in ranking.sizes(data):
        rows = ranking.caught(data, size)
        if rows.empty:
            continue
        found.setdefault("top", {})[str(size)] = {name: mean_of(rows[name]).numbers() for name in ("share", "chance")}
    return found
