"""The report of the main pipeline, all its cells together: tidy frames, tables, the headline numbers and what the claims measure.

All measures are fractions 0..1.  Standard deviations are sample deviations over seeds (divisor seeds - 1), so there is none
for a single seed, and in averages over tasks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from stages.lib.data.tasks import TaskSpec
from stages.lib.errors import DataError
from stages.lib.graft.mask_indices import read_header
from stages.lib.io import read_json, require
from stages.lib.metrics.gain import add_gain, scores_of_ends
from stages.lib.metrics.variants import (
    CONTROLS,
    FINETUNED,
    GRAFT_REFITTED,
    GRAFTED,
    MOVEMENT_GRAFTED,
    PRETRAINED,
    REFITS,
    REFITTED,
    TEMPERED,
    VARIANTS,
    WISE_FT,
)
from stages.lib.report.claims import Finding, above_baselines, judge, read_statements, short_of
from stages.lib.report.document import Report
from stages.lib.report.format import (
    bounds,
    counts,
    marked,
    model_title,
    name_of,
    points,
    shots_of,
    small_percent,
    without_gain,
)
from stages.lib.report.load import Records, Row, grid, published, require_files
from stages.lib.report.stats import estimate
from stages.lib.report.table import Column, Line, Table, number, share, shown, stored
from stages.lib.settings import DataParams, OodParams
from stages.workflow.core import paths
from stages.workflow.core.sections import SummaryParams
from stages.workflow.core.stored import read_task

HERE = Path(__file__).parent
MEASURES = ("score", "accuracy", "f1", "ece", "agreement", "retained", "gain")
# of these, what is not in the files of evaluate and ood
DERIVED = ("ece", "gain")
KEYS = ["task", "test_set", "seed", "variant"]
SCORE_COLUMNS = ["task", "seed", "variant", "n", *MEASURES, "constant"]
OOD_COLUMNS = [*KEYS, "n", *MEASURES]
# in the files of evaluate and ood, and in those of calibration
SCORED = ["n", *(name for name in MEASURES if name not in DERIVED)]
CALIBRATED = ["n", "ece", "bin_count", "bin_confidence", "bin_accuracy", "histogram"]
# of completions, beside these
TOKEN_MEASURES = ["tokens", "token_accuracy", "perplexity"]
CELL = ["task", "seed"]
# in the header of a mask, as its localizer, or where dev preferred it to the learned one
MOVEMENT = "movement"


@dataclass(frozen=True)
class Results:
    """Tidy tables of all cells, in the order of params.yaml; measures are fractions 0..1, NaN where undefined.

    `scores` is about a task's own test set and `ood` about other test sets.  `reliability` (bins of confidence
    from 0, empty ones too) and `confidence` (bars between low and high) are of the own test set, all seeds together.
    `masks` has one row for each (task, seed), `frontier` one for each way to trade score for calibration (method, alpha).
    `leaks` maps (task, test set) to the numbers of test texts: leaked, test, and used if known.
    `gain` is of the scores, and undefined where fine-tuning gained less than `least_gain`.
    Of completions the score is their exact match, and agreement, ECE, bins and bars are of tokens.
    """

    tasks: dict[str, TaskSpec]
    seeds: list[int]
    scores: pd.DataFrame
    ood: pd.DataFrame
    reliability: pd.DataFrame
    confidence: pd.DataFrame
    masks: pd.DataFrame
    frontier: pd.DataFrame
    leaks: dict[tuple[str, str], dict[str, int]]
    least_gain: float

    def of(self, task: str, test_set: str = "") -> pd.DataFrame:
        """The rows of a task on its own test set, or on another."""
        if test_set:
            return self.ood[(self.ood.task == task) & (self.ood.test_set == test_set)]
        return self.scores[self.scores.task == task]

    def by_cell(self, measure: str) -> pd.DataFrame:
        """A measure on the own test sets by (task, seed), a column for each variant."""
        return self.scores.pivot(index=CELL, columns="variant", values=measure)

    @property
    def refits(self) -> list[str]:
        """Those of REFITS that there are."""
        return [variant for variant in REFITS if variant in {*self.scores.variant}]

    @property
    def generative(self) -> bool:
        """True if the models complete prompts."""
        return _completes(self.masks)

    @property
    def localizer(self) -> str:
        """The localizer of the graft's masks."""
        return self.masks.localizer.iloc[0]

    @property
    def unit(self) -> str:
        """The name of what predictions are of: tokens, or rows."""
        return "tokens" if self.generative else "rows"

    @property
    def score(self) -> str:
        """The name of the score of a task whose metric is no other."""
        return "exact match" if self.generative else "accuracy"

    @property
    def plots(self) -> dict[str, pd.DataFrame]:
        """The frames for `dvc plots`; empty bins would be drawn as points in the origin."""
        frames = {name: getattr(self, name) for name in ("scores", "ood", "reliability", "confidence", "frontier")}
        return frames | {"reliability": self.reliability[self.reliability["count"] > 0]}


