"""All stages of the single-task study together: the paper's tables beside ours, numbers, and measurements for the claims."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any

import pandas as pd

from stages.lib.metrics.composition import OUTSIDE
from stages.lib.metrics.variants import FINETUNED, GRAFTED, PRETRAINED
from stages.lib.report.claims import Finding, above_baselines, judge, read_statements, short_of
from stages.lib.report.document import Report
from stages.lib.report.format import (
    counted,
    counts,
    marked,
    off_line,
    percent,
    points,
    small_percent,
    with_interval,
    without_gain,
    words,
)
from stages.lib.report.load import published
from stages.lib.report.stats import Estimate, estimate, paired
from stages.lib.report.table import Column, Line, Table, number, share, shown, stored
from stages.study import bound
from stages.study.frames import AXES, BIAS, CELL, FISH, LEARNED, MOVEMENT, PRUNED, Study, by_cell, own_rows, sparsities

HERE = Path(__file__).parent
VALUES = "mean in % (standard deviation over seeds; of several tasks together, over tasks); n: cells, one for each task and seed"
# in metrics/study.details.json, where `all` stands for no value of an axis
MEASURES_STORED = ("score", "accuracy", "ece", "agreement", "retained", "gain", "loss")
STORED_BY = {
    "anchor": ["variant", "sparsity"],
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


def report(study: Study, here: str = "") -> Report:
    """Tables, which stages are off, and which effects of the paper show; `here`: model, mode and shots."""
    claims = judge(read_statements(HERE / "claims.yaml"), MEASURES, study, here)
    size = counts(task=len(study.tasks), seed=len(study.seeds))
    return Report(
        "The single-task study", size, shown(tables(study)), off_line(study.off) + _gave_way_elsewhere(study), claims
    )


@lru_cache(maxsize=1)
def tables(study: Study) -> list[Table]:
    """Tables in the order in which they are read."""
    paper = published(HERE / "paper.yaml")
    return [_localizers(study), _models(study, paper), _gaps(study), _bounds(study), _fish(study, paper["table8"])]


def headline(study: Study) -> dict[str, Any]:
    """The numbers for `dvc metrics`: the mean share of score and gain that grafts of the smallest size keep."""
    size = min(study.common_sparsities, default=None)
    finetuned = estimate(by_cell(study.anchor(FINETUNED))).mean
    if size is None:
        return {"finetuned": finetuned}
    kept = estimate(by_cell(study.grafts(LEARNED, size), "retained")).mean
    gain = {name: estimate(by_cell(study.grafts(name, size), "gain")).mean for name in (LEARNED, MOVEMENT)}
    return {"sparsity": size, "finetuned": finetuned, "retained": kept, "gain": gain}


def details(study: Study) -> dict[str, Any]:
    """Every number: n, mean and sd over cells of each measure (a fraction 0..1) by stage and its axes, and what tables say."""
    grafts = ["localizer", "sparsity"]
    about_masks = {
        "task_overlap": (grafts, ["overlap", "chance"]),
        "seed_overlap": (grafts, ["overlap", "chance"]),
        "localizer_overlap": (["first", "second", "sparsity"], ["iou", "chance"]),
        "cost": (grafts, ["gradient_examples"]),
    }
    of_masks = [
        _stored(name, study.frames[name], axes, [share("", measure) for measure in measures])
        for name, (axes, measures) in about_masks.items()
    ]
    return stored([*(_stage(study, stage, axes) for stage, axes in STORED_BY.items()), *of_masks, *tables(study)])


def _stage(study: Study, stage: str, axes: list[str]) -> Table:
    def measured(where: str, measure: str, key: str) -> Column:
        return Column("", lambda rows: by_cell(rows[rows["where"] == where], measure), str, key)

    rows = study.frames[stage]
    if stage in ("readout", "peft", "sweep"):
        rows = own_rows(rows)
    if stage == "trajectory":
        rows = rows[rows.step == rows.groupby("task")["step"].transform("max")]
    columns = [*(measured("id", name, name) for name in MEASURES_STORED), measured("ood", "score", "ood_score")]
    return _stored(stage, rows, axes, columns)


def _stored(name: str, rows: pd.DataFrame, axes: list[str], columns: list[Column]) -> Table:
    """A table without a title: a line for each combination of the axes' values, `all` where there is none."""

    def text(value: object) -> str:
        return "all" if pd.isna(value) else value if isinstance(value, str) else f"{value:g}"

    groups = rows.groupby([rows[axis].map(text) for axis in axes], sort=False)
    return Table("", (), columns, [Line("", part, key) for key, part in groups], name=name)


