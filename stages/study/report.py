"""What all stages of the single-task study say together: the paper's tables beside ours, numbers, and what claims measure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any

import pandas as pd

from stages.lib.metrics.composition import OUTSIDE
from stages.lib.metrics.variants import FINETUNED, GRAFTED, PRETRAINED
from stages.lib.report.claims import Finding, judge, read_statements
from stages.lib.report.document import Report
from stages.lib.report.format import DAGGER, bounds, counted, percent, points, small_percent
from stages.lib.report.load import published
from stages.lib.report.stats import Estimate, mean_of, paired
from stages.lib.report.table import Column, Line, Table, share, shown, stored
from stages.study import bound
from stages.study.frames import (
    BIAS,
    CELL,
    FISH,
    LEARNED,
    RANDOM,
    Study,
    by_cell,
    nearest,
    own_rows,
    sparsities,
)

HERE = Path(__file__).parent
PAPER = "paper: RoBERTa-base, 4096-shot, 5 seeds; no target for other settings"
VALUES = "mean (standard deviation over cells) in %; n: cells, one for each task and seed"
MOST_TASKS = 4
FAMILIES = {"lora": "LoRA", "houlsby": "Houlsby et al.", "pfeiffer": "Pfeiffer et al.", "graft": "Grafting"}
# in metrics/study.json, where `all` stands for no value of an axis
MEASURES_STORED = ("score", "accuracy", "ece", "agreement", "retained", "loss")
STORED_BY = {
    "anchor": ["variant"],
    "sweep": ["localizer", "sparsity"],
    "readout": ["readout", "localizer", "sparsity"],
    "wise": ["variant", "alpha"],
    "peft": ["method"],
    "paradigm": ["paradigm", "variant", "sparsity"],
    "trajectory": ["variant", "sparsity"],
}
# of the generalization bound
DELTA = 0.05
# a difference of two shares is never larger, so a bound of 1 says nothing
NOTHING = 1.0
# where claims compare localizers
ORDER_SIZE = 0.001


def report(study: Study) -> Report:
    """Tables, which stages are off, and which effects of the paper show."""
    size = f"{counted(len(study.tasks), 'task')}, {counted(len(study.seeds), 'seed')}"
    facts = [f"off, so without tables and figures: {', '.join(study.off)}"] if study.off else []
    claims = judge(read_statements(HERE / "claims.yaml"), MEASURES, study)
    return Report("The single-task study", size, shown(tables(study)), facts, claims)


def tables(study: Study) -> list[Table]:
    """Tables in the order in which they are read."""
    paper = published(HERE / "paper.yaml")
    return [
        _localizers(study),
        _order(study),
        _readouts(study, paper["table1"]),
        _readout_kinds(study),
        _gaps(study),
        _bounds(study),
        _ood(study, paper["table3"]),
        _sizes(study, paper["table5"]),
        _fish(study, paper["table8"]),
        *_calibration(study, paper["table6"]),
        *_transfer(study, paper["table7"]),
    ]


def numbers(study: Study) -> dict[str, Any]:
    """metrics/study.json: parts of n, mean and sd over cells; measures are fractions 0..1 on the own test set.

    anchor variant, sweep localizer sparsity, readout readout localizer sparsity, wise variant alpha, peft method,
    paradigm paradigm variant sparsity, trajectory variant sparsity (the last step): -> measure, and `ood_score`, the
    score on the task's other test sets; compare first-second -> difference of score, at `sparsity`; overlap
    first-second -> sparsity -> iou, chance; cost localizer -> sparsity -> seconds, gradient_examples; gap model.
    """
    cost = [share("", "seconds"), share("", "gradient_examples")]
    parts = stored(
        [
            *(_stage(study, stage, axes) for stage, axes in STORED_BY.items()),
            _overlaps(study),
            _stored("cost", study.frames["cost"], ["localizer", "sparsity"], cost),
        ]
    )
    sizes = study.common_sparsities
    if sizes and len(study.localizers) > 1:
        differences = study.compared(sizes[0]).items()
        compare = {f"{first}-{second}": value.numbers() for (first, second), value in differences}
        parts["compare"] = {"sparsity": float(sizes[0]), **compare}
    parts["gap"] = {name: mean_of(values).numbers() for name, values in study.gaps().items()}
    order = [*STORED_BY, "compare", "overlap", "cost", "gap"]
    return {name: parts[name] for name in order if name in parts}


# --- Numbers that no table shows -----------------------------------------------------------------------------------


def _stage(study: Study, stage: str, axes: list[str]) -> Table:
    def measured(where: str, measure: str, key: str) -> Column:
        def of(rows: pd.DataFrame) -> pd.Series | None:
            rows = rows[rows["where"] == where]
            return by_cell(rows, measure) if len(rows) else None

        return Column("", of, str, key)

    rows = [study.rows(stage, where) for where in ("id", "ood")]
    if stage in ("readout", "peft", "sweep"):
        rows = [own_rows(part) for part in rows]
    if stage == "trajectory":
        rows = [part[part.step == part.groupby("task")["step"].transform("max")] for part in rows]
    columns = [*(measured("id", name, name) for name in MEASURES_STORED), measured("ood", "score", "ood_score")]
    return _stored(stage, pd.concat(rows), axes, columns)


def _overlaps(study: Study) -> Table:
    rows = study.frames["localizer_overlap"]
    rows = rows.assign(pair=rows["first"] + "-" + rows["second"]).sort_values(["first", "second", "sparsity"])
    columns = [share("", "iou"), Column("", lambda part: float(part.chance.mean()), str, "chance")]
    return _stored("overlap", rows, ["pair", "sparsity"], columns)


def _stored(name: str, rows: pd.DataFrame, axes: list[str], columns: list[Column]) -> Table:
    """A table without a title: a line for each combination of the axes' values, `all` where there is none."""

    def text(value: Any) -> str:
        return "all" if pd.isna(value) else value if isinstance(value, str) else f"{value:g}"

    groups = rows.groupby([rows[axis].map(text) for axis in axes], sort=False)
    lines = [Line("", part, key) for key, part in groups]
    return Table("", (), columns, lines, name=name, stored=[column.key for column in columns])


