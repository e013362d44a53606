"""The report of the main pipeline, all its cells together: tidy frames, metrics/summary.json, the tables and what the claims measure.

    average  tasks, seeds; for each variant the mean over tasks of its means over seeds; grafted_minus_movement
    task     task -> variant -> n, seeds, <measure>_mean, <measure>_std; grafted_minus_movement
    ood      trained task -> test set -> rows (leaked, test, used), variant -> as under task
    mask     task -> selected, graftable, model_parameters, sparsity, sparsity_of_model

There are nothing but dicts and numbers in it, since `dvc metrics` shows nothing else: what is
undefined is left out.  All measures are fractions 0..1, rounded to 6 decimals.  Standard deviations
are sample deviations over seeds (divisor seeds - 1), so there is none for a single seed.  The tables
and the claims are made of these numbers.

How much lower the calibration error is than the fine-tuned model's is given in two ways:
`ece_reduction` is 1 - (mean ECE of the graft / mean ECE of the fine-tuned model), which the claim is
judged by; `ece_reduction_mean_of_cells` is the mean of 1 - ECE / ECE over single cells, to which a cell
with a small error contributes as much as one with a large error.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from stages.lib import paths
from stages.lib.data.task_cards import read_task
from stages.lib.data.tasks import TaskSpec
from stages.lib.errors import DataError
from stages.lib.graft.mask_indices import read_header
from stages.lib.io import read_json, require
from stages.lib.metrics.variants import FINETUNED, GRAFTED, MOVEMENT_GRAFTED, VARIANTS
from stages.lib.report.claims import Finding, judge, read_statements
from stages.lib.report.document import Report
from stages.lib.report.format import MARKED, MARKS, UNKNOWN, counts, measured, name_of, percent, points, small_percent
from stages.lib.report.load import Records, Row, grid, published, require_files
from stages.lib.report.stats import clean
from stages.lib.report.table import Column, Line, Table
from stages.settings import OodParams, SummaryParams

HERE = Path(__file__).parent
MEASURES = ("score", "accuracy", "f1", "ece", "agreement", "retained")
KEYS = ["task", "test_set", "seed", "variant"]
SCORE_COLUMNS = ["task", "seed", "variant", "n", *MEASURES]
OOD_COLUMNS = [*KEYS, "n", *MEASURES]
# in the files of evaluate and ood, and in those of calibration
SCORED = ["n", *(name for name in MEASURES if name != "ece")]
CALIBRATED = ["n", "ece", "bin_count", "bin_confidence", "bin_accuracy", "histogram"]
GRAFTS = (MOVEMENT_GRAFTED, GRAFTED)


@dataclass(frozen=True)
class Results:
    """Tidy tables of all cells, in the order of params.yaml; measures are fractions 0..1, NaN where undefined.

    `scores` is about a task's own test set and `ood` about other test sets.  `reliability` (bins of confidence
    from 0, empty ones too) and `confidence` (bars between low and high) are of the own test set, all seeds together.
    `masks` has one row for each (task, seed).  `leaks` maps (task, test set) to the numbers of test texts: leaked,
    test, and used if known.
    """

    tasks: dict[str, TaskSpec]
    seeds: list[int]
    scores: pd.DataFrame
    ood: pd.DataFrame
    reliability: pd.DataFrame
    confidence: pd.DataFrame
    masks: pd.DataFrame
    leaks: dict[tuple[str, str], dict[str, int]]

    @cached_property
    def summary(self) -> dict[str, Any]:
        """All of metrics/summary.json."""
        of_tasks = self.scores.groupby("task", sort=False)
        parts = {
            "average": {**_average(self), **_comparison(self.scores)},
            "task": {task: {**_over_seeds(rows), **_comparison(rows)} for task, rows in of_tasks},
            "ood": _ood(self),
            "mask": {task: _mask_size(rows) for task, rows in self.masks.groupby("task", sort=False)},
        }
        return clean(parts)

    @property
    def plots(self) -> dict[str, pd.DataFrame]:
        """The frames for `dvc plots`; empty bins would be drawn as points in the origin."""
        bins = self.reliability[self.reliability["count"] > 0]
        return {"scores": self.scores, "ood": self.ood, "reliability": bins, "confidence": self.confidence}


def collect(tasks: list[str], seeds: list[int], ood: OodParams) -> Results:
    """Read the files of every (task, seed); raises DataError for one that is missing or doesn't hold what it should."""
    cells = grid(task=tasks, seed=seeds)
    files = "metrics/{}/{{seed}}/{{task}}.json".format
    evaluated = Records("", "evaluate", files("evaluate"), cells, "{task}-{seed}", needs=())
    calibrated, tested = (Records("", stage, files(stage), cells, needs=()) for stage in ("calibration", "ood"))
    masks = Records("", "mask", "masks/learned/{seed}/{task}.safetensors", cells, "{task}-{seed}")
    require_files("dvc repro", evaluated, calibrated, tested, masks)
    others = {task: ood.sets.get(task, []) for task in tasks}
    scored = _variants(evaluated, {task: [task] for task in tasks}, SCORED) + _variants(tested, others, SCORED)
    calibration = pd.DataFrame(_variants(calibrated, {task: [task, *others[task]] for task in tasks}, CALIBRATED))
    scores = pd.DataFrame(scored).merge(calibration, on=KEYS, how="left", suffixes=("", "_calibrated"))
    for row in scores[scores.n != scores.n_calibrated].itertuples():
        cell, rows = {"task": row.task, "seed": row.seed}, f"{row.n_calibrated} test rows of {row.test_set}"
        raise DataError(
            f"{calibrated.file(cell)}: is about {rows}, its scores are about {row.n}; {calibrated.made_by(cell)}"
        )
    # a column of nothing but undefined values would be one of objects
    scores = scores.astype(dict.fromkeys(MEASURES, float))
    own = scores[scores.test_set == scores.task]
    return Results(
        tasks={task: read_task(task) for task in tasks},
        seeds=list(seeds),
        scores=own[SCORE_COLUMNS],
        ood=scores.loc[scores.test_set != scores.task, OOD_COLUMNS],
        reliability=_pooled_bins(own),
        confidence=_pooled_bars(own),
        masks=pd.DataFrame([{**read_header(masks.file(cell)), **cell} for cell in cells]),
        leaks=_leaks([(task, test_set) for task in tasks for test_set in others[task]]),
    )