# --- Localizers, readouts, the generalization gap and its bound ----------------------------------------------------


def _measure(title: str, measure: str) -> Column:
    """A measure of each task, or of each seed of a single one."""

    def of(rows: pd.DataFrame) -> pd.Series:
        cells = by_cell(rows, measure)
        return cells.groupby("task").mean() if rows.task.nunique() > 1 else cells

    return share(title, of, measure)


N = Column("n", lambda rows: int(by_cell(rows).count()), str, "n")
SIZE = number("parameters", lambda rows: rows.trained.fillna(rows.selected), ",.0f")
PARAMETERS = "parameters: selected or trained, on average; fewer than the size where a localizer has, or takes, no more"
MEASURED = [_measure(title, title.lower()) for title in ("score", "retained", "gain", "ECE", "agreement")]


def _localizers(study: Study) -> Table:
    """Grafts of every size that all localizers have, and by how much each scores above the learned one."""

    def gap(rows: pd.DataFrame) -> Estimate:
        own = rows.localizer.eq(LEARNED).all() or rows.sparsity.isna().all()
        return Estimate(0, None, None) if own else paired(*map(by_cell, (rows, learned[rows.sparsity.iloc[0]])))

    learned = {size: study.grafts(LEARNED, size) for size in study.common_sparsities}
    lines = [
        Line(
            (words(name), small_percent(size)),
            study.grafts(name, size),
            None if name == LEARNED else (name, f"{size:g}"),
        )
        for size, name in product(study.common_sparsities, study.localizers)
    ]
    ends = {name: study.anchor(name) for name in (PRETRAINED, FINETUNED) if lines}
    lines += [Line((words(name), ""), rows, kind="average") for name, rows in ends.items() if by_cell(rows).count()]
    over = Column("score - learned's", gap, Estimate.in_points, "minus_learned")
    costs = study.costs().set_index(["localizer", "sparsity"]).examples
    cost = number("gradients", lambda rows: costs.get((rows.localizer.iloc[0], rows.sparsity.iloc[0])), ",.0f")
    notes = [
        VALUES,
        f"retained: score / fine-tuned score; gain: (score - pretrained) / (fine-tuned - pretrained){_left_out(study)}",
        "gradients: training examples that it takes one of; score - learned's: percentage points"
        + with_interval(study.tasks, study.seeds, ", not corrected for how many there are"),
        *_gave_way(study),
        PARAMETERS,
    ]
    columns, title = [N, SIZE, *MEASURED, cost, over], "Localizers, all tasks together"
    return Table(title, ["localizer", "sparsity"], columns, lines, notes, "localizers", [over.key])


def _gave_way(study: Study) -> list[str]:
    counts_by_size = study.gave_way().groupby("sparsity").size()
    cells = study.frames["cost"].query("localizer == @LEARNED").groupby("sparsity").size()
    told = [f"{number} of {cells[size]} at {small_percent(size)}" for size, number in counts_by_size.items()]
    return [f"learned: the movement mask, which agreed more on dev, in {', '.join(told)}"] if told else []


def _gave_way_elsewhere(study: Study) -> list[str]:
    """The same of the learned masks of other paradigms and of a checkpoint."""
    told = []
    for stage in ("paradigm", "trajectory"):
        masks = study.rows(stage, variant=GRAFTED).dropna(subset="kept").drop_duplicates([*AXES[stage], "sparsity"])
        if number := (masks.kept == MOVEMENT).sum():
            told.append(f"{number} of {len(masks)} of {stage}")
    return [f"learned masks that are the movement mask, which agreed more on dev: {', '.join(told)}"] if told else []