# --- Localizers, readouts, the generalization gap and its bound ----------------------------------------------------


def _cell_mean(title: str, measure: str) -> Column:
    return share(title, lambda rows: by_cell(rows, measure), measure)


N = Column("n", lambda rows: by_cell(rows).count(), str)


def _localizers(study: Study) -> Table:
    """At the smallest sparsity that all have."""
    size = min(study.common_sparsities, default=0.0)
    lines = [Line(name, study.grafts(name, size)) for name in study.localizers if size]
    for variant in (PRETRAINED, FINETUNED) if lines else ():
        rows = study.anchor(variant)
        lines += [Line(variant, rows, kind="average")] * bool(by_cell(rows).count())
    columns = [N, _cell_mean("score", "score"), _cell_mean("retained", "retained"), _cell_mean("ECE", "ece"),
        _cell_mean("agreement", "agreement")]  # fmt: skip
    title = f"Localizers at a sparsity of {small_percent(size)}, over all tasks and seeds"
    return Table(title, ["localizer"], columns, lines, [VALUES])


def _order(study: Study) -> Table:
    """Paired differences of score between localizers, at the smallest common sparsity."""
    size = min(study.common_sparsities, default=0.0)
    differences = study.compared(size) if size else {}
    lines = [Line(f"{first} - {second}", value) for (first, second), value in differences.items() if value.n]
    titles = {"mean": "mean", "sd": "sd", "low": "95 % from", "high": "95 % to"}
    columns = [Column("n", attrgetter("n"), str), *(Column(title, attrgetter(name), points) for name, title in titles.items()),
        Column("higher in", lambda value: value, "{0.positive} of {0.n}".format)]  # fmt: skip
    title = "Localizers compared pair by pair: difference of score in percentage points"
    note = "n: cells that both have; t-interval for the mean of the differences of single cells, which takes cells as independent"
    return Table(title, ["pair"], columns, lines, [f"sparsity {small_percent(size)}", note])


