"""The study's records as tidy frames, and the rows of them that a table, a figure or a claim is about."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
import pandas as pd

from stages.lib.graft.mask_file import read_mask
from stages.lib.metrics.composition import OUTSIDE, composition
from stages.lib.metrics.gain import ROUNDING, add_gain, gained, scores_of_ends
from stages.lib.metrics.overlap import asymmetric_overlap, chance_asymmetric_overlap, chance_iou, iou
from stages.lib.metrics.variants import FINETUNED, GRAFTED, PRETRAINED
from stages.lib.report.format import MARKS
from stages.lib.report.load import Cell, Collected, Records, Row, frame_of, grid, in_order, require_files
from stages.lib.report.stats import estimate
from stages.lib.settings import Params

# stage -> what the folders below metrics/<stage>, and then the file, are named after
AXES: dict[str, tuple[str, ...]] = {
    "anchor": ("seed", "task"),
    "sweep": ("localizer", "sparsity", "seed", "task"),
    "readout": ("readout", "localizer", "sparsity", "seed", "task"),
    "wise": ("seed", "task"),
    "peft": ("method", "seed", "task"),
    "paradigm": ("paradigm", "seed", "task"),
    "trajectory": ("seed", "task"),
}
MEASURES = ["score", "accuracy", "f1", "ece", "agreement", "retained", "gain", "loss"]
NUMBERS = [
    "sparsity", "alpha", "step", "n", "accuracy_se", "selected", "graftable", "model_parameters", "trained", "constant",
]  # fmt: skip
TEXTS = ["task", "seed", "test_set", "where", "variant", "localizer", "readout", "method", "paradigm", "kept"]
# of a record as a whole
SIZES = ("selected", "graftable", "model_parameters", "trained")
MASK_FRAMES = {
    "composition": [*AXES["sweep"], "layer", "kind", "selected", "parameters", "share", "chance"],
    "localizer_overlap": ["sparsity", "seed", "task", "first", "second", "iou", "chance"],
    "task_overlap": ["localizer", "sparsity", "seed", "first", "second", "overlap", "chance"],
    "seed_overlap": ["localizer", "sparsity", "task", "first", "second", "overlap", "chance"],
    "cost": [*AXES["sweep"], "gradient_examples", "kept"],
}
LEARNED, MOVEMENT, FISH, BIAS = "learned", "movement", "fish", "bias"
# the localizers in the order in which they are compared
ORDER = (LEARNED, "attribution", "grown", "stitch", MOVEMENT, FISH, "magnitude", BIAS, "random")
CELL = ["task", "seed"]
# where two models' scores can be compared
PLACE = [*CELL, "test_set"]
# variant of a model with all but a region set to 0
PRUNED = "pruned"
# mode, and the paradigm that has it, in which a new head is trained
STANDARD = "standard"
PAPER_SPARSITY = 0.0001


def cells_of(params: Params) -> dict[str, list[Cell]]:
    """Stage -> its cells, in the order of its axes; a stage that is off has none."""
    tasks, readout = params.study.tasks, params.readout
    values = {
        "anchor": [tasks],
        "sweep": [params.sweep.localizers, params.sweep.sparsities, tasks],
        "readout": [readout.readouts, readout.localizers, readout.sparsities, readout.tasks],
        "wise": [[task for task in tasks if params.ood.sets.get(task) and params.wise.alphas]],
        "peft": [params.peft.methods, params.peft.tasks],
        "paradigm": [params.paradigm.paradigms, params.paradigm.tasks],
        "trajectory": [params.trajectory.tasks],
    }
    return {
        stage: grid(**dict(zip(AXES[stage], [*axes, params.seeds, last], strict=True)))
        for stage, (*axes, last) in values.items()
    }


@dataclass(frozen=True, eq=False)  # told apart as objects, so that what follows from one can be cached
class Study(Collected):
    """Tidy frames by stage, plus those of MASK_FRAMES; measures are fractions 0..1.

    A stage's frame has a row for each record row, with the columns TEXTS, NUMBERS and MEASURES, NaN
    or None where a stage has no such axis.  `off` names the stages without cells; their frames are empty.
    `gain` is between the anchor's pretrained and fine-tuned models, as `retained` is of the latter, or a paradigm's own
    fine-tuned one; undefined where that gained less than `least_gain`, or the pretrained model under its head is not known.
    """

    least_gain: float

    @cached_property
    def rows(self) -> Callable[..., pd.DataFrame]:
        """rows(stage, where, **axes): on the own test set (`id`), on others (`ood`) or on training rows (`train`), at these axes' values.

        `where`, or an axis, whose value is None is not looked at.  Asked for again they are the same frame, which nobody changes.
        """
        return cache(self._select)

    def _select(self, stage: str, where: str | None = "id", **axes: Any) -> pd.DataFrame:
        frame = self.frames[stage]
        for name, value in {"where": where, **axes}.items():
            frame = frame if value is None else frame[frame[name] == value]
        return frame

    def anchor(self, variant: str, where: str | None = "id") -> pd.DataFrame:
        """Rows of the pretrained or fine-tuned model."""
        return self.rows("anchor", where, variant=variant)

    def grafts(self, localizer: str, sparsity: float | None = None, where: str | None = "id") -> pd.DataFrame:
        """Grafted rows of a localizer, at one size or at all."""
        return self.rows("sweep", where, localizer=localizer, variant=GRAFTED, sparsity=sparsity)

    def readout(self, name: str, localizer: str, size: float | None = None, where: str | None = "id") -> pd.DataFrame:
        """Rows of one readout of a localizer's region."""
        return own_rows(self.rows("readout", where, readout=name, localizer=localizer, sparsity=size))

    def bitfit(self, where: str | None = "id") -> pd.DataFrame:
        """Rows of all biases trained alone, at the smallest size that has room for more: a smaller one holds only some of them."""
        rows = self.readout("retrain", BIAS, None, where)
        rows = rows[rows.selected + 1 <= rows.sparsity * rows.graftable + 1e-6]  # as Region.budget rounds
        return rows[rows.sparsity == rows.sparsity.min()]

    @cached_property
    def localizers(self) -> list[str]:
        """Localizers of the sweep, known ones first, in the order in which they are compared."""
        return in_order(self.frames["sweep"].localizer, ORDER)

    @cached_property
    def leading(self) -> str:
        """The localizer that figures of a single one are about: `learned`, or where the sweep is without it, its first."""
        return self.localizers[0] if self.localizers else LEARNED

    @cached_property
    def common_sparsities(self) -> list[float]:
        """Sizes that every localizer of the sweep has, smallest first."""
        sets = [{*rows.sparsity} for _, rows in self.frames["sweep"].groupby("localizer")]
        return sorted(set.intersection(*sets)) if sets else []

    @cached_property
    def smallest(self) -> float | None:
        """The size of the learned grafts that is nearest the paper's."""
        return nearest(sparsities(self.grafts(LEARNED)))

    @cached_property
    def region_size(self) -> float | None:
        """The size at which readouts of learned regions are shown: of those there are, the one nearest the paper's."""
        frame = self.frames["readout"]
        return nearest(sparsities(frame[frame.localizer == LEARNED]))

    @cached_property
    def pairs(self) -> list[tuple[str, str]]:
        """(trained task, other test set) that any stage has rows about."""
        frames = [self.rows(stage, "ood") for stage in ("anchor", "sweep", "readout", "peft", "wise")]
        found = pd.concat([frame[["task", "test_set"]] for frame in frames]).drop_duplicates()
        order = {name: place for place, name in enumerate(self.tasks)}
        return sorted(
            found.itertuples(index=False, name=None), key=lambda pair: [order.get(name, len(order)) for name in pair]
        )

    @cached_property
    def metrics(self) -> dict[str, str]:
        """Tasks whose score isn't accuracy -> what it is."""
        rows = pd.concat([self.rows("anchor"), self.rows("sweep")])
        rows = rows[(rows.score - rows.accuracy).abs() > 1e-9]
        other = {*rows.task[(rows.score - rows.f1).abs() > 1e-9]}
        return {task: "mcc" if task in other else "f1" for task in rows.task.unique()}

    def named(self, task: str) -> str:
        """A task's name, with the mark of a score that isn't accuracy (MARKS)."""
        return task + MARKS.get(self.metrics.get(task, ""), "")

    def places(self, by: str, localizer: str = LEARNED) -> tuple[pd.DataFrame, float | None]:
        """task, seed, `by` (layer or kind), share, chance of a localizer's masks at the size nearest the paper's; and that size."""
        frame = self.frames["composition"]
        frame = frame[frame.localizer == localizer]
        size = nearest(sparsities(frame))
        frame = frame[frame.sparsity == size]
        return frame.groupby([*CELL, by], sort=False)[["share", "chance"]].sum().reset_index(), size

    def gaps(self) -> dict[str, pd.Series]:
        """Accuracy on training rows less that on test rows, by cell; for what ran with training rows."""
        models = {name: partial(self.anchor, name) for name in (PRETRAINED, FINETUNED)}
        models |= {name: partial(self.readout, name, LEARNED) for name in ("graft", "retrain")}
        shares = {
            name: [by_cell(rows(where=where), "accuracy") for where in ("train", "id")] for name, rows in models.items()
        }
        gaps = {name: (train - test).dropna() for name, (train, test) in shares.items()}
        return {name: gap for name, gap in gaps.items() if len(gap)}

    def saturation(self, least: float) -> pd.DataFrame:
        """By cell the share of the steps of fine-tuning until the largest `graft` and the `model` first have so much of their best gain.

        Of a score most is the pretrained model's, so what gains less would have reached its share of it earlier.  Cells in which
        either never gains `least_gain` are left out.
        """
        rows = self.rows("trajectory")
        start = by_cell(self.anchor(PRETRAINED)).rename("start")
        rows = rows.join(start, on=CELL)
        rows = rows.assign(gain=rows.score - rows.start)
        grafts = rows[rows.variant == GRAFTED]
        last = rows.groupby(CELL)["step"].max()
        parts = {"graft": grafts[grafts.sparsity == grafts.sparsity.max()], "model": rows[rows.variant == "checkpoint"]}
        for name, part in parts.items():
            best = part.groupby(CELL)["gain"].transform("max")
            enough = part[gained(0.0, best, self.least_gain) & (part.gain >= least * best - ROUNDING)]
            parts[name] = enough.groupby(CELL)["step"].min() / last
        return pd.DataFrame(parts).dropna()

    def gave_way(self) -> pd.DataFrame:
        """task, seed and sparsity of the learned grafts that are movement's, which agreed more on dev."""
        cost = self.frames["cost"]
        return cost.loc[(cost.localizer == LEARNED) & (cost.kept == MOVEMENT), [*CELL, "sparsity"]]

    def costs(self) -> pd.DataFrame:
        """localizer, sparsity, tasks, examples, retained, low, high, gain: means over tasks, common sizes only."""
        cost, rows = self.frames["cost"], []
        for sparsity, name in product(self.common_sparsities, self.localizers):
            kept = estimate(by_cell(self.grafts(name, sparsity), "retained"))
            mine = cost[(cost.localizer == name) & (cost.sparsity == sparsity)]
            examples = mine.gradient_examples.astype(float).mean()
            gain = estimate(by_cell(self.grafts(name, sparsity), "gain")).mean
            rows.append([name, sparsity, kept.tasks, examples, kept.mean, kept.low, kept.high, gain])
        columns = ["localizer", "sparsity", "tasks", "examples", "retained", "low", "high", "gain"]
        return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[3:], float))

    def data(self) -> dict[str, pd.DataFrame]:
        """The frames that figures are drawn from, for `dvc plots`, without empty columns, and the costs; the first layer is 1."""
        frames = {name: frame.dropna(axis=1, how="all") for name, frame in self.frames.items()}
        layers = self.frames["composition"].layer
        frames["composition"] = frames["composition"].assign(layer=layers.where(layers == OUTSIDE, layers + 1))
        return frames | ({"cost_mean": self.costs()} if len(frames["cost"]) else {})