def _left_out(study: Study) -> str:
    gains = by_cell(study.anchor(FINETUNED), "gain")
    return without_gain(int(gains.isna().sum()), len(gains), "fine-tuning", study.least_gain)


def _gaps(study: Study) -> Table:
    """The generalization gap (section 4.3 of the paper)."""
    lines = [Line(name, estimate(gap), name) for name, gap in study.gaps().items()]
    columns = [Column("n", attrgetter("n"), str), Column("gap", lambda value: value, Estimate.in_points, "gap")]
    intervals = with_interval(study.tasks, study.seeds)
    notes = [f"accuracy on training rows less accuracy on test rows, in percentage points{intervals}"]
    return Table("Generalization gap", ["model"], columns, lines, notes, "gap")


def bound_lines(study: Study) -> list[dict[str, Any]]:
    """The graft and the retrained region of every task whose two readouts were measured on training rows too.

    Errors are means over seeds; `bound` is of this region alone (Theta_n = 1), `any` of whichever region; `needed` and
    `needed_any`: examples at which their variance terms fall to 1.
    """
    size, best, lines = study.region_size, 1 - by_cell(study.anchor(FINETUNED), "accuracy"), []
    for task in study.tasks if size is not None else []:
        errors = {name: _errors(study, name, size, task) for name in ("graft", "retrain")}
        if all(map(len, errors.values())):
            measured = best[best.index.get_level_values("task") == task].mean()
            bias = bound.lacking(errors["retrain"].test.mean(), measured) if measured == measured else None
            short = {"graft": bound.lacking(*(part.train.mean() for part in errors.values())), "retrain": 0.0}
            # two models stand in the graft's theorem
            delta = {"graft": DELTA / 2, "retrain": DELTA}
            for name, part in errors.items():
                lines.append({"task": task, "model": name, **_bound(part, delta[name], short[name], bias)})
    return lines


def _errors(study: Study, readout: str, size: float, task: str) -> pd.DataFrame:
    """Train and test error, s, training rows and graftable parameters of each cell that has both errors."""
    test, train = (study.readout(readout, LEARNED, size, where) for where in ("id", "train"))
    test, train = (rows[rows.task == task] for rows in (test, train))
    columns = {"train": 1 - by_cell(train, "accuracy"), "test": 1 - by_cell(test, "accuracy")}
    return pd.DataFrame(columns | {name: by_cell(train, name) for name in ("selected", "n", "graftable")}).dropna()


def _bound(errors: pd.DataFrame, delta: float, short: float, bias: float | None) -> dict[str, Any]:
    # the largest mask and the smallest training set of the seeds, so that the bound covers each of them
    selected, examples = int(errors.selected.max()), int(errors.n.min())
    regions = bound.log_all_regions(selected, int(errors.graftable.max()))
    fixed, free = bound.log_models(selected), bound.log_models(selected, regions)
    variance, of_any = (bound.variance_term(models, examples, delta) for models in (fixed, free))
    needed, needed_any = (bound.examples_for(models, NOTHING, delta) for models in (fixed, free))
    return {
        "n": len(errors), "train": float(errors.train.mean()), "test": float(errors.test.mean()), "selected": selected,
        "examples": examples, "variance": variance, "eps_2": short, "bias": bias, "bound": variance + short + (bias or 0.0),
        "any": of_any + short + (bias or 0.0), "needed": needed, "needed_any": needed_any,
    }  # fmt: skip