def _readout_kinds(study: Study) -> Table:
    """Every readout of every region: retrain, reset, prune, as far as they ran."""
    axes = ["readout", "localizer", "sparsity"]
    lines = [
        Line((f"{readout} {localizer}", small_percent(sparsity)), study.readout(readout, localizer, sparsity))
        for (readout, localizer, sparsity), _ in study.frames["readout"].groupby(axes, sort=False)
    ]
    columns = [N, _cell_mean("score", "score"), _cell_mean("retained", "retained"), _cell_mean("ECE", "ece")]
    notes = [VALUES, "retrain: train only the region; reset: set it back to pretrained; prune: set all else to 0"]
    return Table("Readouts of the regions, over all tasks and seeds", ["readout", "sparsity"], columns, lines, notes)


def _gaps(study: Study) -> Table:
    """The generalization gap (section 4.3 of the paper)."""
    lines = [Line(name, mean_of(gap)) for name, gap in study.gaps().items()]
    columns = [Column("n", attrgetter("n"), str), *(Column(name, attrgetter(name), points) for name in ("mean", "sd"))]
    notes = ["accuracy on training rows less accuracy on test rows, in percentage points", VALUES]
    return Table("Generalization gap", ["model"], columns, lines, notes)


@dataclass(frozen=True)
class BoundLine:
    """One task and model: mean errors over seeds, and the bound with one region (Theta_n = 1) or with any of them.

    `needed`: examples at which the variance term of each of the two falls to 1.
    """

    task: str
    model: str
    cells: int
    train: float
    test: float
    selected: int
    examples: int
    fixed: bound.Bound
    free: bound.Bound
    needed: tuple[int, int]


def bound_lines(study: Study) -> list[BoundLine]:
    """The graft and the retrained region of every task whose two readouts were measured on training rows too."""
    size, whole, lines = study.region_size, study.anchor(FINETUNED), []
    for task in study.tasks if size is not None else []:
        errors = {name: _errors(study, name, size, task) for name in ("graft", "retrain")}
        if all(map(len, errors.values())):
            best = mean_of(whole[whole.task == task].accuracy).mean if task in {*whole.task} else None
            bias = None if best is None else bound.measured_bias(float(errors["retrain"].test.mean()), 1 - best)
            short = bound.epsilon_2(*(float(errors[name].train.mean()) for name in ("graft", "retrain")))
            lines += [_bound_line(task, model, part, short, bias) for model, part in errors.items()]
    return lines


def _errors(study: Study, readout: str, size: float, task: str) -> pd.DataFrame:
    """Train and test error, s, training rows and graftable parameters of each cell that has both errors."""
    test, train = (study.readout(readout, LEARNED, size, where) for where in ("id", "train"))
    test, train = (rows[rows.task == task] for rows in (test, train))
    columns = {
        "train": 1 - by_cell(train, "accuracy"),
        "test": 1 - by_cell(test, "accuracy"),
        **{name: by_cell(train, name) for name in ("selected", "n", "graftable")},
    }
    return pd.DataFrame(columns).dropna()


def _bound_line(task: str, model: str, errors: pd.DataFrame, short: float, bias: float | None) -> BoundLine:
    # the largest mask and the smallest training set of the seeds, so that the bound covers each of them
    selected, examples = int(errors.selected.max()), int(errors.n.min())
    regions = bound.log_all_regions(selected, int(errors.graftable.max()))
    classes = bound.ModelClass(selected), bound.ModelClass(selected, log_regions=regions)
    if model == "graft":
        fixed, free = (bound.grafted_bound(models, examples, DELTA, short, bias=bias) for models in classes)
    else:
        fixed, free = (bound.retrained_bound(models, examples, DELTA, bias=bias) for models in classes)
    delta = DELTA / 2 if model == "graft" else DELTA
    one, many = (bound.examples_for(models, NOTHING, delta) for models in classes)
    means = float(errors.train.mean()), float(errors.test.mean())
    return BoundLine(task, model, len(errors), *means, selected, examples, fixed, free, (one, many))