def _variants(records: Records, test_sets: dict[str, list[str]], names: Sequence[str]) -> list[Row]:
    return records.rows(
        lambda cell, record: [
            {**cell, "test_set": test_set, "variant": variant, **{name: values[name] for name in names}}
            for test_set in test_sets[cell["task"]]
            for variant in VARIANTS
            for values in [record["scores"][test_set][variant]]
        ]
    )


def _pooled_bins(scores: pd.DataFrame) -> pd.DataFrame:
    rows = scores.explode(["bin_count", "bin_confidence", "bin_accuracy"])
    count = rows.bin_count.astype(int)
    # sums over the test rows of a bin, so that they can be added
    sums = {"count": count, **{name: rows[f"bin_{name}"].astype(float) * count for name in ("confidence", "accuracy")}}
    rows = rows.assign(bin=rows.groupby(level=0).cumcount(), **sums)
    bins = rows.groupby(["task", "variant", "bin"], sort=False)[[*sums]].sum().reset_index()
    divisor = bins["count"].clip(lower=1)
    return bins.assign(confidence=bins["confidence"] / divisor, accuracy=bins["accuracy"] / divisor)


def _pooled_bars(scores: pd.DataFrame) -> pd.DataFrame:
    rows = scores.assign(bars=scores.histogram.str.len()).explode("histogram")
    place = rows.groupby(level=0).cumcount()
    rows = rows.assign(low=place / rows.bars, high=(place + 1) / rows.bars, count=rows.histogram.astype(int))
    bars = rows.groupby(["task", "variant", "low", "high"], sort=False)["count"].sum().reset_index()
    return bars.assign(share=bars["count"] / bars.groupby(["task", "variant"])["count"].transform("sum"))