def _bounds(study: Study) -> Table:
    """Train and test errors, and theorems D.2 and D.4 term by term."""
    found, whole, two = bound_lines(study), "{:,}".format, "{:.2f}".format
    forms = {
        "n": str, "train": percent, "test": percent, "selected": whole, "examples": whole, "variance": two, "eps_2": percent,
        "bias": percent, "bound": two, "any": two, "needed": whole, "needed_any": whole,
    }  # fmt: skip
    titles = {"train": "train error", "test": "test error", "selected": "s", "any": "bound, any region"}
    titles |= {"needed_any": "needed, any region"}
    columns = [Column(titles.get(key, key), key, form, key) for key, form in forms.items()]
    empty = sum(line["bound"] >= NOTHING for line in found)
    notes = [
        "errors in %, means over n seeds; bound on test error - that of the best model, within 0..1 (appendix D): variance + "
        f"eps_2 + bias, eps_1 = 0; delta = {DELTA}, q = 2^32 values for each of s parameters (not counting a new head: with one, "
        "which is trained too, they are too low), log Theta_n = 0, or s log d for any region of the d graftable parameters",
        "bias is measured (retrained - fine-tuned test error, at least 0), not the best models' own, which nobody knows",
        f"vacuous (1 or more, which any error fulfils) in {empty} of {len(found)} lines; needed: training examples at which the "
        "variance term alone falls to 1"
        if empty
        else "no bound for a region given beforehand is vacuous (1 or more)",
    ]
    lines = [Line((line["task"], line["model"]), line, (line["task"], line["model"])) for line in found]
    title = f"Generalization bound, at a sparsity of {small_percent(study.region_size or 0)}"
    return Table(title, ["task", "model"], columns, lines, notes, "bound")


# --- The paper's tables: every model on every test set, and learned regions beside FISH masks -----------------------


def models(study: Study) -> list[tuple[str, float, str, pd.DataFrame]]:
    """Family, size, name and rows (on all test sets) of each model of one task; the fine-tuned one is the graft of 100 %."""
    found = [
        ("", 0.0, "pretrained", study.anchor(PRETRAINED, None)),
        ("graft", 1.0, "fine-tuned", study.anchor(FINETUNED, None)),
    ]
    for size in sparsities(study.grafts(LEARNED)):
        found.append(("graft", size, f"graft of {small_percent(size)}", study.grafts(LEARNED, size, None)))
    regions = study.frames["readout"].groupby(["readout", "localizer", "sparsity"], sort=False)
    bitfit = study.bitfit(None)
    for readout, localizer, size in regions.groups:
        if (readout, localizer) != ("graft", LEARNED):
            family, label = readout, f"{readout} {localizer} of {small_percent(size)}"
            if (readout, localizer) == ("retrain", BIAS):
                # some of the biases, trained alone, are not what the paper compares
                family, label = ("bitfit", "BitFit") if size in {*bitfit.sparsity} else ("", label)
            found.append((family, size, label, study.readout(readout, localizer, size, None)))
    for method in study.frames["peft"].method.unique():
        family, _, size = method.rpartition("_")
        rows = own_rows(study.rows("peft", None, method=method))
        found.append((family, float(size), words(method), rows))
    return found


def _models(study: Study, paper: Mapping[str, Any]) -> Table:
    """A group of lines for each test set, then averages over the tasks of the models that have them all."""
    among, lines = models(study), []
    for task, test_set in [*((task, task) for task in study.tasks), *study.pairs]:
        title = study.named(task) + ("" if test_set == task else f" -> {test_set}")
        parts = [(*name, rows[(rows.task == task) & (rows.test_set == test_set)]) for *name, rows in among]
        lines += _group(title, parts, paper, task, test_set)
    if len(study.tasks) > 1:
        own = [(*name, rows[rows["where"] == "id"]) for *name, rows in among]
        whole = [part for part in own if {*study.tasks} <= {*part[3].task}]
        alike = {*study.tasks} == {*paper["table6"]["graft"][1]} - {"average"}
        lines += _group("average", whole, paper if alike else {}, "average", "average")
    notes = [
        VALUES,
        "retrain: train only the region; BitFit: all biases; reset: set it back to pretrained; prune: set all else to 0; "
        "LoRA by rank, adapters by bottleneck",
        PARAMETERS,
        "paper: RoBERTa-base, 4096-shot (Table 5: 50,000 a class), 5 seeds; regions trained alone are of 0.01 %; no target for other settings",
        *filter(None, [marked(study.metrics.values())]),
    ]
    title = "Tables 1, 3, 5, 6 and 7: score and calibration error of every model on every test set"
    return Table(title, ["model"], [N, SIZE, MEASURED[0], MEASURED[3]], lines, notes)


