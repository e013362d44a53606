"""What the records of task arithmetic say together: tidy frames, the tables made of them, and what its claims measure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from stages.lib import paths
from stages.lib.graft.mask_file import read_mask
from stages.lib.metrics.composition import KEY, KINDS, QUERY, by_tensor
from stages.lib.metrics.overlap import chance_iou, iou
from stages.lib.metrics.variants import PRETRAINED
from stages.lib.report.claims import Finding, judge, read_statements
from stages.lib.report.document import Report
from stages.lib.report.format import counted
from stages.lib.report.load import Cell, Records, Row, frame_of, grid, published, require_files
from stages.lib.report.stats import Difference, mean_of, paired
from stages.lib.report.table import Column, Line, Table, by, count, number, share, shown, stored, values_in
from stages.talos.settings import ArithmeticParams, DisentangleParams, EditParams, TalosParams

HERE = Path(__file__).parent
# methods in the order in which they are compared, by the names that tables and figures give them
TITLES = {
    "full": "full fine-tuning", "linear": "linearised", "attention": "attention only", "ties": "TIES (of full)",
    "dare": "DARE (of full)", "lota": "LoTA (top movement)", "talos": "TaLoS", "random": "random mask", "graft": "graft",
}  # fmt: skip
# these have no mask that was chosen by looking at the model
WHOLE = ("full", "linear")
CELL = ["task", "seed"]
COLUMNS = {
    "addition": ["method", *CELL, "n", "n_dev", "pretrained", "single", "full", "alpha", "accuracy", "by_own", "by_full"],
    "negation": ["method", *CELL, "n", "pretrained", "alpha", "accuracy", "control", "control_zero_shot",
        "control_accuracy", "control_kept", "weak_control"],
    "curve": ["method", "seed", "alpha", "normalised"],
    "localization": ["method", "trained_on", *CELL, "n", "accuracy", "pretrained", "ratio"],
    "cost": ["method", *CELL, "selected", "graftable"],
    "disentangle": ["method", "pair", "seed", "alpha1", "alpha2", "e1", "e2", "mean"],
    "pruned": ["kind", "scored_on", *CELL, "n", "accuracy", "pretrained", "ratio"],
    "overlap": ["variant", *CELL, "iou", "chance"],
    "tensors": ["method", *CELL, "tensor", "layer", "kind", "part", "parameters", "selected", "share"],
    "task_iou": ["method", "seed", "first", "second", "iou", "chance"],
    "method_iou": ["first", "second", *CELL, "iou", "chance"],
}  # fmt: skip
# in metrics/talos.json
COMPARED = (("talos", "full"), ("talos", "linear"), ("talos", "random"), ("graft", "full"), ("graft", "talos"))


@dataclass(frozen=True)
class Talos:
    """Tidy frames by name, with the columns of COLUMNS; those of a stage without cells are empty, and it is `off`."""

    tasks: list[str]
    seeds: list[int]
    frames: dict[str, pd.DataFrame]
    off: list[str]


def collect(
    talos: TalosParams, edit: EditParams, arithmetic: ArithmeticParams, disentangle: DisentangleParams
) -> Talos:
    """Read the records of the cells that the settings name; raises DataError for a missing one, MaskError for a damaged mask."""
    tasks, seeds = talos.tasks, talos.seeds
    pairs = [f"{first}+{second}" for first, second in disentangle.pairs.items()]
    cells = {
        "edit": grid(seed=seeds, method=edit.methods, task=tasks),
        "arithmetic": grid(seed=seeds, method=arithmetic.methods, task=tasks),
        "disentangle": grid(seed=seeds, method=disentangle.methods, pair=pairs),
        "sensitivity": grid(seed=seeds, task=tasks),
    }
    records = {
        stage: Records("talos", stage, f"metrics/{stage}/{{method}}/{{seed}}/{{{name}}}.json", cells[stage])
        for stage, name in (("edit", "task"), ("arithmetic", "task"), ("disentangle", "pair"))
    }
    records["sensitivity"] = Records(
        "talos", "sensitivity", "metrics/sensitivity/{seed}/{task}.json", cells["sensitivity"]
    )
    require_files("make talos", *records.values())
    rows = {
        "addition": records["arithmetic"].rows(_added_rows),
        "negation": records["arithmetic"].rows(_negated_row),
        "curve": records["arithmetic"].rows(
            lambda cell, record: _curve_rows(cell, record) if cell["task"] == tasks[0] else []
        ),
        "localization": records["edit"].rows(
            lambda cell, record: ({**cell, "trained_on": name, **row} for name, row in _ratios(record))
        ),
        "cost": records["edit"].rows(_cost_row),
        "disentangle": records["disentangle"].rows(lambda cell, record: ({**cell, **row} for row in record["rows"])),
        "pruned": records["sensitivity"].rows(_pruned_rows),
        "overlap": records["sensitivity"].rows(lambda cell, record: ({**row, **cell} for row in record["overlaps"])),
        **_mask_rows([method for method in edit.methods if method not in WHOLE], tasks, seeds),
    }
    frames = {name: frame_of(rows[name], columns, more=True) for name, columns in COLUMNS.items()}
    return Talos(tasks, seeds, frames, [stage for stage, found in cells.items() if not found])


def _ratios(record: Row) -> Iterator[tuple[str, Row]]:
    """Each variant of a record with its accuracy over that of the pretrained model."""
    variants = {row["variant"]: row for row in record["rows"]}
    start = variants.pop(PRETRAINED)["accuracy"]
    for name, row in variants.items():
        accuracy = row["accuracy"]
        yield name, {"n": row["n"], "accuracy": accuracy, "pretrained": start, "ratio": _share(accuracy, start)}


def _share(accuracy: float, start: float) -> float | None:
    return accuracy / start if start else None


def _pruned_rows(cell: Cell, record: Row) -> Iterator[Row]:
    for name, row in _ratios(record):
        kind, _, scored_on = name.partition("_")
        yield {"kind": kind, "scored_on": scored_on, **cell, **row}


def _cost_row(cell: Cell, record: Row) -> list[Row]:
    return [{**cell, "selected": record["selected"], "graftable": record["graftable"], **record["cost"]}]


def _added(cell: Cell, record: Row) -> Iterator[tuple[str, Row]]:
    """The sum of the method's vectors, and what else was merged of them, by the name of the method that this is."""
    return ((cell["method"] if name == "sum" else name, part) for name, part in record["added"].items())


