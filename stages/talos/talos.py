"""talos: the report on task arithmetic."""

from collections.abc import Iterator
from functools import partial
from itertools import combinations

import pandas as pd

from skill_grafting.grafting.composition import KEY, KINDS, QUERY, composition
from skill_grafting.grafting.mask_files import read_mask
from skill_grafting.merging.arithmetic import normalised
from stages.talos.settings import Settings
from stages.text.scores.gain import relative_gain
from stages.text.scores.overlap import overlap
from stages.text.scores.variants import PRETRAINED
from stages.workflow.records import Cell, Records, Row, compared, frame_of, grid, require_files, run_frame
from stages.workflow.report.publish import publish
from stages.workflow.stage.decorator import stage

# methods without a mask that was chosen by looking at the model
WHOLE = ("full", "full_matched", "linear")
CELL = ["task", "seed"]
MIB = 2**20
COLUMNS = {
    "addition": ["method", *CELL, "n", "n_dev", "majority", "pretrained", "single", "full", "alpha", "accuracy", "by_own", "by_full", "gain"],
    "negation": ["method", *CELL, "n", "pretrained", "alpha", "accuracy", "control", "control_majority", "control_zero_shot",
        "control_accuracy", "control_kept", "weak_control"],
    "curve": ["method", "seed", "alpha", "normalised"],
    "localization": ["method", "trained_on", *CELL, "n", "majority", "accuracy", "pretrained", "ratio"],
    "cost": ["method", *CELL, "selected", "graftable"],
    "disentangle": ["method", "pair", "seed", "n", "alpha1", "alpha2", "e1", "e2", "mean"],
    "pruned": ["kind", "scored_on", *CELL, "pruned", "n", "majority", "accuracy", "pretrained", "ratio"],
    "overlap": ["variant", *CELL, "iou", "chance"],
    "tensors": ["method", *CELL, "layer", "kind", "parameters", "selected"],
    "task_iou": ["method", "seed", "first", "second", "iou", "chance"],
}  # fmt: skip


def collect(params: Settings) -> dict[str, pd.DataFrame]:
    """Read the records of the cells that the settings name; raises DataError for a missing one, MaskError for a damaged mask.

    `gain` of an added model is its relative gain, of full fine-tuning's own single model, where that gained summary.least_gain.
    """
    tasks, seeds, least = params.talos.tasks, params.seeds, params.summary.least_gain
    pairs = [f"{first}+{second}" for first, second in params.disentangle.grid.pairs.items()]
    edited, scored, added, crossed = (
        Records("talos", stage, f"metrics/{stage}/{path}.json", cells)
        for stage, path, cells in (
            ("edit", "{method}/{seed}/{task}", grid(seed=seeds, method=params.edit.methods, task=tasks)),
            ("sensitivity", "{seed}/{task}", grid(seed=seeds, task=tasks)),
            ("arithmetic", "{method}/{seed}/{task}", grid(seed=seeds, method=params.arithmetic.methods, task=tasks)),
            ("disentangle", "{method}/{seed}/{pair}", grid(seed=seeds, method=params.disentangle.methods, pair=pairs)),
        )
    )
    require_files("make talos", edited, scored, added, crossed)
    chosen = grid(seed=seeds, method=[name for name in params.edit.methods if name not in WHOLE], task=tasks)
    masks = Records("talos", "edit", "masks/edit/{method}/{seed}/{task}.safetensors", chosen)
    records = {
        "addition": (added, partial(_added_rows, least)),
        "negation": (added, _negated_rows),
        "curve": (added, partial(_curve_rows, tasks)),
        "localization": (edited, lambda _, record: ({**row, "trained_on": row["variant"]} for row in _ratios(record))),
        "cost": (
            edited,
            lambda _, record: [{name: record[name] for name in ("selected", "graftable")} | record["cost"]],
        ),
        "disentangle": (crossed, lambda _, record: ({**row, "n": min(record["n"])} for row in record["rows"])),
        "pruned": (scored, _pruned_rows),
        "overlap": (scored, lambda _, record: [{"variant": "single_round", **record["single_round"]}]),
    }
    frames = {name: of.table(make, COLUMNS[name], more=name == "cost") for name, (of, make) in records.items()}
    iou = (
        {**one, "first": one["task"], "second": other["task"], **found}
        for one, other, found in compared(masks, ["task"], combinations, overlap)
    )
    places = frame_of(_places(masks), COLUMNS["tensors"])
    frames["tensors"] = places.assign(layer=pd.to_numeric(places.layer) + 1)  # displayed
    return frames | {"task_iou": frame_of(iou, COLUMNS["task_iou"]), "run": run_frame(params)}


def _ratios(record: Row) -> Iterator[Row]:
    """The rows of a record but for the pretrained model, whose accuracy theirs is divided by."""
    [start] = [row["accuracy"] for row in record["rows"] if row["variant"] == PRETRAINED]
    for row in record["rows"]:
        if row["variant"] != PRETRAINED:
            yield {**row, "pretrained": start, "ratio": normalised(row["accuracy"], start)}


def _pruned_rows(_: Cell, record: Row) -> Iterator[Row]:
    for row in _ratios(record):
        kind, _, scored_on = row["variant"].partition("_")
        yield {**row, "pruned": record["pruned"], "kind": kind, "scored_on": scored_on}


def _added_rows(least: float, cell: Cell, record: Row) -> Iterator[Row]:
    """The sum of the method's vectors, and what else was merged of them, each a method."""
    for merger, part in record["added"].items():
        gain = relative_gain(part["accuracy"], record["pretrained"], record["full"], least)
        yield {**record, **part, "method": cell["method"] if merger == "sum" else merger, "gain": gain}