def _group(title: str, parts: list, paper: Mapping[str, Any], task: str, test_set: str) -> list[Line]:
    lines = [
        Line(label, rows, paper=_theirs(paper, family, size, task, test_set))
        for family, size, label, rows in parts
        if by_cell(rows).count()
    ]
    return [Line(title)] * bool(lines) + lines


def _theirs(paper: Mapping[str, Any], family: str, size: float, task: str, test_set: str) -> dict[str, Any]:
    """The paper's score and ECE of a model, where a table has it: 6 or 5 on own test sets, 7 or 3 on others, 1 of regions trained alone."""

    def find(table: str, *keys: object) -> Any:  # noqa: ANN401
        values = paper.get(table, {})
        for key in keys:
            values = values.get(key, {})
        return values

    alone = family in ("retrain", "bitfit")
    if test_set == task:
        own = find("table6", family, size, task) or find("table5", family, size, task)
        return find("table1", task, family) if alone else own
    score = find("table3", task, test_set, family) if alone else find("table7", family, size, task, test_set)
    return {"score": score} if score else {}


def _fish(study: Study, paper: Mapping[str, Any]) -> Table:
    """Overlap with the FISH mask, and grafts on the learned, the FISH and a random region (table 8)."""
    frame, lines = _learned_and_fish(study), []
    for task, size in product(study.tasks, sparsities(frame)):
        overlaps = frame[(frame.task == task) & (frame.sparsity == size)]
        theirs = paper.get(task, {}).get(size, {})
        flat = {name: part for name, part in theirs.items() if name == "overlap"}
        flat |= {f"{name} {key}": part[key] for name, part in theirs.items() if name != "overlap" for key in part}
        if len(overlaps):
            lines.append(Line((study.named(task), small_percent(size)), (task, size, overlaps), paper=flat))
    columns = [
        Column("n", lambda data: len(data[2]), str),
        share("overlap", lambda data: data[2].iou, "overlap"),
        Column("chance", lambda data: data[2].chance.mean(), lambda value: percent(value, 2)),
    ]
    titles = {LEARNED: "graft", FISH: "FISH", "random": "random"}
    for name, of in product(titles, ("score", "ECE")):
        measure = of.lower()
        columns.append(share(f"{titles[name]} {of}", partial(_of_task, study, name, measure), f"{name} {measure}"))
    notes = [
        VALUES,
        "overlap: intersection over union of the learned region and the FISH mask, without cells in which the movement mask was taken for "
        "the learned one; paper: as above",
    ]
    return Table("Table 8: the learned region and the FISH mask", ["task", "sparsity"], columns, lines, notes)


def _of_task(study: Study, localizer: str, measure: str, data: tuple[str, float, Any]) -> pd.Series:
    rows = study.grafts(localizer, data[1])
    return by_cell(rows[rows.task == data[0]], measure)


def _learned_and_fish(study: Study) -> pd.DataFrame:
    """Overlap of the two where the learned mask is not movement's."""
    frame = study.frames["localizer_overlap"]
    frame = frame[frame["first"].isin([LEARNED, FISH]) & frame["second"].isin([LEARNED, FISH])]
    other = [*CELL, "sparsity"]
    return frame[~frame.set_index(other).index.isin(study.gave_way().set_index(other).index)]


# --- What the claims measure, with the tasks that do not follow ----------------------------------------------------