def _bounds(study: Study) -> Table:
    """Train and test errors, their gap, and theorems D.2 and D.4 term by term."""
    found, whole, two = bound_lines(study), "{:,}".format, "{:.2f}".format
    columns = [
        Column(title, attrgetter(of) if isinstance(of, str) else of, form)
        for title, of, form in (
            ("n", "cells", str), ("train error", "train", percent), ("test error", "test", percent),
            ("gap", lambda line: line.test - line.train, points), ("s", "selected", whole), ("examples", "examples", whole),
            ("variance", "fixed.variance", two), ("eps_2", "fixed.suboptimality", percent), ("bias", "fixed.bias", percent),
            ("bound", "fixed.total", two), ("bound, any region", "free.total", two),
            ("examples needed", lambda line: line.needed[0], whole),
        )
    ]  # fmt: skip
    notes = [
        "errors: share of wrong predictions in %, mean over n seeds; gap: test - train in percentage points; eps_2, bias in %",
        "bound on test error - that of the best model, both within 0..1 (appendix D): variance + eps_2 + bias, eps_1 = 0; "
        f"delta = {DELTA}, q = 2^32 values a parameter, log Theta_n = 0, or s log d for any region of the d graftable parameters",
        "s: parameters of the region; those of a new head, which is trained too, are not counted",
        "bias is measured (retrained - fine-tuned test error, at least 0), not the best models' own, which nobody knows",
        _verdict(found),
    ]
    title = f"Generalization bound, at a sparsity of {small_percent(study.region_size or 0)}"
    return Table(title, ["task", "model"], columns, [Line((line.task, line.model), line) for line in found], notes)


def _verdict(lines: list[BoundLine]) -> str:
    empty = [line for line in lines if line.fixed.vacuous]
    if not empty:
        return "no bound for a region given beforehand is vacuous (1 or more)"
    fixed, free = (bounds([f"{count:,}" for count in sorted(line.needed[at] for line in empty)]) for at in (0, 1))
    return (
        f"vacuous (1 or more, which any error fulfils) in {len(empty)} of {len(lines)} lines: the variance term alone "
        f"takes {fixed} training examples to fall to 1, for any region {free}"
    )


# --- The paper's tables: a line is of a task or a pair of trained task and test set, in tables 6 and 7 of a method -----


def _of(rows: pd.DataFrame, task: str, test_set: str = "", measure: str = "score") -> pd.Series:
    """A measure by cell of the rows of a trained task on a test set, its own unless named."""
    return by_cell(rows[(rows.task == task) & (rows.test_set == (test_set or task))], measure)


def _score_and_ece(title: str, key: Any, of: Callable[[Any, str], pd.Series]) -> list[Column]:
    titles = {"score": f"{title} score", "ece": f"{title} ECE"}
    return [
        share(text, lambda data, measure=measure: of(data, measure), f"{key} {measure}")
        for measure, text in titles.items()
    ]


def _flat(values: Mapping[Any, Any]) -> dict[str, Any]:
    """column -> measure -> value by the keys of `_score_and_ece`; single values stay."""
    parts = {name: part if isinstance(part, dict) else {"": part} for name, part in values.items()}
    return {f"{name} {measure}".strip(): value for name, part in parts.items() for measure, value in part.items()}