def collect(cells: Mapping[str, Sequence[Cell]], least_gain: float, mode: str) -> Study:
    """Read the cells of each stage.  The order of tasks and seeds is that of the cells; `mode` is model.mode.

    Raises DataError that names each missing file with the `dvc repro` that makes it, or a record that
    isn't one; MaskError for a damaged mask.
    """
    records = {stage: _files(stage, f"metrics/{stage}", "json", cells.get(stage, [])) for stage in AXES}
    masks = _files("sweep", "masks/sweep", "safetensors", cells.get("sweep", []))
    require_files("make study", *records.values(), masks)
    frames = _with_gains({stage: _tidy(found.rows(_rows)) for stage, found in records.items()}, least_gain, mode)
    about_masks = {
        "composition": _composition(masks),
        "localizer_overlap": _overlaps(masks, "localizer", combinations, _iou),
        "task_overlap": _overlaps(masks, "task", permutations, _share_inside),
        "seed_overlap": _overlaps(masks, "seed", permutations, _share_inside),
        "cost": records["sweep"].rows(lambda cell, record: [{**cell, **record.get("about", {})}]),
    }
    for name, columns in MASK_FRAMES.items():
        part = frame_of(about_masks[name], columns)
        frames[name] = part.assign(sparsity=pd.to_numeric(part.sparsity))
    all_cells = [cell for found in records.values() for cell in found.cells]
    tasks, seeds = ([*dict.fromkeys(cell[axis] for cell in all_cells)] for axis in ("task", "seed"))
    return Study(tasks, seeds, frames, [stage for stage, found in records.items() if not found.cells], least_gain)