def _finding(values: pd.Series, size: float | None = None, write: Callable = points, **fields: Any) -> Finding:
    """Of one value for each cell; without a size it is not about grafts of one."""
    return Finding(estimate(values), fields, short_of(values, write, ""), size=small_percent(size) if size else "")


def _difference(first: pd.Series, second: pd.Series, size: float | None = None, **fields: Any) -> Finding:
    """Of the cells that both have; the two sides are means over tasks, as their difference is."""
    sides = pd.DataFrame({"first": first, "second": second}).dropna().groupby(level="task").mean().mean()
    return _finding(first - second, size, **sides, **fields)


def gained(study: Study) -> Finding:
    """Control of all that is kept or compared: fine-tuning gains over the pretrained model with the same head, and one label."""
    return _gain(study, study.anchor(FINETUNED), "fine-tuning")


def gained_by_paradigm(study: Study) -> list[Finding]:
    """The same of the models that each paradigm fine-tuned."""
    rows = study.rows("paradigm", variant=FINETUNED)
    return [_gain(study, part, name) for name, part in rows.groupby("paradigm", sort=False)]


def _gain(study: Study, rows: pd.DataFrame, name: str) -> Finding:
    constant = by_cell(study.anchor(FINETUNED), "constant")
    return above_baselines(by_cell(rows), by_cell(study.anchor(PRETRAINED)), constant, name)


def localizer_scores(study: Study, better: str, worse: str) -> Iterator[Finding]:
    """Score of one localizer's grafts - another's, at every common size."""
    for size in study.common_sparsities if {better, worse} <= {*study.localizers} else []:
        both = [study.grafts(name, size) for name in (better, worse)]
        first, second = (rows.selected.mean() for rows in both)
        sizes = "" if first == second else f"; {first:,.0f} and {second:,.0f} parameters"
        yield _difference(*map(by_cell, both), size, sizes=sizes)


def kept(study: Study, measure: str) -> Iterator[Finding]:
    """The share of the fine-tuned score (`retained`) or of its gain (`gain`) that learned grafts of every size keep."""
    for size in sparsities(study.grafts(LEARNED)):
        values, left_out = by_cell(study.grafts(LEARNED, size), measure), _left_out(study)
        found = _finding(values, size, percent, left_out=left_out)
        yield replace(found, void=left_out) if measure == "gain" and values.isna().all() else found


def contrast(study: Study, first: str, second: str, measure: str = "score", where: str = "id") -> Iterator[Finding]:
    """A measure of the first of SELECTIONS - of the second, with learned grafts of every size that both have."""
    for size in sparsities(study.grafts(LEARNED)):
        one, other = (by_cell(SELECTIONS[name](study, size, where), measure) for name in (first, second))
        both = (one - other).dropna().index
        if len(both):
            yield _difference(one[both], other[both], size)


# what claims compare by name, at a size of the graft
SELECTIONS: dict[str, Callable[[Study, float, str], pd.DataFrame]] = {
    "finetuned": lambda study, size, where: study.anchor(FINETUNED, where),
    "graft": lambda study, size, where: study.grafts(LEARNED, size, where),
    "peft": lambda study, size, where: own_rows(study.rows("peft", where)),
    "retrained": lambda study, size, where: study.readout("retrain", LEARNED, size, where),
    "bitfit": lambda study, size, where: study.bitfit(where),
}


def pruned(study: Study) -> Iterator[Finding]:
    """Score of the smallest learned grafts - that of the model with all but its region of each share set to 0."""
    rows, grafts = study.anchor(PRUNED), by_cell(study.grafts(LEARNED, study.smallest))
    for share_, part in rows.groupby("sparsity", sort=True) if study.smallest else []:
        yield _finding(
            grafts - by_cell(part), study.smallest, share=share_, second=by_cell(part).mean(),
            pretrained=by_cell(study.anchor(PRETRAINED)).mean(),
        )  # fmt: skip