def _four_models(study: Study, size: float | None, where: str = "id") -> dict[str, tuple[str, pd.DataFrame]]:
    return {
        "finetuned": ("FT", study.anchor(FINETUNED, where)),
        "graft": ("graft", study.grafts(LEARNED, size, where)),
        "retrain": ("retrain", study.readout("retrain", LEARNED, size, where)),
        "bitfit": ("BitFit", study.readout("retrain", BIAS, None, where)),
    }


def _daggers(study: Study) -> list[str]:
    return [f"{DAGGER} F1, the others accuracy"] if study.f1_tasks else []


def _by_task(
    study: Study, models: Mapping[Any, tuple[str, pd.DataFrame]], counted_: Any, paper: Any
) -> tuple[list, list]:
    """Columns of score and ECE of these models, with the cells of one of them; and a line for each task that this has."""
    columns = [Column("n", lambda task: len(_of(models[counted_][1], task)), str)]
    for key, (title, rows) in models.items():
        columns += _score_and_ece(title, key, lambda task, measure, rows=rows: _of(rows, task, measure=measure))
    return columns, [Line(study.named(task), task, paper=_flat(paper.get(task, {}))) for task in study.tasks]


def _readouts(study: Study, paper: Mapping[str, Any]) -> Table:
    """Fine-tuned model, graft, its region trained alone, and all biases trained alone (table 1)."""
    size = study.region_size
    models = _four_models(study, size)
    columns, lines = _by_task(study, models, "retrain", paper)
    trained = models["retrain"][1].dropna(subset=["score", "ece"], how="all").task
    lines = [line for line in lines if size is not None and line.data in {*trained}]
    notes = [
        VALUES,
        "retrain: only the region's parameters are trained; BitFit: only biases are",
        PAPER,
        *_daggers(study),
    ]
    title = f"Table 1: the region trained alone, at a sparsity of {small_percent(size or 0)}"
    return Table(title, ["task"], columns, lines, notes)


def _ood(study: Study, paper: Mapping[str, Any]) -> Table:
    """Score on other test sets of the same four models (table 3)."""
    size = study.region_size
    if size is None:
        size = nearest(study.common_sparsities)
    models = _four_models(study, size, "ood")
    columns = [Column("n", lambda pair: max(len(_of(rows, *pair)) for _, rows in models.values()), str)]
    columns += [share(title, lambda pair, rows=rows: _of(rows, *pair), key) for key, (title, rows) in models.items()]
    lines = [
        Line(f"{study.named(task)} -> {test_set}", (task, test_set), paper=paper.get(task, {}).get(test_set))
        for task, test_set in study.pairs
        if any(len(_of(rows, task, test_set)) for _, rows in models.values())
    ]
    title = "Table 3: scores out of distribution" + (f", at a sparsity of {small_percent(size)}" if size else "")
    return Table(title, ["trained -> tested"], columns, lines, [VALUES, PAPER])


def _sizes(study: Study, paper: Mapping[str, Any]) -> Table:
    """The fine-tuned model and its learned grafts of several sizes (table 5)."""
    sizes = sparsities(study.grafts(LEARNED))
    models = {FINETUNED: ("FT", study.anchor(FINETUNED))}
    models |= {size: (f"graft of {small_percent(size)}", study.grafts(LEARNED, size)) for size in sizes}
    columns, lines = _by_task(study, models, sizes[0] if sizes else FINETUNED, paper)
    theirs = (
        "paper: RoBERTa-base, 50,000 examples per class; it gives no deviations, and is no target for other settings"
    )
    return Table(
        "Table 5: learned grafts of several sizes", ["task"], columns, lines if sizes else [], [VALUES, theirs]
    )