def sparsities(frame: pd.DataFrame) -> list[float]:
    """Sizes that occur, smallest first."""
    return sorted(frame.sparsity.dropna().unique())


def nearest(sizes: list[float]) -> float | None:
    """The size next to the paper's, the smaller of two as near; None without sizes."""
    return min(sizes, key=lambda size: (abs(size - PAPER_SPARSITY), size), default=None)


def own_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows about the model a stage made, without those it is compared with.

    A stage that calls its own model `finetuned` or `grafted` is understood too: these are left out only
    beside another.
    """
    for reference in (PRETRAINED, FINETUNED, GRAFTED):
        others = rows[rows.variant != reference]
        rows = others if len(others) else rows
    return rows


def by_cell(rows: pd.DataFrame, measure: str = "score") -> pd.Series:
    """A measure of each cell (task, seed), averaged over further rows such as test sets."""
    cells = pd.Series(rows[measure].to_numpy(), pd.MultiIndex.from_arrays([rows[name] for name in CELL]), name=measure)
    # grouping takes five times as long, and most frames have one row of a cell
    return cells if cells.index.is_unique else cells.groupby(level=CELL, sort=False).mean()


def _files(stage: str, folder: str, ending: str, cells: Sequence[Cell]) -> Records:
    # one run makes all sizes, which lie in the folder of its seed
    *run, task = (f"{{{axis}}}" for axis in AXES[stage] if axis != "sparsity")
    sizes = ["{sparsity}"] if "sparsity" in AXES[stage] else []
    return Records("study", stage, "/".join([folder, *run, *sizes, task]) + f".{ending}", cells, "-".join(run))


def _rows(cell: Cell, record: Row) -> Iterator[Row]:
    sizes = {name: record[name] for name in SIZES if name in record}
    for row in record["rows"]:
        task = cell["task"]
        where = {task: "id", f"{task}:train": "train"}.get(row["test_set"], "ood")
        yield {**sizes, **row, **cell, "where": where}


def _tidy(rows: list[Row]) -> pd.DataFrame:
    frame = frame_of(rows, [*TEXTS, *NUMBERS, *MEASURES])
    # an undefined measure is null in JSON
    return frame.assign(**{name: pd.to_numeric(frame[name]).astype(float) for name in (*NUMBERS, *MEASURES)})


def _with_gains(frames: dict[str, pd.DataFrame], least: float, mode: str) -> dict[str, pd.DataFrame]:
    ends = scores_of_ends(frames["anchor"], PLACE)
    found = {stage: add_gain(frame, ends, least) for stage, frame in frames.items()}
    rows, own = frames["paradigm"], ["paradigm", *PLACE]
    trained = rows[rows.variant == FINETUNED].set_index(own).score.rename(FINETUNED).reset_index()
    both = trained.merge(ends[[PRETRAINED]], how="left", left_on=PLACE, right_index=True)
    # a new head is trained with each paradigm, and nobody has measured the pretrained model under it
    both.loc[(both.paradigm == STANDARD) | (mode == STANDARD), PRETRAINED] = np.nan
    return found | {"paradigm": add_gain(rows, both.set_index(own), least)}


def _composition(masks: Records) -> Iterator[Row]:
    for cell in masks.cells:
        mask = read_mask(masks.file(cell)).mask
        for row in composition(mask.counts, mask.region.shapes):
            yield {**cell, **row, "layer": OUTSIDE if row["layer"] is None else row["layer"]}


def _overlaps(
    masks: Records,
    axis: str,
    pairs: Callable[[Iterable[str], int], Iterable[tuple[str, str]]],
    measure: Callable[[np.ndarray, np.ndarray, int], Row],
) -> Iterator[Row]:
    """The overlap of any two masks that differ in this axis alone."""
    groups: dict[tuple, list[Cell]] = {}
    for cell in masks.cells:
        groups.setdefault(tuple(value for name, value in cell.items() if name != axis), []).append(cell)
    for cells in groups.values():
        read = {cell[axis]: read_mask(masks.file(cell)).mask for cell in cells}
        indices = {name: mask.region_indices().numpy() for name, mask in read.items()}
        shared = {name: value for name, value in cells[0].items() if name != axis}
        for first, second in pairs(indices, 2):
            common = measure(indices[first], indices[second], read[first].region.size)
            yield {**shared, "first": first, "second": second, **common}


def _iou(first: np.ndarray, second: np.ndarray, size: int) -> Row:
    return {"iou": iou(first, second), "chance": chance_iou(len(first), len(second), size)}


def _share_inside(first: np.ndarray, second: np.ndarray, size: int) -> Row:
    """Share of the second mask that lies in the first, beside what chance gives."""
    chance = chance_asymmetric_overlap(len(first), len(second), size)
    return {"overlap": asymmetric_overlap(first, second), "chance": chance}