def paradigms(study: Study, better: str, worse: str) -> Iterator[Finding]:
    """The share that grafts keep of the score of the model they were taken from, after one way of fine-tuning - after another."""
    rows = study.rows("paradigm", variant=GRAFTED)
    for size, part in rows.groupby("sparsity") if {better, worse} <= {*rows.paradigm} else []:
        yield _difference(*(by_cell(part[part.paradigm == name], "retained") for name in (better, worse)), size)


def fish_overlap(study: Study) -> Iterator[Finding]:
    """Intersection over union of learned regions and FISH masks."""
    for size, rows in _learned_and_fish(study).groupby("sparsity"):
        yield Finding(estimate(by_cell(rows, "iou")), {"chance": rows.chance.mean()}, size=small_percent(size))


def overlap_falls(study: Study) -> Iterator[Finding]:
    """The same at the smallest size - that at the largest."""
    rows = _learned_and_fish(study)
    sizes = sparsities(rows)
    if len(sizes) > 1:
        ends = {"smallest": sizes[0], "largest": sizes[-1]}
        small, large = (by_cell(rows[rows.sparsity == size], "iou") for size in ends.values())
        yield _difference(small, large, **ends)


def region_overlap(study: Study) -> Iterator[Finding]:
    """Share of a task's learned region that lies in its own of another seed (mean of both tasks) - in that of another task."""
    frames = (study.frames[f"{axis}_overlap"] for axis in ("seed", "task"))
    among, between = (frame[frame.localizer == LEARNED] for frame in frames)
    for size, rows in between.groupby("sparsity"):
        own = among[among.sparsity == size].groupby("task").overlap.mean()
        ceiling = (rows["first"].map(own) + rows["second"].map(own)) / 2
        values = rows.assign(gap=ceiling - rows.overlap).set_index(["first", "second", "seed"])
        fields = {"own": ceiling.mean(), "other": rows.overlap.mean(), "chance": rows.chance.mean()}
        if values.gap.notna().any():
            yield Finding(estimate(values.gap, ("first", "second")), fields, size=small_percent(size))


def in_middle_layers(study: Study) -> list[Finding]:
    """Share of the learned regions in the middle third of the layers - that by chance."""
    layers, size = study.places("layer")
    layers = layers[layers.layer != OUTSIDE]
    count = layers.layer.max() + 1
    # as far from the first as from the last
    middle = layers[(2 * layers.layer + 1 - count).abs() < count / 3]
    if len(layers) and middle.empty:
        nothing = f"not measurable with {counted(int(count), 'layer')}, of which none is in the middle third"
        return [Finding(Estimate(0, None, None), void=nothing)]
    return _excess(middle, size)


def in_kinds(study: Study, *kinds: str) -> list[Finding]:
    """Share of the learned regions in these kinds of modules - that by chance."""
    places, size = study.places("kind")
    return _excess(places[places.kind.isin(kinds)], size)


def _excess(rows: pd.DataFrame, size: float | None) -> list[Finding]:
    sums = rows.groupby(CELL)[["share", "chance"]].sum()
    found = _finding(sums.share - sums.chance, size, share=sums.share.mean(), chance=sums.chance.mean())
    return [found] if len(sums) else []


def gap(study: Study) -> Iterator[Finding]:
    """Accuracy lost from training to test rows by the fine-tuned model - by the learned graft."""
    gaps = study.gaps()
    if {FINETUNED, "graft"} <= {*gaps}:
        yield _finding(gaps[FINETUNED] - gaps["graft"], study.region_size)


def saturates(study: Study, least: float) -> Iterator[Finding]:
    """Share of the steps of fine-tuning until the model first has so much of its best gain - until the largest graft has."""
    ends = study.saturation(least)
    if len(ends):
        size = max(sparsities(study.rows("trajectory")))
        yield _difference(ends.model, ends.graft, size, least=least)


MEASURES = {
    function.__name__: function
    for function in (
        gained, gained_by_paradigm, localizer_scores, kept, contrast, pruned, paradigms, fish_overlap, overlap_falls,
        region_overlap, in_middle_layers, in_kinds, gap, saturates,
    )
}  # fmt: skip