def _fish(study: Study, paper: Mapping[str, Any]) -> Table:
    """Overlap with the FISH mask, and grafts on the learned, the FISH and a random region (table 8)."""
    frame, lines = _learned_and_fish(study), []
    for task, size in product(study.tasks, sparsities(study.frames["sweep"])):
        overlaps = frame[(frame.task == task) & (frame.sparsity == size)]
        theirs = _flat(paper.get(task, {}).get(size, {}))
        if len(overlaps):
            lines.append(Line((study.named(task), small_percent(size)), (task, size, overlaps), paper=theirs))
    columns = [
        Column("n", lambda data: len(data[2]), str),
        share("overlap", lambda data: data[2].iou, "overlap"),
        Column("chance overlap", lambda data: data[2].chance.mean(), lambda value: percent(value, 2)),
    ]
    for name, title in {LEARNED: "graft", FISH: "FISH", RANDOM: "random"}.items():
        columns += _score_and_ece(
            title, name, lambda data, measure, name=name: _of(study.grafts(name, data[1]), data[0], measure=measure)
        )
    notes = [
        VALUES,
        "overlap: intersection over union of the learned region and the FISH mask",
        PAPER,
        *_daggers(study),
    ]
    return Table("Table 8: the learned region and the FISH mask", ["task", "sparsity"], columns, lines, notes)


def _learned_and_fish(study: Study) -> pd.DataFrame:
    frame = study.frames["localizer_overlap"]
    return frame[frame["first"].isin([LEARNED, FISH]) & frame["second"].isin([LEARNED, FISH])]


@dataclass(frozen=True)
class Method:
    """One method at one size: its rows on the own test set and on others."""

    family: str
    size: float
    label: str
    rows: pd.DataFrame


def methods(study: Study) -> list[Method]:
    """Every parameter-efficient method, the learned grafts by size, and the fine-tuned model as the graft of 100 %."""
    found = []
    for name in study.frames["peft"].method.unique():
        family, size = _family_and_size(name)
        rows = _both(lambda where, name=name: own_rows(study.rows("peft", where, method=name)))
        mine = rows[rows["where"] == "id"]
        shares = (mine.trained / mine.model_parameters).dropna()
        trained = f" ({small_percent(shares.mean())})" if len(shares) else ""
        found.append(Method(family, size, f"{size:g}{trained}", rows))
    known = [*FAMILIES]
    # in the order of the paper, other methods after its own
    found.sort(key=lambda one: (known.index(one.family) if one.family in known else len(known), one.family, one.size))
    for size in sparsities(study.grafts(LEARNED)):
        rows = _both(lambda where, size=size: study.grafts(LEARNED, size, where))
        found.append(Method("graft", size, small_percent(size), rows))
    return [*found, Method("graft", 1, "100 %", _both(lambda where: study.anchor(FINETUNED, where)))]


def _both(choose: Callable[[str], pd.DataFrame]) -> pd.DataFrame:
    return pd.concat([choose("id"), choose("ood")])


def _family_and_size(method: str) -> tuple[str, float]:
    family, _, size = method.rpartition("_")
    return (family, float(size)) if size.isdecimal() else (method, 0.0)


def _calibration(study: Study, paper: Mapping[str, Any]) -> Iterator[Table]:
    """Score and calibration error (table 6), a table for every four tasks, the last with the average over all."""

    def theirs(values: dict[str, Any]) -> dict[str, Any]:
        # otherwise the two averages would be over different tasks
        known = {*values} - {"average"} == {*study.tasks}
        return _flat({name: value for name, value in values.items() if name != "average" or known})

    among = methods(study)
    for start in range(0, len(study.tasks), MOST_TASKS):
        tasks, columns = study.tasks[start : start + MOST_TASKS], []
        for task in tasks:
            columns += _score_and_ece(
                study.named(task), task, lambda rows, measure, task=task: _of(rows, task, measure=measure)
            )
        if start + MOST_TASKS >= len(study.tasks):
            columns += _score_and_ece("average", "average", lambda rows, measure: by_cell(_at(rows, "id"), measure))
        title = f"Table 6: score and calibration error of {', '.join(tasks)}"
        yield _by_method(title, columns, among, paper, theirs)