def _leaks(pairs: list[tuple[str, str]]) -> dict[tuple[str, str], dict[str, int]]:
    if not pairs:
        return {}
    shared = read_json(require(paths.LEAKAGE, "fetch"))
    return {(task, test_set): shared.get(task, {}).get(test_set, {}) for task, test_set in pairs}


# --- Numbers -------------------------------------------------------------------------------------------------------


def _over_seeds(rows: pd.DataFrame) -> dict[str, Any]:
    parts = {}
    for variant in VARIANTS:
        own = rows[rows.variant == variant]
        spreads = {f"{name}_{kind}": getattr(own[name], kind)() for name in MEASURES for kind in ("mean", "std")}
        parts[variant] = {"n": own.n.min(), "seeds": own.seed.nunique(), **spreads, **_ece_reductions(rows, variant)}
    return parts


def _average(results: Results) -> dict[str, Any]:
    # first over seeds, so that every task counts alike
    means = results.scores.groupby(["variant", "task"])[list(MEASURES)].mean().groupby("variant").mean()
    parts = {variant: means.loc[variant].to_dict() | _ece_reductions(results.scores, variant) for variant in VARIANTS}
    return {"tasks": len(results.tasks), "seeds": len(results.seeds), **parts}


def _by_cell(rows: pd.DataFrame, measure: str) -> pd.DataFrame:
    return rows.pivot(index=["task", "seed"], columns="variant", values=measure)


def _ece_reductions(rows: pd.DataFrame, variant: str) -> dict[str, float]:
    if variant not in GRAFTS:
        return {}
    ece = _by_cell(rows, "ece")
    # a fine-tuned model without any calibration error leaves nothing to reduce
    whole = ece[FINETUNED].where(ece[FINETUNED] > 0)
    of_means = 1 - ece[variant].mean() / ece[FINETUNED].mean() if ece[FINETUNED].mean() > 0 else float("nan")
    return {"ece_reduction": of_means, "ece_reduction_mean_of_cells": (1 - ece[variant] / whole).mean()}


def _comparison(rows: pd.DataFrame) -> dict[str, Any]:
    """The learned graft against the movement graft of equal size: mean difference, and cells in which it is better."""
    parts: dict[str, Any] = {"cells": len(_by_cell(rows, "score"))}
    for name in ("score", "agreement"):
        values = _by_cell(rows, name)
        difference = values[GRAFTED] - values[MOVEMENT_GRAFTED]
        parts |= {name: difference.mean(), f"{name}_better_cells": (difference > 0).sum()}
    return {"grafted_minus_movement": parts}


def _ood(results: Results) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for (task, test_set), leaked in results.leaks.items():
        rows = results.ood[(results.ood.task == task) & (results.ood.test_set == test_set)]
        known = {name: leaked[name] for name in ("leaked", "test", "used") if name in leaked}
        parts.setdefault(task, {})[test_set] = {"rows": known, **_over_seeds(rows)}
    return parts


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


# --- Tables, laid out like Table 2 of the paper --------------------------------------------------------------------


def _column(title: str, variant: str, measure: str) -> Column:
    """A measure of a variant in a part of the summary; tells it from others by `key`, also among the paper's values."""
    return Column(title, lambda part: part[variant], partial(measured, measure=measure), f"{variant} {measure}")


SCORES = [
    _column("FT score", FINETUNED, "score"), _column("FT ECE", FINETUNED, "ece"),
    _column("move score", MOVEMENT_GRAFTED, "score"), _column("move ECE", MOVEMENT_GRAFTED, "ece"),
    _column("graft score", GRAFTED, "score"), _column("graft ECE", GRAFTED, "ece"),
    _column("agreement", GRAFTED, "agreement"), _column("retained", GRAFTED, "retained"),
]  # fmt: skip
OOD = [
    *(_column(title, variant, "score") for title, variant in zip(("pre", "FT", "move", "graft"), VARIANTS, strict=True)),
    Column("graft - FT", lambda part: part[GRAFTED]["score_mean"] - part[FINETUNED]["score_mean"], points),
]  # fmt: skip
USUAL_SHOTS = 64