def _added_rows(cell: Cell, record: Row) -> Iterator[Row]:
    shared = {name: record[name] for name in ("n", "pretrained", "n_dev", "single", "full")}
    for method, part in _added(cell, record):
        yield {
            **cell,
            **shared,
            "method": method,
            **{key: part[key] for key in ("alpha", "accuracy", "by_own", "by_full")},
        }


def _curve_rows(cell: Cell, record: Row) -> Iterator[Row]:
    for method, part in _added(cell, record):
        for alpha, value in part["curve"]:
            yield {"method": method, "seed": cell["seed"], "alpha": alpha, "normalised": value}


def _negated_row(cell: Cell, record: Row) -> list[Row]:
    part = record["negated"]
    names = ("alpha", "accuracy", "control", "control_zero_shot", "control_accuracy", "weak_control")
    kept = _share(part["control_accuracy"], part["control_zero_shot"])
    shared = {name: record[name] for name in ("n", "pretrained")}
    return [{**cell, **shared, **{name: part[name] for name in names}, "control_kept": kept}]


def _mask_rows(methods: list[str], tasks: list[str], seeds: list[int]) -> dict[str, list[Row]]:
    """Where masks lie, and how alike those of two tasks and of two methods are."""
    tensors: list[Row] = []
    of_tasks: list[Row] = []
    of_methods: list[Row] = []
    for seed in seeds:
        found = {}
        for method, task in ((method, task) for method in methods for task in tasks):
            mask = read_mask(paths.edited(method, task, seed)).mask
            found[method, task] = mask.region_indices().numpy(), mask.region.size
            counts = {name: len(indices) for name, indices in mask.indices.items()}
            cell = {"method": method, "task": task, "seed": seed}
            tensors += [{**cell, **row} for row in by_tensor(counts, mask.region.shapes)]
        for method, (first, second) in ((method, pair) for method in methods for pair in combinations(tasks, 2)):
            both = _overlap(found[method, first], found[method, second])
            of_tasks.append({"method": method, "seed": seed, "first": first, "second": second, **both})
        for (first, second), task in ((pair, task) for pair in combinations(methods, 2) for task in tasks):
            both = _overlap(found[first, task], found[second, task])
            of_methods.append({"first": first, "second": second, "task": task, "seed": seed, **both})
    return {"tensors": tensors, "task_iou": of_tasks, "method_iou": of_methods}