def _curve_rows(tasks: list[str], cell: Cell, record: Row) -> Iterator[Row]:
    """The scores on dev by alpha, which is one for all tasks."""
    for merger, part in record["added"].items() if cell["task"] == tasks[0] else ():
        for alpha, value in {**record, **part}["curve"]:
            yield {"method": cell["method"] if merger == "sum" else merger, "alpha": alpha, "normalised": value}


def _negated_rows(_: Cell, record: Row) -> list[Row]:
    part = record["negated"]
    kept = normalised(part["control_accuracy"], part["control_zero_shot"])
    return [{**record, **part, "control_kept": kept}]


def _places(masks: Records) -> Iterator[Row]:
    """How many parameters of each tensor a mask selects."""
    for cell in masks.cells:
        mask = read_mask(masks.file(cell)).mask
        yield from ({**row, **cell} for row in composition(mask.counts, mask.region.shapes))


def derive(frames: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The frames with every quantity that report.yaml names as a column."""
    ratios, pruned, tensors = frames["localization"], frames["pruned"], frames["tensors"]
    cost = frames["cost"]
    own, best = ratios.trained_on == ratios.task, ratios[["pretrained", "majority"]].max(axis=1)
    negation = frames["negation"].assign(weak_control=frames["negation"].weak_control.astype(bool))
    addition = _with_pretrained(_with_alphas(frames["addition"]), {"accuracy": "pretrained"})
    return frames | {
        "addition": addition.assign(best=addition.method.isin(_best(frames["addition"]))),
        "negation": _with_pretrained(
            _with_alphas(negation).assign(control_above=negation.control_zero_shot - negation.control_majority),
            {"accuracy": "pretrained", "control_accuracy": "control_zero_shot"},
        ).astype({"weak_control": bool}),
        "localization": ratios.assign(
            own=ratios.ratio.where(own),
            other=ratios.ratio.where(~own),
            away=(ratios.ratio - 1).abs().where(~own),
            gained=(ratios.accuracy - best).where(own),
        ),
        "pruned": pruned.assign(
            constant=pruned.majority / pruned.pretrained, above=pruned.pretrained - pruned.majority
        ),
        "errors": _errors(frames["disentangle"]),
        "masks": _selected(tensors),
        "added": _long(
            frames["addition"], "model", "accuracy", single="single-task models", accuracy="one model for all, added"
        ),
        "mask_overlap": _long(frames["task_iou"], "masks", "iou", iou="two tasks", chance="by chance"),
        "cost": cost.assign(
            share=cost.selected / cost.graftable,
            seconds_per_step=cost.train_seconds / cost.steps,
            **{f"{what}_mib": cost[f"{what}_bytes"] / MIB for what in ("peak", "optimizer", "checkpoint")},
        ),
        "facts": _facts(negation),
    }


def _best(addition: pd.DataFrame) -> pd.Index:
    """The methods of the highest mean accuracy over tasks, mostly one."""
    means = addition.groupby(["method", "task"]).accuracy.mean().groupby("method").mean()
    return means.index[means == means.max()]


def _with_alphas(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with all alphas of each method as a text."""
    alphas = frame.groupby("method").alpha.agg(
        lambda values: ", ".join(f"{value:g}" for value in sorted({*values.dropna()}))
    )
    return frame.assign(alphas=frame.method.map(alphas))


def _with_pretrained(frame: pd.DataFrame, values: dict[str, str]) -> pd.DataFrame:
    """The frame with the pretrained model as one more method, whose values stand in columns beside those of the others."""
    start = frame.drop_duplicates([*CELL])
    start = start[CELL].assign(method=PRETRAINED, weak_control=True, **{new: start[old] for new, old in values.items()})
    return pd.concat([frame, start], ignore_index=True)


def _long(frame: pd.DataFrame, name: str, value: str, **columns: str) -> pd.DataFrame:
    """Several columns as one, `value`, with their titles in the column `name`."""
    parts = [frame.assign(**{name: title, value: frame[column]}) for column, title in columns.items()]
    return pd.concat(parts, ignore_index=True)


def _errors(plane: pd.DataFrame) -> pd.DataFrame:
    """Mean error over the part of the plane of both coefficients in which alpha is searched."""
    inside = plane[plane[["alpha1", "alpha2"]].abs().max(axis=1) <= 1]
    means = inside.groupby(["method", "pair", "seed"], sort=False)["mean"].mean().reset_index()
    return means.join(means.pair.str.split("+", expand=True).set_axis(["first", "second"], axis=1))


def _selected(tensors: pd.DataFrame) -> pd.DataFrame:
    """Share of the parameters that a mask selects: of each kind and each layer, of query and key together, and of all."""
    layers = tensors.dropna(subset="layer")
    parts = {
        "kind": tensors.sort_values("kind", key=lambda kinds: kinds.map(KINDS.index), kind="stable"),
        "layer": layers.assign(kind="layer " + layers.layer.astype(int).astype(str)),
        "both": tensors[tensors.kind.isin([QUERY, KEY])].assign(kind="query and key"),
        "all": tensors.assign(kind="all"),
    }
    every = pd.concat([frame.assign(view=name) for name, frame in parts.items()])
    sums = every.groupby(["view", "method", *CELL, "kind"], sort=False)[["selected", "parameters"]].sum()
    return (sums.selected / sums.parameters).rename("share").reset_index()


def _facts(negation: pd.DataFrame) -> pd.DataFrame:
    weak = negation[negation.weak_control].drop_duplicates(["task", "control", "seed"])
    cells = "; ".join(f"{row.task} against {row.control}, seed {row.seed}" for row in weak.itertuples())
    return pd.DataFrame([{"weak": cells}])


@stage
def main(params: Settings) -> None:
    """Write the report from the records of all cells that params.yaml names."""
    publish("talos", collect(params))