def paper_scores(k: int) -> tuple[int, dict[str, dict[str, tuple[float, float]]]]:
    """Shots of the paper's Table 2 to compare with, k or else 64, and its tasks' (mean, deviation) by key of a column."""
    table = published(HERE / "paper.yaml")["table2"]
    shots = k if k in table else USUAL_SHOTS
    flat = {
        task: {f"{variant} {name}": pair for variant, values in variants.items() for name, pair in values.items()}
        for task, variants in table[shots].items()
    }
    return shots, flat


def score_table(results: Results) -> Table:
    """Score and calibration error of every task, by one and two sentences, with the paper's values where it has the task."""
    tasks, (shots, paper) = results.tasks, paper_scores(int(results.masks.k.iloc[0]))
    groups = {
        "one sentence": [name for name, task in tasks.items() if not task.is_pair],
        "two sentences": [name for name, task in tasks.items() if task.is_pair],
    }
    groups = {title: names for title, names in groups.items() if names}
    lines = []
    for title, names in groups.items():
        lines += [Line(title)] if len(groups) > 1 else []
        lines += [Line(name_of(tasks[name]), results.summary["task"][name], paper=paper.get(name)) for name in names]
        if len(groups) > 1 and len(names) > 1:
            lines.append(_average_line("average of these", names, results, paper))
    lines.append(_average_line("average", [*tasks], results, paper))
    notes = [
        "FT: finetuned; move: movement grafted, of the size of the learned graft; graft: grafted with the learned mask",
        "agreement: share of predictions equal to the fine-tuned model's; retained: graft score / FT score",
    ]
    used = [metric for metric in MARKS if any(task.metric == metric for task in tasks.values())]
    if used:
        notes.append(f"{', '.join(f'{MARKS[metric]} {MARKED[metric]}' for metric in used)}, the others accuracy")
    if any(line.paper for line in lines):
        notes.append(
            f"paper: Table 2, {shots}-shot, RoBERTa-base, prompt-based fine-tuning, graft of 0.01 %; no target for other settings"
        )
    title = "Test score and calibration error in %: mean (standard deviation over seeds)"
    return Table(title, ["task"], SCORES, lines, notes)


def _average_line(title: str, names: list[str], results: Results, paper: dict[str, dict[str, Any]]) -> Line:
    def mean(variant: str, measure: str) -> float | None:
        values = [results.summary["task"][name][variant].get(f"{measure}_mean") for name in names]
        known = [value for value in values if value is not None]
        return fmean(known) if known else None

    part = {variant: {f"{measure}_mean": mean(variant, measure) for measure in MEASURES} for variant in VARIANTS}
    theirs = [paper.get(name, {}) for name in names]
    # otherwise the two averages would be over different tasks
    keys = [key for key in theirs[0] if all(key in values for values in theirs)]
    return Line(title, part, kind="average", paper={key: fmean(values[key][0] for values in theirs) for key in keys})


def ood_table(results: Results, leak_rule: str) -> Table:
    """Scores on data sets that the task was not trained on, and how many of their texts it was trained on after all."""
    paper, lines, notes = published(HERE / "paper.yaml")["table3"], [], []
    for task, sets in results.summary["ood"].items():
        for test_set, part in sets.items():
            theirs = paper.get(task, {}).get(test_set)
            label = f"{name_of(results.tasks[task])} -> {test_set}", f"{part[GRAFTED]['n']:,}"
            lines.append(Line(label, part, paper={f"{GRAFTED} score": theirs} if theirs else None))
            notes.append(_leak_note(f"{task} -> {test_set}", part["rows"], leak_rule))
    if any(line.paper for line in lines):
        notes.insert(0, "paper: Table 3, RoBERTa-base, prompt-based fine-tuning, graft of 0.01 %")
    title = "Out-of-distribution score in %: mean (standard deviation over seeds)"
    return Table(title, ["trained -> tested", "n"], OOD, lines, notes)