def _overlap(first: tuple[np.ndarray, int], second: tuple[np.ndarray, int]) -> Row:
    (one, size), (other, _) = first, second
    return {"iou": iou(one, other), "chance": chance_iou(len(one), len(other), size)}


def ordered(names: Iterable[str]) -> list[str]:
    """Methods in the order in which they are compared, others after them as they come."""
    present = [*dict.fromkeys(names)]
    return [*(name for name in TITLES if name in present), *(name for name in present if name not in TITLES)]


def title(method: str) -> str:
    """A method's name for people; other localizers are called by their own."""
    return TITLES.get(method, method.replace("_", " "))


# --- Tables --------------------------------------------------------------------------------------------------------


def searched(rows: pd.DataFrame) -> pd.DataFrame:
    """The part of the grid of both coefficients in which alpha is searched."""
    return rows[rows[["alpha1", "alpha2"]].abs().max(axis=1) <= 1]


def share_of(rows: pd.DataFrame) -> pd.Series:
    """Selected / all parameters of some tensors, one value for each cell."""
    sums = rows.groupby(CELL)[["selected", "parameters"]].sum()
    return sums.selected / sums.parameters


def tables(talos: Talos) -> list[Table]:
    """All of them, also those without lines; `pruned` is only stored."""
    makers = (_addition, _negation, _localization, _errors, _pruning, _masks, _calibration, _costs)
    return [make(talos) for make in makers]


N = count(*CELL)
ALPHA = Column("alpha", "alpha", values_in("g"))
OVER_CELLS = "mean over cells (task, seed), in brackets their standard deviation; n is the number of cells"
VALUES = "mean over cells, in brackets the standard deviation"
PAPER = "  paper (ViT-B/32)"
MIB = 2**20


def _with_pretrained(frame: pd.DataFrame, values: dict[str, str], paper: dict[str, dict[str, float]]) -> list[Line]:
    """The pretrained model, whose values stand beside those of every method, and then the methods."""
    first = frame[frame.method == frame.method.iloc[0]] if len(frame) else frame
    start = first[CELL].assign(**{name: first[column] for name, column in values.items()})
    head = [Line("pretrained", start, paper=paper["pretrained"])] if len(frame) else []
    return head + by(frame, "method", title, ordered, paper)


def _addition(talos: Talos) -> Table:
    paper = published(HERE / "paper.yaml")["addition"]
    columns = [N, ALPHA, share("single", "single"), share("added", "accuracy"), share("added / own single", "by_own"),
        share("added / full single", "by_full")]  # fmt: skip
    notes = [
        f"accuracy on test in %; {OVER_CELLS}",
        "single: the method's own model of that task alone; added: one model for all tasks, pretrained + alpha * sum of vectors",
        "a method with weak single models is flattered by added / own single; compare the absolute columns too",
        f"alpha is chosen on dev, the smallest of equally good ones; alpha 1/{len(talos.tasks)} is the average of the single models",
    ]  # fmt: skip
    lines = _with_pretrained(talos.frames["addition"], {"accuracy": "pretrained"}, paper)
    stored = ("accuracy", "single", "by_own", "by_full")
    return Table("Task addition", ["method"], columns, lines, notes, "addition", stored, PAPER)


def _negation(talos: Talos) -> Table:
    frame, paper = talos.frames["negation"], published(HERE / "paper.yaml")["negation"]
    columns = [N, ALPHA, share("target (lower is better)", "accuracy", "target"), share("control", "control_accuracy", "control"),
        share("control kept", "control_kept")]  # fmt: skip
    notes = [
        f"accuracy on test in %; {OVER_CELLS}",
        "alpha is chosen on dev for each task: the lowest target accuracy among those that keep the control",
    ]
    weak = frame[frame.weak_control.astype(bool)].drop_duplicates(["task", "control", "seed"])
    cells = [f"{row.task} against {row.control}, seed {row.seed}" for row in weak.itertuples()]
    if cells:
        notes.append(
            f"flagged: the control starts at about chance on dev, so keeping it says little: {'; '.join(cells)}"
        )
    lines = _with_pretrained(frame, {"accuracy": "pretrained", "control_accuracy": "control_zero_shot"}, paper)
    return Table(
        "Task negation", ["method"], columns, lines, notes, "negation", ("target", "control", "control_kept"), PAPER
    )


