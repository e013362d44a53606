"""From cells to metrics/summary.json: means and deviations over seeds, averages over tasks.

    average  tasks, seeds; for each variant the mean over tasks of its means over seeds; grafted_minus_movement
    task     task -> variant -> n, seeds, <measure>_mean, <measure>_std; grafted_minus_movement
    ood      trained task -> test set -> rows (leaked, test, used), variant -> as under task
    mask     task -> selected, graftable, model_parameters, sparsity, sparsity_of_model

There are nothing but dicts and numbers in it, since `dvc metrics` shows nothing else: what is
undefined is left out.  All measures are fractions 0..1, rounded to 6 decimals.  Standard deviations
are sample deviations over seeds (divisor seeds - 1), so there is none for a single seed.

How much lower the calibration error is than the fine-tuned model's is given in two ways:
`ece_reduction` is 1 - (mean ECE of the graft / mean ECE of the fine-tuned model), which the verdict
uses; `ece_reduction_mean_of_cells` is the mean of 1 - ECE / ECE over single cells, to which a cell
with a small error contributes as much as one with a large error.
"""

from typing import Any

import pandas as pd

from stages.lib.metrics.variants import FINETUNED, GRAFTED, MOVEMENT_GRAFTED, VARIANTS
from stages.lib.report.stats import clean
from stages.report.cells import MEASURES, Cells

GRAFTS = (MOVEMENT_GRAFTED, GRAFTED)


def summarize(cells: Cells) -> dict[str, Any]:
    """All of metrics/summary.json."""
    return clean(
        {
            "average": {**_average(cells), **_comparison(cells.scores)},
            "task": {
                task: {**_over_seeds(rows), **_comparison(rows)}
                for task, rows in cells.scores.groupby("task", sort=False)
            },
            "ood": _ood(cells),
            "mask": {task: _mask_size(rows) for task, rows in cells.masks.groupby("task", sort=False)},
        }
    )


def _over_seeds(rows: pd.DataFrame) -> dict[str, Any]:
    result = {}
    for variant in VARIANTS:
        own = rows[rows.variant == variant]
        result[variant] = {"n": own.n.min(), "seeds": own.seed.nunique()}
        for name in MEASURES:
            result[variant] |= {f"{name}_mean": own[name].mean(), f"{name}_std": own[name].std(ddof=1)}
        if variant in GRAFTS:
            result[variant] |= _ece_reductions(rows, variant)
    return result


def _average(cells: Cells) -> dict[str, Any]:
    # first over seeds, so that every task counts alike
    means = cells.scores.groupby(["variant", "task"])[list(MEASURES)].mean().groupby("variant").mean()
    result: dict[str, Any] = {"tasks": len(cells.tasks), "seeds": len(cells.seeds)}
    for variant in VARIANTS:
        result[variant] = means.loc[variant].to_dict()
        if variant in GRAFTS:
            result[variant] |= _ece_reductions(cells.scores, variant)
    return result


def _ece_reductions(rows: pd.DataFrame, variant: str) -> dict[str, float]:
    ece = _by_cell(rows, "ece")
    # a fine-tuned model without any calibration error leaves nothing to reduce
    whole = ece[FINETUNED].where(ece[FINETUNED] > 0)
    of_means = 1 - ece[variant].mean() / ece[FINETUNED].mean() if ece[FINETUNED].mean() > 0 else float("nan")
    return {"ece_reduction": of_means, "ece_reduction_mean_of_cells": (1 - ece[variant] / whole).mean()}


def _comparison(rows: pd.DataFrame) -> dict[str, Any]:
    """The learned graft against the movement graft of equal size: mean difference, and cells in which it is better."""
    result: dict[str, Any] = {"cells": len(_by_cell(rows, "score"))}
    for name in ("score", "agreement"):
        values = _by_cell(rows, name)
        difference = values[GRAFTED] - values[MOVEMENT_GRAFTED]
        result |= {name: difference.mean(), f"{name}_better_cells": (difference > 0).sum()}
    return {"grafted_minus_movement": result}


def _by_cell(rows: pd.DataFrame, measure: str) -> pd.DataFrame:
    return rows.pivot(index=["task", "seed"], columns="variant", values=measure)


def _ood(cells: Cells) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for (task, test_set), counts in cells.leaks.items():
        rows = cells.ood[(cells.ood.task == task) & (cells.ood.test_set == test_set)]
        known = {name: counts[name] for name in ("leaked", "test", "used") if name in counts}
        result.setdefault(task, {})[test_set] = {"rows": known, **_over_seeds(rows)}
    return result


def _mask_size(rows: pd.DataFrame) -> dict[str, Any]:
    """Sizes of a task's masks; `selected` is a mean over seeds, a whole number if all seeds have the same."""
    selected, graftable, parameters = rows.selected.mean(), rows.graftable.iloc[0], rows.model_parameters.iloc[0]
    return {
        "selected": int(selected) if selected.is_integer() else selected,
        "graftable": graftable,
        "model_parameters": parameters,
        "sparsity": selected / graftable,
        "sparsity_of_model": selected / parameters,
    }