def _transfer(study: Study, paper: Mapping[str, Any]) -> Iterator[Table]:
    """Scores in and out of distribution (table 7), a table for each trained task that has other test sets, and averages."""

    def averages(values: dict[str, Any]) -> dict[str, Any]:
        return values["average"] if {*values} - {"average"} == {*sets} else {}

    sets: dict[str, list[str]] = {}
    for task, test_set in study.pairs:
        sets.setdefault(task, []).append(test_set)
    for task, tests in sets.items():
        titles = {task: study.named(task), **{test: f"{task} -> {test}" for test in tests}}
        columns = [
            share(title, lambda rows, pair=(task, test): _of(rows, *pair), test) for test, title in titles.items()
        ]
        lines = [line for line in _trained_on(study, [task]) if len(_at(line.rows, "id"))]
        title = f"Table 7: trained on {task}, tested on other data sets"
        yield _by_method(title, columns, lines, paper, lambda values, task=task: values.get(task, {}))
    if len(sets) > 1:
        columns = [
            share(f"average {where.upper()}", lambda rows, where=where: by_cell(_at(rows, where)), where)
            for where in ("id", "ood")
        ]
        yield _by_method(
            f"Table 7: averages over {', '.join(sets)}", columns, _trained_on(study, [*sets]), paper, averages
        )


def _trained_on(study: Study, tasks: list[str]) -> list[Method]:
    return [replace(method, rows=method.rows[method.rows.task.isin(tasks)]) for method in methods(study)]


def _at(rows: pd.DataFrame, where: str) -> pd.DataFrame:
    return rows[rows["where"] == where]


def _by_method(
    title: str,
    columns: list[Column],
    among: list[Method],
    paper: Mapping[str, Any],
    theirs: Callable[[dict[str, Any]], dict[str, Any]],
) -> Table:
    """The methods that any column has a value of; a family is named once, `theirs` takes from its paper's values."""
    lines, family = [], None
    for method in among:
        if any(column.form(column.value(method.rows)) for column in columns):
            label = "" if method.family == family else FAMILIES.get(method.family, method.family), method.label
            values = theirs(paper.get(method.family, {}).get(method.size, {}))
            lines, family = [*lines, Line(label, method.rows, paper=values)], method.family
    size = (
        "size: rank or bottleneck (share of the model's parameters trained), of a graft its sparsity; 100 %: fine-tuned"
    )
    n = Column("n", lambda rows: len(by_cell(_at(rows, "id"))), str)
    return Table(title, ["method", "size"], [n, *columns], lines, [VALUES, size, PAPER])


# --- What the claims measure ---------------------------------------------------------------------------------------


def localizer_scores(study: Study, better: str, worse: str) -> list[Finding]:
    """Score of one localizer's grafts - another's, at the common size nearest ORDER_SIZE."""
    size = nearest(study.common_sparsities, ORDER_SIZE)
    if size is None or not {better, worse} <= {*study.localizers}:
        return []
    return [Finding(paired(*(by_cell(study.grafts(name, size)) for name in (better, worse))), {"size": size})]


def kept(study: Study, least: float) -> list[Finding]:
    """The smallest size at which learned grafts keep this share of the score, else the largest."""
    means = {
        size: mean_of(by_cell(study.grafts(LEARNED, size), "retained")) for size in sparsities(study.grafts(LEARNED))
    }
    means = {size: value for size, value in means.items() if value.n}
    if not means:
        return []
    enough = [size for size, value in means.items() if value.mean >= least]
    size = min(enough) if enough else max(means)
    return [Finding(bool(enough), {"least": least, "size": size, "kept": means[size].text(), "n": means[size].n})]


def difference(study: Study, first: str, second: str, measure: str = "score") -> Estimate:
    """A measure of the first of SELECTIONS - of the second."""
    return paired(*(by_cell(SELECTIONS[name](study), measure) for name in (first, second)))