def collect(tasks: list[str], seeds: list[int], ood: OodParams, least_gain: float) -> Results:
    """Read the files of every (task, seed); raises DataError for one that is missing or doesn't hold what it should."""
    cells = grid(task=tasks, seed=seeds)
    files = "metrics/{}/{{seed}}/{{task}}.json".format
    evaluated = Records("", "evaluate", files("evaluate"), cells, "{task}-{seed}", needs=())
    calibrated, tested = (Records("", stage, files(stage), cells, needs=()) for stage in ("calibration", "ood"))
    masks = Records("", "mask", "masks/learned/{seed}/{task}.safetensors", cells, "{task}-{seed}")
    require_files("dvc repro", evaluated, calibrated, tested, masks)
    sizes = pd.DataFrame([{**read_header(masks.file(cell)), **cell} for cell in cells])
    more = TOKEN_MEASURES if _completes(sizes) else []
    others = {task: ood.sets.get(task, []) for task in tasks}
    names = [*SCORED, "constant", *more]
    scored = _variants(evaluated, {task: [task] for task in tasks}, names) + _variants(tested, others, names)
    calibration = pd.DataFrame(_variants(calibrated, {task: [task, *others[task]] for task in tasks}, CALIBRATED))
    scores = pd.DataFrame(scored).merge(calibration, on=KEYS, how="left", suffixes=("", "_calibrated"))
    for row in scores[scores.n != scores.n_calibrated].itertuples():
        cell = {"task": row.task, "seed": row.seed}
        about = f"{row.n_calibrated} test rows of {row.test_set}, its scores are about {row.n}"
        raise DataError(f"{calibrated.file(cell)}: is about {about}; {calibrated.made_by(cell)}")
    scores = add_gain(scores, scores_of_ends(scores, KEYS[:-1]), least_gain)
    # a column of nothing but undefined values would be one of objects
    scores = scores.astype(dict.fromkeys(MEASURES, float))
    own = scores[scores.test_set == scores.task]
    # of completions the score is the exact match, whatever the metric of its labels is
    metric = {"metric": "accuracy"} if more else {}
    return Results(
        tasks={task: read_task(task).model_copy(update=metric) for task in tasks},
        seeds=list(seeds),
        scores=own[[*SCORE_COLUMNS, *more]],
        ood=scores.loc[scores.test_set != scores.task, [*OOD_COLUMNS, *more]],
        reliability=_pooled_bins(own),
        confidence=_pooled_bars(own),
        masks=sizes,
        frontier=pd.DataFrame(calibrated.rows(lambda cell, record: ({**cell, **row} for row in record["frontier"]))),
        leaks=_leaks([(task, test_set) for task in tasks for test_set in others[task]]),
        least_gain=least_gain,
    )


def _completes(masks: pd.DataFrame) -> bool:
    return bool((masks["mode"] == "generative").all())


def _variants(records: Records, test_sets: dict[str, list[str]], names: Sequence[str]) -> list[Row]:
    return records.rows(
        lambda cell, record: [
            {**cell, "test_set": test_set, "variant": variant, **{name: values[name] for name in names}}
            for test_set in test_sets[cell["task"]]
            for variant in (VARIANTS if test_set != cell["task"] else (*VARIANTS, *CONTROLS, *REFITS))
            if variant not in REFITS or variant in record["scores"][test_set]
            for values in [record["scores"][test_set][variant]]
        ]
    )


def _pooled_bins(scores: pd.DataFrame) -> pd.DataFrame:
    rows = scores.explode(["bin_count", "bin_confidence", "bin_accuracy"])
    means = {name: rows[f"bin_{name}"].astype(float) for name in ("confidence", "accuracy")}
    return added_bins(rows.assign(bin=rows.groupby(level=0).cumcount(), count=rows.bin_count.astype(int), **means))