def _localization(talos: Talos) -> Table:
    def others(rows: pd.DataFrame) -> pd.Series:
        return rows[rows.trained_on != rows.task].ratio

    columns = [N, share("own task", lambda rows: rows[rows.trained_on == rows.task].ratio, "own"),
        share("other tasks", others, "other"), share("distance from 1 on other tasks", lambda rows: (others(rows) - 1).abs())]  # fmt: skip
    notes = [
        f"accuracy / zero-shot accuracy of the pretrained model, in %; {VALUES}",
        "a vector that does nothing for its own task leaves others alone too: look at the own task first",
    ]
    lines = by(talos.frames["localization"], "method", title, ordered)
    return Table("Function localization", ["method"], columns, lines, notes, "localization", ("other", "own"))


def _errors(talos: Talos) -> Table:
    """Error over the whole grid and where alpha is searched."""

    def error(name: str, part: str) -> Column:
        def of(rows: pd.DataFrame) -> pd.Series:
            chosen = searched(rows) if part == "searched" else rows
            return chosen.groupby(["pair", "seed"])[name].mean()

        return share(f"{name} {part}", of, part if name == "mean" else "")

    columns = [
        count("pair", "seed"),
        *(error(name, part) for part in ("searched", "all") for name in ("e1", "e2", "mean")),
    ]
    notes = [
        "share of predictions that change when the other task's vector is added, in %, mean over the grid; searched: |alpha| of at most 1",
        "a vector that changes nothing has no error either: look at the own task in the table above",
    ]
    lines = by(talos.frames["disentangle"], "method", title, ordered)
    return Table("Weight-disentanglement error", ["method"], columns, lines, notes, "disentangle", ("searched", "all"))


def _pruning(talos: Talos) -> Table:
    return Table(
        "", ["kind"], [share("", "ratio")], by(talos.frames["pruned"], "kind"), name="pruned", stored=("ratio",)
    )


def _masks(talos: Talos) -> Table:
    """Where masks lie, and how alike those of different tasks are."""
    frame, shared = talos.frames["tensors"], talos.frames["task_iou"]

    def of_kind(kind: str) -> Column:
        return share(kind, lambda data: share_of(data["tensors"][data["tensors"].kind == kind]))

    columns = [share("selected", lambda data: share_of(data["tensors"])), *map(of_kind, sorted({*frame.kind}, key=KINDS.index)),
        share("IoU of two tasks", lambda data: data["pairs"].iou, "task_iou"),
        share("by chance", lambda data: data["pairs"].chance, "chance")]  # fmt: skip
    lines = [
        replace(line, data={"tensors": line.data, "pairs": shared[shared.method == line.key]})
        for line in by(frame, "method", title, ordered)
    ]
    notes = [f"share of the parameters of each kind that a mask selects, in %; {VALUES}"]
    return Table("Masks", ["method"], columns, lines, notes, "masks", ("task_iou", "chance"))


def _calibration(talos: Talos) -> Table:
    notes = [
        "IoU with the mask calibrated as params.yaml says, in %; other draw repeats that with other labels drawn, which "
        "tells how much chance alone changes",
    ]
    columns = [N, share("IoU", "iou"), share("by chance", "chance")]
    lines = by(talos.frames["overlap"], "variant", lambda name: name.replace("_", " "))
    name = "Calibration of the TaLoS mask in other ways"
    return Table(name, ["calibration"], columns, lines, notes, "calibration", ("iou",))


def _costs(talos: Talos) -> Table:
    def mean(rows: pd.DataFrame, name: str) -> float:
        return pd.to_numeric(rows[name]).mean() if name in rows else float("nan")

    columns = [
        number("gradient examples", "gradient_examples", ",.0f"), number("calibration s", "calibration_seconds", ".2f"),
        number("steps", "steps", ",.0f"), number("training s", "train_seconds", ".2f"),
        number("s / step", lambda rows: [mean(rows, "train_seconds") / mean(rows, "steps")], ".2f"),
        number("peak MiB", "peak_bytes", ".1f", MIB), number("trained", "trained", ",.0f"),
        number("optimizer MiB", "optimizer_bytes", ".1f", MIB), number("checkpoint MiB", "checkpoint_bytes", ".1f", MIB),
    ]  # fmt: skip
    notes = [
        "mean over cells; gradient examples: backward passes of single examples before training; peak: of the whole process",
        "full and graft come from the main pipeline, whose time is not counted here; a graft trains the whole region first",
    ]
    return Table("Costs of one task", ["method"], columns, by(talos.frames["cost"], "method", title, ordered), notes)