def _leak_note(pair: str, rows: dict[str, int], leak_rule: str) -> str:
    if "leaked" not in rows:
        return f"{pair}: not known how many test texts are in the training data"
    fate = {"drop": "dropped", "keep": "kept"}[leak_rule] if rows["leaked"] else "nothing to drop"
    return f"{pair}: {rows['leaked']:,} of {rows['test']:,} test texts are in the training data, {fate}"


# --- What the claims measure, by their averages over tasks, with the tasks that do not follow ----------------------


def _below(parts: dict[str, float | None], write: Callable[[float | None], str]) -> Callable[[float], list[str]]:
    return lambda limit: [f"{task} {write(value)}" for task, value in parts.items() if value is None or value < limit]


def retained(summary: dict[str, Any]) -> Finding:
    """Share of the fine-tuned score that the graft keeps."""
    shares = {variant: summary["average"][variant].get("retained") for variant in VARIANTS}
    parts = {task: part[GRAFTED].get("retained_mean") for task, part in summary["task"].items()}
    return Finding(shares[GRAFTED], shares, _below(parts, lambda share: f"{percent(share, 2)} %"))


def ece_reduction(summary: dict[str, Any]) -> Finding:
    """Share by which the graft's ECE is below the fine-tuned model's."""
    average = summary["average"]
    reduction, of_cells = (average[GRAFTED].get(name) for name in ("ece_reduction", "ece_reduction_mean_of_cells"))
    fields = {"before": average[FINETUNED]["ece"], "after": average[GRAFTED]["ece"]}
    fields |= {"change": _change(reduction), "change_of_cells": _change(of_cells)}
    parts = {task: part[GRAFTED].get("ece_reduction") for task, part in summary["task"].items()}
    return Finding(reduction, fields, _below(parts, _change))


def _change(reduction: float | None) -> str:
    if reduction is None:
        return UNKNOWN
    return f"{percent(abs(reduction), 2)} % {'lower' if reduction >= 0 else 'higher'}"


def less_movement(summary: dict[str, Any], measure: str) -> Finding:
    """A measure of the learned graft less that of the movement graft."""
    average = summary["average"]["grafted_minus_movement"]
    fields = {variant: summary["average"][variant].get(measure) for variant in GRAFTS}
    fields |= {"gap": average[measure], "better": average[f"{measure}_better_cells"], "cells": average["cells"]}
    gaps = {task: part["grafted_minus_movement"][measure] for task, part in summary["task"].items()}
    return Finding(average[measure], fields, [f"{task} {points(gap, 2)}" for task, gap in gaps.items() if not gap > 0])


MEASURED = {"retained": retained, "ece_reduction": ece_reduction, "less_movement": less_movement}


# --- All of it -----------------------------------------------------------------------------------------------------


def report(results: Results, targets: SummaryParams, leak_rule: str) -> Report:
    """Setting, tables, sizes of the masks and claims; `leak_rule` is "drop" or "keep", what was done with leaked test texts."""
    tables = [score_table(results), *([ood_table(results, leak_rule)] if results.leaks else [])]
    first = results.masks.iloc[0]
    return Report(
        "Grafted models against fine-tuned models",
        f"{first.model}, {first['mode']} fine-tuning, {first.k} examples per class, {counts(task=len(results.tasks), seed=len(results.seeds))}",
        [table.text() for table in tables],
        mask_facts(results.summary["mask"]),
        judge(read_statements(HERE / "claims.yaml"), MEASURED, results.summary, targets),
    )


def mask_facts(masks: dict[str, dict[str, Any]]) -> list[str]:
    """The size of the masks with both denominators, one line for each size that occurs."""
    tasks_of: dict[str, list[str]] = {}
    for task, mask in masks.items():
        shares = [small_percent(mask[name]) for name in ("sparsity", "sparsity_of_model")]
        size = (
            f"{round(mask['selected']):,} of {mask['graftable']:,} graftable parameters ({shares[0]}), "
            f"{shares[1]} of the model's {mask['model_parameters']:,}"
        )
        tasks_of.setdefault(size, []).append(task)
    if len(tasks_of) == 1:
        return [f"Mask: {size}" for size in tasks_of]
    return [f"Mask of {', '.join(tasks)}: {size}" for size, tasks in tasks_of.items()]