def added_bins(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each bin of a task's variant, of rows that several seeds or runs have of it: counts added up, means weighted."""
    means = ["confidence", "accuracy"]
    # sums over the test rows of a bin, so that they can be added
    sums = rows.assign(**{name: rows[name] * rows["count"] for name in means})
    bins = sums.groupby(["task", "variant", "bin"], sort=False)[["count", *means]].sum().reset_index()
    return bins.assign(**{name: bins[name] / bins["count"].clip(lower=1) for name in means})


def _pooled_bars(scores: pd.DataFrame) -> pd.DataFrame:
    rows = scores.assign(bars=scores.histogram.str.len()).explode("histogram")
    place = rows.groupby(level=0).cumcount()
    return added_bars(
        rows.assign(low=place / rows.bars, high=(place + 1) / rows.bars, count=rows.histogram.astype(int))
    )


def added_bars(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each bar of a task's variant, of rows that several seeds or runs have of it, with its share of all counts."""
    bars = rows.groupby(["task", "variant", "low", "high"], sort=False)["count"].sum().reset_index()
    return bars.assign(share=bars["count"] / bars.groupby(["task", "variant"])["count"].transform("sum"))


def _leaks(pairs: list[tuple[str, str]]) -> dict[tuple[str, str], dict[str, int]]:
    if not pairs:
        return {}
    shared = read_json(require(paths.LEAKAGE, "fetch"))
    return {(task, test_set): shared.get(task, {}).get(test_set, {}) for task, test_set in pairs}


# --- Tables, laid out like Table 2 of the paper --------------------------------------------------------------------


def column(title: str, variant: str, measure: str) -> Column:
    """A measure of a variant; its `key` tells it from others in the metrics file and among the paper's values."""
    return share(title, partial(_values, variant=variant, measure=measure), f"{variant} {measure}")


def _values(rows: pd.DataFrame, variant: str, measure: str) -> pd.Series:
    return rows.loc[rows.variant == variant, measure]


TITLES = {PRETRAINED: "pre", FINETUNED: "FT", WISE_FT: "WiSE", MOVEMENT_GRAFTED: "move", GRAFTED: "graft"}
SCORES = [
    *(column(title, variant, "score") for variant, title in TITLES.items()),
    column("agree", GRAFTED, "agreement"), column("kept", GRAFTED, "retained"), column("gain", GRAFTED, "gain"),
]  # fmt: skip
# where there are any, behind the columns of the tables of `score` and `ece`
REFIT_TITLES = {REFITTED: "FT/H", GRAFT_REFITTED: "graft/H"}
ERRORS = [column(title, variant, "ece") for variant, title in (TITLES | {TEMPERED: "FT/T"}).items()]
TOKENS = [
    *(number(title, partial(_values, variant=FINETUNED, measure=name), ".0f", key=title) for title, name in (("rows", "n"), ("tokens", "tokens"))),
    *(column(title, variant, "token_accuracy") for variant, title in TITLES.items()),
]  # fmt: skip
PERPLEXITIES = [
    number(title, partial(_values, variant=variant, measure="perplexity"), ".2f", key=f"{variant} perplexity")
    for variant, title in TITLES.items()
]
OOD = [
    *(column(title, variant, "score") for title, variant in zip(("pre", "FT", "move", "graft"), VARIANTS, strict=True)),
    Column("graft - FT", lambda rows: _values(rows, GRAFTED, "score").mean() - _values(rows, FINETUNED, "score").mean(), points),
]  # fmt: skip
USUAL_SHOTS = 64
# a table of paper.yaml, and its model and size; for causal models another one
TABLE_2 = "Table 2", "RoBERTa-base", "0.01 %"
TABLES = {"autoregressive": ("Table 9", "GPT-2 (small)", "0.05 %")}


def paper_scores(k: int, mode: str) -> tuple[str, dict[str, dict[str, tuple[float, float]]]]:
    """The paper's table to compare with, for k shots or else 64, in words, and its tasks' (mean, deviation) by key of a column."""
    title, model, size = TABLES.get(mode, TABLE_2)
    table = published(HERE / "paper.yaml")[title.replace(" ", "").lower()]
    shots = k if k in table else USUAL_SHOTS
    flat = {
        task: {f"{variant} {name}": pair for variant, values in variants.items() for name, pair in values.items()}
        for task, variants in table[shots].items()
    }
    return f"{title}, {shots}-shot, {model}, prompt-based fine-tuning, graft of {size}", flat


def task_table(results: Results, heading: str, columns: list[Column], notes: list[str], name: str) -> Table:
    """A measure of every task, by one and two sentences, with the paper's values where it has the task."""
    tasks, setting = results.tasks, results.masks.iloc[0]
    source, paper = paper_scores(int(setting["k"]), setting["mode"])
    paper = {} if results.generative else paper
    groups: dict[bool, list[str]] = {}
    for task in sorted(tasks, key=lambda task: tasks[task].is_pair):
        groups.setdefault(tasks[task].is_pair, []).append(task)
    lines = []
    for pairs, names in groups.items():
        lines += [Line("two sentences" if pairs else "one sentence")] if len(groups) > 1 else []
        lines += [Line(name_of(tasks[name]), results.of(name), name, paper=paper.get(name)) for name in names]
        if len(groups) > 1 and len(names) > 1:
            lines.append(_average_line("average of these", names, results, paper))
    lines.append(_average_line("average", [*tasks], results, paper))
    notes = [
        "pre: pretrained, with the fine-tuned model's head; FT: fine-tuned; WiSE: all weights between these two, where dev scores "
        f"highest; move: movement grafted, of the size of the {results.localizer} graft; graft: grafted with the {results.localizer} mask",
        *notes,
        f"n, test rows of each seed: {_test_rows(results)}",
    ]
    if marks := marked(task.metric for task in tasks.values()):
        notes.append(marks)
    if any(line.paper for line in lines):
        notes.append(f"paper: {source}; no target for other settings")
    if results.refits:
        columns = [*columns, *(column(title, variant, name) for variant, title in REFIT_TITLES.items())]
        notes.append("/H: with the head trained on, on training rows, while all else stays")
    heading += ": mean (standard deviation over seeds; of averages over tasks)"
    return Table(heading, ["task"], columns, lines, notes, name, [column.key for column in columns])


def _test_rows(results: Results) -> str:
    rows = results.scores.groupby("task", sort=False).n.min()
    same = f"{rows.iloc[0]:,} a task" if rows.nunique() == 1 else ""
    return same or ", ".join(f"{task} {n:,}" for task, n in rows.items())


def score_table(results: Results) -> Table:
    """Scores of all models, and what the graft has of the fine-tuned one."""
    notes = [
        f"agree: share of predict{'ed tokens' if results.generative else 'ions'} equal to the fine-tuned model's; kept: graft score / FT score; "
        f"gain: (graft score - pre) / (FT score - pre){_without_gain(results)}"
    ]
    if results.generative:
        meaning = "greedy decoding writes the whole completion and its end token, in share of the test rows"
        notes.insert(0, f"exact match: {meaning}")
    title = "Exact match in %" if results.generative else "Test score in %"
    return task_table(results, title, SCORES, notes, "score")


def token_tables(results: Results) -> list[Table]:
    """The quality of the models token by token."""
    notes = ["of each token after all of the reference before it; tokens of a row are not independent"]
    return [
        task_table(results, "Tokens right in %", TOKENS, notes, "tokens"),
        task_table(results, "Perplexity", PERPLEXITIES, notes, "perplexity"),
    ]


def error_table(results: Results) -> Table:
    """Calibration errors, of the controls too."""
    notes = ["FT/T: the fine-tuned model at one temperature, fitted on dev, which changes no prediction"]
    title = f"Calibration error (ECE){' of next-token probabilities' * results.generative} in %"
    return task_table(results, title, ERRORS, notes, "ece")


def _average_line(title: str, names: list[str], results: Results, paper: dict[str, dict[str, Any]]) -> Line:
    rows = results.scores[results.scores.task.isin(names)]
    # first over seeds, so that every task counts alike
    measured = [*MEASURES, *(name for name in ("n", *TOKEN_MEASURES) if name in rows)]
    means = rows.groupby(["variant", "task"], sort=False)[measured].mean().reset_index()
    theirs = [paper.get(name, {}) for name in names]
    # otherwise the two averages would be over different tasks
    keys = [key for key in theirs[0] if all(key in values for values in theirs)]
    averages = {key: sum(values[key][0] for values in theirs) / len(theirs) for key in keys}
    return Line(title, means, kind="average", paper=averages)


def ood_table(results: Results, leak_rule: str) -> Table:
    """Scores on data sets that the task was not trained on, and how many of their texts it was trained on after all."""
    paper, lines, notes = published(HERE / "paper.yaml")["table3"], [], []
    for (task, test_set), leaked in results.leaks.items():
        rows = results.of(task, test_set)
        theirs = paper.get(task, {}).get(test_set)
        label = f"{name_of(results.tasks[task])} -> {test_set}", f"{rows.n.min():,}"
        lines.append(Line(label, rows, (task, test_set), paper={f"{GRAFTED} score": theirs} if theirs else None))
        notes.append(_leak_note(f"{task} -> {test_set}", leaked, leak_rule))
    if any(line.paper for line in lines):
        notes.insert(0, "paper: Table 3, RoBERTa-base, prompt-based fine-tuning, graft of 0.01 %")
    title = f"Out-of-distribution {'exact match' if results.generative else 'score'} in %: mean (standard deviation over seeds)"
    keys = [column.key for column in OOD if column.key]
    return Table(title, ["trained -> tested", "n"], OOD, lines, notes, "ood", keys)


def _leak_note(pair: str, rows: dict[str, int], leak_rule: str) -> str:
    if "leaked" not in rows:
        return f"{pair}: not known how many test texts are in the training data"
    fate = {"drop": "dropped", "keep": "kept"}[leak_rule] if rows["leaked"] else "nothing to drop"
    return f"{pair}: {rows['leaked']:,} of {rows['test']:,} test texts are in the training data, {fate}"


# --- What the claims measure, with the tasks that do not follow ----------------------------------------------------


def of_graft(results: Results, measure: str) -> Finding:
    """A measure of the graft, and of the movement graft and the pretrained model beside it."""
    own = estimate(results.by_cell(measure)[GRAFTED])
    fields = {name: results.by_cell(measure).groupby("task").mean().mean()[name] for name in VARIANTS}
    fields["unit"] = "tokens" if results.generative else "inputs"
    return Finding(own, fields, short_of(results.by_cell(measure)[GRAFTED], unit=""))


def difference(results: Results, first: str, second: str, measure: str) -> Finding:
    """A measure of one variant less that of another."""
    values = results.by_cell(measure)
    gap = values[first] - values[second]
    means = values.groupby("task").mean().mean()
    fields = {"first": means[first], "second": means[second], "localizer": results.localizer}
    same = {first, second} == {GRAFTED, MOVEMENT_GRAFTED} and results.localizer == MOVEMENT
    return Finding(estimate(gap), fields, short_of(gap, points, ""), "; both are the same graft" * same)


def ece_reduction(results: Results) -> Finding:
    """1 - ECE of the graft / ECE of the fine-tuned model, of their means over tasks: a ratio of single cells swings with the small ones."""
    ece = results.by_cell("ece")[[GRAFTED, FINETUNED]]
    means = ece.groupby("task").mean().mean()
    value = estimate(ece, statistic=lambda units: 1 - units[GRAFTED].mean() / units[FINETUNED].mean())
    fields, by_task = {"first": means[GRAFTED], "second": means[FINETUNED]}, ece.groupby("task", sort=False).mean()
    return Finding(value, fields, short_of(1 - by_task[GRAFTED] / by_task[FINETUNED], unit=""))


def relative_gain(results: Results) -> Finding:
    """Which part of what fine-tuning gained over the pretrained model the graft brings, and the movement graft."""
    gains = results.by_cell("gain")
    fields = {"movement": gains[MOVEMENT_GRAFTED].groupby("task").mean().mean(), "left_out": _without_gain(results)}
    void = fields["left_out"] if gains[GRAFTED].isna().all() else ""
    return Finding(estimate(gains[GRAFTED]), fields, short_of(gains[GRAFTED], unit=""), void)


def _without_gain(results: Results) -> str:
    gains = results.by_cell("gain")[GRAFTED]
    return without_gain(int(gains.isna().sum()), len(gains), "fine-tuning", results.least_gain)


def gained(results: Results) -> Finding:
    """Control of whatever is kept: fine-tuning has gained something over the pretrained model with the same head, or one label."""
    scores = results.by_cell("score")
    constant = results.by_cell("constant")[FINETUNED] if "constant" in results.scores else None
    return above_baselines(scores[FINETUNED], scores[PRETRAINED], constant, "fine-tuning")


MEASURED = {
    "of_graft": of_graft, "difference": difference, "ece_reduction": ece_reduction, "relative_gain": relative_gain, "gained": gained,
}  # fmt: skip


# --- All of it -----------------------------------------------------------------------------------------------------


def sizes_of(masks: pd.DataFrame) -> str:
    """From the smallest to the largest share of the graftable parameters that masks select."""
    return bounds([*map(small_percent, sorted(masks.selected / masks.graftable))])


def report(results: Results, targets: SummaryParams, leak_rule: str, data: DataParams) -> Report:
    """Setting, tables, sizes of the masks and claims; `leak_rule` is "drop" or "keep", what was done with leaked test texts."""
    first = results.masks.iloc[0]
    model = model_title(first.model)
    per = "per class" if any(task.labels for task in results.tasks.values()) else "in all"
    here = f"{model}, {first['mode']}, {shots_of(data)}, graft of {sizes_of(results.masks)}"
    return Report(
        "Grafted models against fine-tuned models",
        f"{model}, {first['mode']} fine-tuning, {shots_of(data, 'example')} {per}, {counts(task=len(results.tasks), seed=len(results.seeds))}",
        shown(_tables(results, leak_rule)),
        mask_facts(results),
        judge(read_statements(HERE / "claims.yaml"), MEASURED, results, here, targets),
    )


def _tables(results: Results, leak_rule: str) -> list[Table]:
    tokens = token_tables(results) if results.generative else []
    others = [ood_table(results, leak_rule)] if results.leaks else []
    return [score_table(results), *tokens, error_table(results), *others]


def headline(results: Results) -> dict[str, Any]:
    """The numbers for `dvc metrics`: means over tasks."""
    more = TOKEN_MEASURES[1:] if results.generative else []
    means = results.scores.groupby(["variant", "task"])[[*MEASURES, *more]].mean().groupby("variant").mean()
    parts: dict[str, Any] = {"tasks": len(results.tasks), "seeds": len(results.seeds)}
    for variant in (*VARIANTS, *CONTROLS, *results.refits):
        parts[variant] = {name: means[name][variant] for name in ("score", "ece", *more)}
    del parts[TEMPERED]["score"]  # a temperature changes no prediction
    parts[GRAFTED] |= {"agreement": means.agreement[GRAFTED], "retained": means.retained[GRAFTED]}
    return parts


def details(results: Results, leak_rule: str) -> dict[str, Any]:
    """Every number: tables by name, sizes of the masks by task, differences of variants."""
    masks = {task: _mask_size(rows) for task, rows in results.masks.groupby("task", sort=False)}
    gaps = {measure: difference(results, GRAFTED, MOVEMENT_GRAFTED, measure).value.numbers() for measure in MEASURES}
    return {**stored(_tables(results, leak_rule)), "grafted_minus_movement": gaps, "mask": masks}


def _mask_size(rows: pd.DataFrame) -> dict[str, Any]:
    selected = float(rows.selected.mean())
    graftable, parameters = (int(rows[name].iloc[0]) for name in ("graftable", "model_parameters"))
    shares = {"sparsity": selected / graftable, "sparsity_of_model": selected / parameters}
    return {"selected": selected, "graftable": graftable, "model_parameters": parameters, **shares}


def mask_facts(results: Results) -> list[str]:
    """The size of the masks with both denominators, one line for each size that occurs."""
    tasks_of: dict[str, list[str]] = {}
    for task, rows in results.masks.groupby("task", sort=False):
        mask = _mask_size(rows)
        shares = [small_percent(mask[name]) for name in ("sparsity", "sparsity_of_model")]
        size = (
            f"{round(mask['selected']):,} of {mask['graftable']:,} graftable parameters ({shares[0]}), "
            f"{shares[1]} of the model's {mask['model_parameters']:,}"
        )
        tasks_of.setdefault(size, []).append(task)
    whose = {size: " of " + ", ".join(tasks) if len(tasks_of) > 1 else "" for size, tasks in tasks_of.items()}
    facts = [f"Mask{of_tasks}: {size}" for size, of_tasks in whose.items()]
    given_way = results.masks[results.masks.kept == MOVEMENT] if "kept" in results.masks else results.masks.iloc[:0]
    if cells := ", ".join(f"{row.task}-{row.seed}" for row in given_way.itertuples()):
        why = "since its graft agrees more on dev than the learned one's"
        facts.append(f"The mask that moved most was kept, {why}: {cells}")
    return facts