# --- What the claims measure ---------------------------------------------------------------------------------------


def added(talos: Talos, first: str, second: str) -> Difference:
    """Accuracy of first - second after addition, over (task, seed)."""
    return _paired(talos.frames["addition"], "accuracy", first, second)


def negated(talos: Talos, first: str, second: str) -> Difference:
    """Target accuracy of second - first after negation, so positive where first takes more; weak controls left out."""
    frame = talos.frames["negation"]
    return _paired(frame[~frame.weak_control.astype(bool)], "accuracy", second, first)


def localized(talos: Talos, first: str, second: str) -> Finding:
    """How much nearer to 1 the ratio on other tasks is for first, over (trained on, task, seed)."""
    frame = talos.frames["localization"]
    away = frame[frame.trained_on != frame.task]
    value = _paired(away.assign(away=(away.ratio - 1).abs()), "away", second, first, ["trained_on", *CELL])
    return _unless_idle(talos, first, value)


def disentangled(talos: Talos, first: str, second: str) -> Finding:
    """Error of second - first where alpha is searched, over (pair, seed)."""
    means = searched(talos.frames["disentangle"]).groupby(["method", "pair", "seed"], as_index=False)["mean"].mean()
    return _unless_idle(talos, first, _paired(means, "mean", second, first, ["pair", "seed"]))


def _unless_idle(talos: Talos, method: str, value: Difference) -> Finding:
    """Where a method leaves its own tasks alone too, that it leaves other ones alone says nothing."""
    frame = talos.frames["localization"]
    own = frame[(frame.method == method) & (frame.trained_on == frame.task)]
    idle = value.n and not (own.accuracy - own.pretrained).mean() > 0
    return Finding(value, void="; its vectors bring their own tasks no accuracy, so this says nothing" if idle else "")


def pruned(talos: Talos, kind: str, other: str = "") -> list[Finding]:
    """Share of the zero-shot accuracy that pruning of a kind keeps, or how much more than that of another kind."""
    frame = talos.frames["pruned"]
    values = {name: part.set_index(["scored_on", *CELL]).ratio.astype(float) for name, part in frame.groupby("kind")}
    if not {"least", "random", "most"} <= {*values}:
        return []
    return [Finding(paired(values[kind], values[other]) if other else mean_of(values[kind]))]


def alike(talos: Talos) -> Difference:
    """IoU of the TaLoS masks of two tasks - that by chance."""
    frame = talos.frames["task_iou"]
    both = frame[frame.method == "talos"].set_index(["first", "second", "seed"])
    return paired(both.iou.astype(float), both.chance.astype(float))


def query_and_key(talos: Talos) -> Difference:
    """Share of attention's query and key that TaLoS selects - share of the whole region."""
    frame = talos.frames["tensors"]
    own = frame[frame.method == "talos"]
    return paired(share_of(own[own.kind.isin([QUERY, KEY])]), share_of(own))


MEASURES = {
    "added": added, "negated": negated, "localized": localized, "disentangled": disentangled, "pruned": pruned,
    "alike": alike, "query_and_key": query_and_key,
}  # fmt: skip


def _paired(frame: pd.DataFrame, measure: str, first: str, second: str, cell: list[str] = CELL) -> Difference:
    return paired(*(frame[frame.method == name].set_index(cell)[measure].astype(float) for name in (first, second)))


# --- All of it -----------------------------------------------------------------------------------------------------


def report(talos: Talos) -> Report:
    """Tables, which stages are off, and which effects show."""
    size = f"{counted(len(talos.tasks), 'task')}, {counted(len(talos.seeds), 'seed')}"
    facts = [f"off, so without tables and figures: {', '.join(talos.off)}"] if talos.off else []
    claims = judge(read_statements(HERE / "claims.yaml"), MEASURES, talos)
    return Report("Task arithmetic with localized vectors", size, shown(tables(talos)), facts, claims)


def numbers(talos: Talos) -> dict[str, Any]:
    """metrics/talos.json: for each table that is stored line -> column -> n, mean, sd; then differences of two methods."""
    compare = {
        f"{first}-{second}": {
            name: value.numbers()
            for name, of in (("added", added), ("negated", negated))
            if (value := of(talos, first, second)).n
        }
        for first, second in COMPARED
    }
    return {**stored(tables(talos)), "compare": {pair: values for pair, values in compare.items() if values}}