# what claims compare by name
SELECTIONS: dict[str, Callable[[Study], pd.DataFrame]] = {
    "finetuned": lambda study: study.anchor(FINETUNED),
    "finetuned_elsewhere": lambda study: study.anchor(FINETUNED, "ood"),
    "graft": lambda study: study.smallest_grafts(),
    "graft_elsewhere": lambda study: study.smallest_grafts("ood"),
    "peft": lambda study: own_rows(study.rows("peft")),
    "retrained": lambda study: study.readout("retrain", LEARNED, study.region_size),
    "graft_of_retrained": lambda study: study.grafts(LEARNED, study.region_size),
    "pruned": lambda study: study.readout("prune", LEARNED),
    "graft_of_pruned": lambda study: study.grafts(LEARNED).loc[
        lambda rows: rows.sparsity.isin(study.readout("prune", LEARNED).sparsity)
    ],
}


def paradigms(study: Study, better: str, worse: str) -> list[Finding]:
    """What the smallest grafts of each model keep of that model's own score."""
    rows = study.rows("paradigm", variant=GRAFTED)
    rows = rows[rows.sparsity == rows.sparsity.min()]
    parts = {name: by_cell(part, "retained") for name, part in rows.groupby("paradigm")}
    if not {better, worse} <= {*parts}:
        return []
    return [Finding(paired(parts[better], parts[worse]), {"size": rows.sparsity.min()})]


def overlap_falls(study: Study) -> list[Finding]:
    """IoU of learned regions and FISH masks at the smallest size - that at the largest."""
    rows = _learned_and_fish(study)
    sizes = sorted(rows.sparsity.unique())
    if len(sizes) < 2:
        return []
    small, large = (rows[rows.sparsity == size].set_index(CELL).iou for size in (sizes[0], sizes[-1]))
    fields = {
        "small": mean_of(small).text(),
        "smallest": sizes[0],
        "large": mean_of(large).text(),
        "largest": sizes[-1],
    }
    return [Finding(paired(small, large), fields)]


def in_middle_layers(study: Study) -> Estimate:
    """Share of the learned regions in the middle third of the layers - that by chance."""
    layers = study.places("layer")[0].query(f"layer != {OUTSIDE}")
    count = layers.layer.max() + 1
    return _excess(layers[(layers.layer >= count / 3) & (layers.layer < 2 * count / 3)])


def in_kinds(study: Study, *kinds: str) -> Estimate:
    """Share of the learned regions in these kinds of modules - that by chance."""
    places, _ = study.places("kind")
    return _excess(places[places.kind.isin(kinds)])


def _excess(rows: pd.DataFrame) -> Estimate:
    sums = rows.groupby(CELL)[["share", "chance"]].sum()
    return paired(sums.share, sums.chance)


def gap(study: Study) -> list[Finding]:
    """Accuracy lost from training to test rows by the fine-tuned model - by the learned graft."""
    gaps = study.gaps()
    return [Finding(paired(gaps[FINETUNED], gaps["graft"]))] if {FINETUNED, "graft"} <= {*gaps} else []


def saturates(study: Study, least: float) -> list[Finding]:
    """Steps until the largest graft first has this share of its highest score, against the model's own."""
    rows = study.rows("trajectory")
    grafts = rows[rows.variant == GRAFTED]
    if grafts.empty:
        return []
    early, late = (
        part[part.score >= least * part.groupby(CELL)["score"].transform("max")].groupby(CELL)["step"].min()
        for part in (grafts[grafts.sparsity == grafts.sparsity.max()], rows[rows.variant == "checkpoint"])
    )
    fields = {"early": early.mean(), "late": late.mean(), "sooner": int((early - late < 0).sum()), "n": len(early)}
    return [Finding(bool(early.mean() < late.mean()), {"least": least, **fields})]


MEASURES = {
    "localizer_scores": localizer_scores, "kept": kept, "difference": difference, "paradigms": paradigms,
    "overlap_falls": overlap_falls, "in_middle_layers": in_middle_layers, "in_kinds": in_kinds, "gap": gap,
    "saturates": saturates,
}  # fmt: skip
