"""study: the report on the single-task study, with the paper's tables and figures."""

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pandas as pd

from skill_grafting.grafting.composition import BIAS as BIASES
from skill_grafting.grafting.composition import FIRST, KINDS, LAYER_NORM, OUTSIDE, VALUE, composition
from skill_grafting.grafting.mask_files import read_mask
from skill_grafting.support.formatting import counted, small_percent
from stages.study import bound
from stages.study.settings import Settings
from stages.text.scores.gain import ROUNDING, gained
from stages.text.scores.overlap import overlap, share_inside
from stages.text.scores.variants import FINETUNED, GRAFTED, PRETRAINED, WISE_FT, WISE_GRAFT
from stages.workflow.cells.stored import read_task
from stages.workflow.records import (
    Cell,
    Records,
    Row,
    add_gain,
    compared,
    frame_of,
    grid,
    label_kinds,
    left_out,
    require_files,
    run_frame,
    scores_of_ends,
    search_in_words,
    search_of,
    shifts,
    shifts_in_words,
)
from stages.workflow.report.publish import publish
from stages.workflow.report.spec import Frames
from stages.workflow.report.stats import FEWEST
from stages.workflow.stage.decorator import stage

# stage -> the axes that name the folders below metrics/<stage>, and then the file
AXES: dict[str, tuple[str, ...]] = {
    "anchor": ("seed", "task"),
    "sweep": ("localizer", "sparsity", "seed", "task"),
    "readout": ("readout", "localizer", "sparsity", "seed", "task"),
    "wise": ("seed", "task"),
    "peft": ("method", "seed", "task"),
    "paradigm": ("paradigm", "seed", "task"),
    "trajectory": ("seed", "task"),
    "compression": ("seed", "task"),
}
SCORE_COLUMNS = ["score", "accuracy", "f1", "ece", "agreement", "retained", "gain", "loss"]
NUMBERS = [
    "sparsity", "alpha", "step", "n", "accuracy_se", "selected", "graftable", "model_parameters", "trained", "constant",
    "bytes", "used", "explained",
]  # fmt: skip
TEXTS = ["task", "seed", "test_set", "where", "variant", "localizer", "readout", "method", "paradigm"]
# of a record as a whole
SIZES = ("selected", "graftable", "model_parameters", "trained")
MASK_FRAMES = {
    "composition": [*AXES["sweep"], "layer", "kind", "selected", "parameters", "share", "chance"],
    "localizer_overlap": ["sparsity", "seed", "task", "first", "second", "iou", "chance"],
    "task_overlap": ["localizer", "sparsity", "seed", "first", "second", "overlap", "chance"],
    "seed_overlap": ["localizer", "sparsity", "task", "first", "second", "overlap", "chance"],
}
LEARNED, FISH, BIAS = "learned", "fish", "bias"
CELL = ["task", "seed"]
# where two models' scores can be compared
PLACE = [*CELL, "test_set"]
# variant of a model with all but a region set to 0
PRUNED = "pruned"
# mode, and the paradigm that has it, in which a new head is trained
STANDARD = "standard"
PAPER_SPARSITY = 0.0001
# kinds of modules in which the paper finds most of the region
SKILLED = (VALUE, FIRST, LAYER_NORM)
SATURATED = 0.95  # share of the best gain
DELTA = 0.05  # of the generalization bound

# --- Records -------------------------------------------------------------------------------------------------------


def cells_of(params: Settings) -> dict[str, list[Cell]]:
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
        "compression": [params.compression.tasks if params.compression.on else []],
    }
    return {
        stage: grid(**dict(zip(AXES[stage], [*axes, params.seeds, last], strict=True)))
        for stage, (*axes, last) in values.items()
    }


def collect(params: Settings) -> Frames:
    """A frame for each stage, a row a row of its records, without empty columns, and those of MASK_FRAMES.

    Raises DataError that names each missing file with the `dvc repro` that makes it, or a record that isn't one, and
    MaskError for a damaged mask.  `gain` is between the anchor's pretrained and fine-tuned models, as `retained` is of
    the latter, or a paradigm's own fine-tuned one; undefined where that gained less than summary.least_gain.
    """
    cells, least = cells_of(params), params.summary.least_gain
    records = {stage: _files(stage, f"metrics/{stage}", "json", cells[stage]) for stage in AXES}
    masks = _files("sweep", "masks/sweep", "safetensors", cells["sweep"])
    require_files("make study", *records.values(), masks)
    tidy = {stage: _typed(found.table(_rows, TEXTS, more=True)) for stage, found in records.items()}
    frames = with_gains(tidy, least, params.model.mode)
    about_masks = {
        "composition": _composition(masks),
        "localizer_overlap": _overlaps(masks, "localizer", combinations, overlap),
        "task_overlap": _overlaps(masks, "task", permutations, share_inside),
        "seed_overlap": _overlaps(masks, "seed", permutations, share_inside),
    }
    for name, columns in MASK_FRAMES.items():
        part = frame_of(about_masks[name], columns)
        frames[name] = part.assign(sparsity=pd.to_numeric(part.sparsity))
    found = {name: frame if frame.empty else frame.dropna(axis=1, how="all") for name, frame in frames.items()}
    run = run_frame(params).assign(tasks=len(params.study.tasks), least_gain=least, **_search(masks))
    return found | {"run": run, "tasks": _tasks(params.study.tasks)}


def _search(masks: Records) -> Row:
    """The search behind the learned masks, whose settings are the same for all of them; nothing without any."""
    learned = [masks.file(cell) for cell in masks.cells if cell["localizer"] == LEARNED]
    return search_of(read_mask(learned[0]).about) if learned else {}


def _tasks(names: list[str]) -> pd.DataFrame:
    """How many labels each task has."""
    return pd.DataFrame({"task": names, "labels": [len(read_task(name).labels) for name in names]})


def _files(stage: str, folder: str, ending: str, cells: list[Cell]) -> Records:
    # one run makes all sizes, which lie in the folder of its seed
    *run, task = (f"{{{axis}}}" for axis in AXES[stage] if axis != "sparsity")
    sizes = ["{sparsity}"] if "sparsity" in AXES[stage] else []
    return Records("study", stage, "/".join([folder, *run, *sizes, task]) + f".{ending}", cells, "-".join(run))


def _rows(cell: Cell, record: Row) -> Iterator[Row]:
    sizes = {name: record[name] for name in SIZES if name in record}
    for row in record["rows"]:
        task = cell["task"]
        where = {task: "id", f"{task}:train": "train"}.get(row["test_set"], "ood")
        yield {**sizes, **row, "where": where}


def _typed(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with all columns that a stage may have, and numeric dtypes: undefined values are null in JSON."""
    frame = frame.reindex(columns=[*TEXTS, *NUMBERS, *SCORE_COLUMNS])
    return frame.assign(**{name: pd.to_numeric(frame[name]).astype(float) for name in (*NUMBERS, *SCORE_COLUMNS)})


def with_gains(frames: Frames, least: float, mode: str) -> Frames:
    """The stages' frames with a column `gain`; of a paradigm that trains a new head it isn't known."""
    ends = scores_of_ends(frames["anchor"], PLACE)
    found = {stage: add_gain(frame, ends, least) for stage, frame in frames.items()}
    rows, own = frames["paradigm"], ["paradigm", *PLACE]
    trained = rows[rows.variant == FINETUNED].set_index(own).score.rename(FINETUNED).reset_index()
    both = trained.merge(ends[[PRETRAINED]], how="left", left_on=PLACE, right_index=True)
    # each paradigm trains its own head, under which the pretrained model was not measured
    both.loc[(both.paradigm == STANDARD) | (mode == STANDARD), PRETRAINED] = np.nan
    return found | {"paradigm": add_gain(rows, both.set_index(own), least)}


def _composition(masks: Records) -> Iterator[Row]:
    for cell in masks.cells:
        mask = read_mask(masks.file(cell)).mask
        for row in composition(mask.counts, mask.region.shapes):
            # displayed layers count from 1
            yield {**cell, **row, "layer": OUTSIDE if row["layer"] is None else row["layer"] + 1}


def _overlaps(masks: Records, axis: str, pairs: Callable, measure: Callable) -> Iterator[Row]:
    """The overlap of any two masks that differ in this axis alone."""
    for one, other, found in compared(masks, [axis], pairs, measure):
        yield {**one, "first": one[axis], "second": other[axis], **found}


# --- Derived columns -----------------------------------------------------------------------------------------------


def derive(frames: Frames) -> Frames:
    """The frames with every quantity that report.yaml names as a column."""
    frames = frames | {stage: _typed(frames[stage]) for stage in AXES}
    least = float(frames["run"].least_gain.iloc[0])
    for name in ("anchor", "paradigm"):
        frames[name] = frames[name].assign(gained=_above_baselines(frames["anchor"], frames[name]))
    frames |= {
        "grafts": grafts(frames), "models": models(frames), "pruned": _pruned(frames), "gaps": gaps(frames),
        "bound": bounds(frames), "saturation": saturation(frames, least), "fish": fish_overlaps(frames),
        "regions": region_overlaps(frames), "places": places(frames),
        "course": _course(frames["trajectory"]), "ways": _ways(frames["paradigm"]),
        "compressed": compressed(frames),
    }  # fmt: skip
    frames |= {
        "paper": _published(frames), "shares": _shares(frames["places"]), "curves": _curves(frames),
        "tradeoff": _tradeoff(frames), "facts": pd.DataFrame([_facts(frames, least)]),
    }  # fmt: skip
    return frames


def _tested(rows: pd.DataFrame, where: str = "id", **axes: Any) -> pd.DataFrame:
    """Rows on the own test set (`id`), on others (`ood`) or on training rows (`train`), at these axes' values."""
    for name, value in {"where": where, **axes}.items():
        rows = rows[rows[name] == value]
    return rows


def common_sizes(rows: pd.DataFrame) -> list[float]:
    """Sizes that every localizer has, smallest first."""
    sets = [{*part.sparsity} for _, part in rows.groupby("localizer")]
    return sorted(set.intersection(*sets)) if sets else []


def nearest(sizes: Iterable[float]) -> float | None:
    """The size closest to the paper's, the smaller of two equally close ones; None without sizes."""
    known = {size for size in sizes if not pd.isna(size)}
    return min(known, key=lambda size: (abs(size - PAPER_SPARSITY), size), default=None)


def _smallest(frames: Frames) -> float | None:
    """The size of the learned grafts that is nearest the paper's."""
    sweep = frames["sweep"]
    return nearest(sweep[sweep.localizer == LEARNED].sparsity)


def _region_size(frames: Frames) -> float | None:
    """The size at which readouts of learned regions are shown."""
    readout = frames["readout"]
    return nearest(readout[readout.localizer == LEARNED].sparsity)


def _above_baselines(anchor: pd.DataFrame, rows: pd.DataFrame) -> pd.Series:
    """By how much scores are above the pretrained model, and above always the same label."""
    start, constant = (_tested(anchor, variant=name).set_index(CELL) for name in (PRETRAINED, FINETUNED))
    best = start.score.to_frame("start").join(constant.constant).max(axis=1).rename("best")
    return (rows.score - rows.join(best, on=CELL).best).where(rows["where"] == "id")


def grafts(frames: Frames) -> pd.DataFrame:
    """Grafts by localizer and size, with score and ECE of the models that are compared with them in the same cell.

    The pretrained model is the graft of nothing, the fine-tuned one that of everything.  `share`: what is really
    selected, in the mean over the cells of a size; `sizes`: the parameters of learned region and graft, if they differ.
    """
    anchor, sweep, readout = (frames[name] for name in ("anchor", "sweep", "readout"))
    rows, cell = sweep[sweep.variant == GRAFTED], [*CELL, "where"]
    rows = rows.assign(share=_selected_share(rows, ["localizer", "sparsity"]))
    beside = {"finetuned": anchor[anchor.variant == FINETUNED], "peft": frames["peft"], "bitfit": bitfit(readout)}
    for name, part in beside.items():
        rows = rows.join(part.groupby(cell)[["score", "ece"]].mean().add_prefix(f"{name}_"), on=cell)
    alone = readout[(readout.readout == "retrain") & (readout.localizer == LEARNED)]
    by_size = [*cell, "sparsity"]
    rows = rows.join(alone.groupby(by_size)[["score", "ece"]].mean().add_prefix("retrained_"), on=by_size)
    ends = [anchor[anchor.variant == name].assign(localizer=name, sparsity=size) for name, size in ENDS.items()]
    common = common_sizes(rows)
    rows = pd.concat([rows.sort_values("sparsity", kind="stable"), *ends], ignore_index=True)
    counts = rows.groupby(["localizer", "sparsity"]).selected.mean()
    learned = rows[rows.localizer == LEARNED].groupby(by_size).score.mean().rename(LEARNED)
    return rows.assign(
        labels=label_kinds(rows.task.map(frames["tasks"].set_index("task").labels)),
        shift=shifts(rows.task, rows.test_set).where(rows["where"] == "ood", ""),
        less_learned=(rows.score - rows.join(learned, on=by_size)[LEARNED]).where(rows.localizer != LEARNED),
        common=rows.sparsity.isin([*common, *ENDS.values()]),
        smallest=rows.sparsity == min(common, default=None),
        largest=rows.sparsity == max(common, default=None),
        region=100 * rows.share,
        also=rows.sparsity.map(small_percent).eq(frames["run"]["size"].iloc[0]).map({True: ALSO, False: ""}),
        sizes=[_unlike(counts, *own) for own in zip(rows.localizer, rows.sparsity, strict=True)],
    )


ALSO = "the main report asks this, too, of all its test rows and in families of its own (summary.md)"
ENDS = {PRETRAINED: 0.0, FINETUNED: 1.0}


def _unlike(counts: pd.Series, localizer: str, size: float) -> str:
    own, learned = counts.get((localizer, size)), counts.get((LEARNED, size))
    unlike = own is not None and learned is not None and own != learned and not np.isnan([own, learned]).any()
    return f"; {learned:,.0f} and {own:,.0f} parameters" if unlike else ""


def _selected_share(rows: pd.DataFrame, by: list[str]) -> pd.Series:
    share = (rows.selected / rows.graftable).fillna(rows.sparsity)
    return share.groupby([rows[name] for name in by]).transform("mean").round(12)


def bitfit(readout: pd.DataFrame) -> pd.DataFrame:
    """Rows of all biases trained alone, at the smallest size that has room for more: a smaller one holds only some."""
    rows = readout[(readout.readout == "retrain") & (readout.localizer == BIAS)]
    rows = rows[rows.selected + 1 <= rows.sparsity * rows.graftable + 1e-6]  # as Region.budget rounds
    return rows[rows.sparsity == rows.sparsity.min()]


def models(frames: Frames) -> pd.DataFrame:
    """Every model on every test set, named by `method`; `group` is what it is, `published` its name in paper.csv.

    Tables of regions show the graft of their size alone (`shown`); a mean is of models that have all tasks (`whole`).
    """
    anchor, sweep, readout = (frames[name] for name in ("anchor", "sweep", "readout"))
    learned = sweep[(sweep.localizer == LEARNED) & (sweep.variant == GRAFTED)].sort_values("sparsity", kind="stable")
    regions = readout[(readout.readout != "graft") | (readout.localizer != LEARNED)]
    pairs = zip(regions.readout, regions.localizer, strict=True)
    published = pd.Series([f"{way} {localizer}" for way, localizer in pairs], regions.index, dtype=object)
    all_biases = (published == f"retrain {BIAS}") & regions.sparsity.isin([*bitfit(readout).sparsity.unique()])
    names = pd.Series(_sized(published, regions.sparsity), regions.index, dtype=object).mask(all_biases, "BitFit")
    parts = [anchor[anchor.variant == name].assign(group="end", method=name, published=name) for name in ENDS]
    parts += [
        learned.assign(group="graft", method=_sized(["graft"] * len(learned), learned.sparsity)),
        regions.assign(group="region", method=names, published=published.mask(all_biases, "BitFit")),
        frames["peft"].assign(group="peft", published=frames["peft"].method),
    ]
    rows = pd.concat(parts, ignore_index=True)
    rows = rows[rows["where"] != "train"]
    order = {task: place for place, task in enumerate(anchor.task.unique())}
    rows = rows.sort_values(["task", "test_set"], key=lambda names: names.map(order), kind="stable")
    every = rows[rows["where"] == "id"].groupby("method").task.nunique() == len(order)
    return rows.assign(
        parameters=rows.trained.fillna(rows.selected),
        published=rows.published.fillna(rows.method),
        shown=(rows.group != "graft") | (rows.sparsity == _region_size(frames)),
        whole=rows.method.map(every),
    )


def _sized(names: Iterable[str], sizes: Iterable[float]) -> list[str]:
    return [f"{name} of {small_percent(size)}" for name, size in zip(names, sizes, strict=True)]


def _published(frames: Frames) -> pd.DataFrame:
    """paper.csv by our names of models, regions trained alone whatever their size; averages of its tasks alone."""
    paper, ours = frames["paper"], frames["models"][["method", "published"]].drop_duplicates()
    tasks = {*frames["anchor"].task}
    alike = paper.groupby("place").task.agg(lambda names: {*names} - {"average"} == tasks)
    paper = paper[(paper.task != "average") | paper.place.map(alike)]
    named = paper.rename(columns={"method": "published"}).merge(ours, how="left", on="published")
    return named.assign(where=np.where(named.task == named.test_set, "id", "ood"))


def _pruned(frames: Frames) -> pd.DataFrame:
    """Models with all but a region set to 0, beside the smallest learned graft of the same cell."""
    own = _tested(frames["sweep"], localizer=LEARNED, sparsity=_smallest(frames), variant=GRAFTED)
    return _tested(frames["anchor"], variant=PRUNED).join(own.set_index(CELL).score.rename("graft"), on=CELL)


def gaps(frames: Frames) -> pd.DataFrame:
    """Accuracy on training rows less that on test rows, by cell; for what ran with training rows."""
    anchor, readout = frames["anchor"], frames["readout"]
    regions = readout[(readout.localizer == LEARNED) & readout.readout.isin(["graft", "retrain"])]
    rows = pd.concat([anchor[anchor.variant.isin([*ENDS])].assign(readout=lambda part: part.variant), regions])
    means = rows.groupby(["readout", *CELL, "where"], sort=False).accuracy.mean().unstack()
    means = means.reindex(columns=["id", "train"])
    return (means.train - means.id).rename("gap").dropna().reset_index().rename(columns={"readout": "model"})


def saturation(frames: Frames, least: float) -> pd.DataFrame:
    """By cell the share of the steps until the largest `graft` and the `model` first have 95 % of their best gain.

    Of a score most is the pretrained model's, so what gains less would have reached its share of it earlier.  Cells in
    which either never gains `least` are left out.
    """
    start = _tested(frames["anchor"], variant=PRETRAINED).set_index(CELL).score.rename("start")
    rows = _tested(frames["trajectory"]).join(start, on=CELL)
    rows = rows.assign(gain=rows.score - rows.start)
    last, steps = rows.groupby(CELL)["step"].max(), {}
    largest = (rows.variant == GRAFTED) & (rows.sparsity == rows.sparsity.max())
    for name, part in {"graft": rows[largest], "model": rows[rows.variant == "checkpoint"]}.items():
        best = part.groupby(CELL)["gain"].transform("max")
        enough = part[gained(0.0, best, least) & (part.gain >= SATURATED * best - ROUNDING)]
        steps[name] = enough.groupby(CELL)["step"].min() / last
    return pd.DataFrame(steps).dropna().rename_axis(CELL).reset_index()


def fish_overlaps(frames: Frames) -> pd.DataFrame:
    """Overlap of learned regions and FISH masks; `end` marks outer sizes."""
    rows = frames["localizer_overlap"]
    rows = rows[rows["first"].isin([LEARNED, FISH]) & rows["second"].isin([LEARNED, FISH])]
    rows = rows.sort_values("sparsity", kind="stable")
    outer = [rows.sparsity == rows.sparsity.min(), rows.sparsity == rows.sparsity.max()]
    return rows.assign(end=np.select(outer, ["smallest", "largest"], ""))


def region_overlaps(frames: Frames) -> pd.DataFrame:
    """How much of a task's learned region lies in another's, and in their own of other seeds (`own`, mean of both; undefined for one seed)."""
    among, between = (frames[f"{axis}_overlap"].query("localizer == @LEARNED") for axis in ("seed", "task"))
    own = among.groupby(["sparsity", "task"]).overlap.mean()
    places = (pd.MultiIndex.from_frame(between[["sparsity", side]]) for side in ("first", "second"))
    first, second = (own.reindex(place).to_numpy() for place in places)
    return between.assign(own=(first + second) / 2)


def places(frames: Frames) -> pd.DataFrame:
    """Share of the learned masks, at the size nearest the paper's, in each layer and kind of module, and by chance.

    Views: `layer`, `kind`, `middle` (the middle third of the layers; undefined where no layer lies in it) and `skilled`
    (the kinds that the paper names).
    """
    frame = frames["composition"]
    frame = frame[frame.localizer == LEARNED]
    frame = frame[frame.sparsity == nearest(frame.sparsity)]
    layers = frame[frame.layer != OUTSIDE]
    count = layers.layer.max()
    middle = (2 * layers.layer - 1 - count).abs() < count / 3
    names = frame.layer.map(lambda layer: "outside" if layer == OUTSIDE else f"layer {layer}")
    kinds = frame.sort_values("kind", key=lambda names: names.map(KINDS.index), kind="stable")
    views = {
        "layer": frame.assign(place=names),
        "kind": kinds.assign(place=kinds.kind.replace(BIASES, "biases")),  # `bias` is a localizer
        "middle": layers.assign(place="middle", share=layers.share.where(middle), chance=layers.chance.where(middle)),
        "skilled": frame[frame.kind.isin(SKILLED)].assign(place="skilled"),
    }
    rows = pd.concat([part.assign(view=view) for view, part in views.items()])
    sums = rows.groupby(["view", "localizer", "sparsity", *CELL, "place"], sort=False)[["share", "chance"]]
    return sums.sum(min_count=1).reset_index()


def _shares(rows: pd.DataFrame) -> pd.DataFrame:
    """The same in one column `share`, by `mask`: the localizer's, and chance."""
    chance = rows.assign(mask="chance", share=rows.chance)
    return pd.concat([rows.assign(mask=rows.localizer + " mask"), chance], ignore_index=True)


def bounds(frames: Frames) -> pd.DataFrame:
    """Theorems D.2 and D.4 for graft and retrained region of each task with readouts measured on training rows too.

    Errors are means over seeds; `bound` is of this region alone (Theta_n = 1), `any` of whichever region.
    """
    anchor, errors, lines = frames["anchor"], _errors(frames), []
    best = 1 - _tested(anchor, variant=FINETUNED).groupby("task").accuracy.mean()
    for task in errors.task.unique():
        parts = {name: errors[(errors.task == task) & (errors.readout == name)] for name in ("graft", "retrain")}
        if all(map(len, parts.values())):
            bias = bound.lacking(parts["retrain"].test.mean(), best[task]) if task in best else None
            short = {"graft": bound.lacking(*(part.train.mean() for part in parts.values())), "retrain": 0.0}
            # two models stand in the graft's theorem
            delta = {"graft": DELTA / 2, "retrain": DELTA}
            for name, part in parts.items():
                lines.append({"task": task, "model": name, **_bound(part, delta[name], short[name], bias)})
    return pd.DataFrame(lines, columns=BOUND)


BOUND = [
    "task", "model", "cells", "train", "test", "selected", "examples", "variance", "eps_2", "bias", "bound", "any",
]  # fmt: skip


def _errors(frames: Frames) -> pd.DataFrame:
    """Train and test error, s, training rows and graftable parameters of each cell that has both errors."""
    rows, cell = frames["readout"], ["readout", *CELL]
    rows = rows[(rows.localizer == LEARNED) & (rows.sparsity == _region_size(frames))]
    train = _tested(rows.assign(train=1 - rows.accuracy), "train").set_index(cell)
    test = _tested(rows.assign(test=1 - rows.accuracy)).set_index(cell)
    return train[["train", "selected", "n", "graftable"]].join(test.test).dropna().reset_index()


def _bound(errors: pd.DataFrame, delta: float, short: float, bias: float | None) -> dict[str, Any]:
    # the largest mask and the smallest training set of the seeds, so that the bound covers each of them
    selected, examples = int(errors.selected.max()), int(errors.n.min())
    regions = bound.log_all_regions(selected, int(errors.graftable.max()))
    fixed, free = bound.log_models(selected), bound.log_models(selected, regions)
    variance, of_any = (bound.variance_term(models, examples, delta) for models in (fixed, free))
    return {
        "cells": len(errors), "train": errors.train.mean(), "test": errors.test.mean(), "selected": selected,
        "examples": examples, "variance": variance, "eps_2": short, "bias": bias,
        "bound": variance + short + (bias or 0.0), "any": of_any + short + (bias or 0.0),
    }  # fmt: skip


# --- Data of figures -----------------------------------------------------------------------------------------------


def _curves(frames: Frames) -> pd.DataFrame:
    """Learned grafts, grafts of biases, and regions with all else set to 0, by `curve`; `region`: their size in %."""
    rows, readout = frames["grafts"], frames["readout"]
    alone = readout[(readout.readout == "prune") & (readout.localizer == LEARNED)]
    pruned = frames["pruned"]
    parts = {
        "learned graft": rows[rows.localizer == LEARNED],
        "graft of biases": rows[rows.localizer == BIAS],
        "learned mask, rest set to 0": alone.assign(region=100 * _selected_share(alone, ["sparsity"])),
        "movement mask, rest set to 0": pruned.assign(region=100 * pruned.sparsity),
    }
    return _tested(pd.concat([part.assign(curve=curve) for curve, part in parts.items()], ignore_index=True))


def _course(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows along fine-tuning by `curve`: the model and its grafts."""
    names = ["checkpoint" if np.isnan(size) else f"graft of {small_percent(size)}" for size in rows.sparsity]
    order = rows.assign(curve=names, size=rows.sparsity.fillna(-1.0))
    return _tested(order).sort_values("size", kind="stable")


def _ways(rows: pd.DataFrame) -> pd.DataFrame:
    """Grafts of each way to fine-tune; at 100 % the fine-tuned model itself."""
    rows = _tested(rows[rows.variant.isin([GRAFTED, FINETUNED])])
    return rows.assign(region=100 * rows.sparsity.where(rows.variant == GRAFTED, 1.0))


def compressed(frames: Frames) -> pd.DataFrame:
    """Forms of the task vector by `budget`, beside the pretrained model, which takes no bytes, and the whole task vector in float32.

    `least`: the smallest budget.
    """
    rows, ends = _tested(frames["compression"]), _tested(frames["anchor"])
    ends = ends[ends.variant.isin([*ENDS]) & ends.task.isin(rows.task)]
    size = 4 * ends.graftable * ends.variant.map(ENDS).astype(float)
    ends = ends.assign(bytes=size, used=size, explained=ends.variant.map(ENDS).astype(float))
    learned = rows[rows.variant == LEARNED].set_index([*CELL, "bytes"]).retained.rename(LEARNED)
    less = (rows.retained - rows.join(learned, on=[*CELL, "bytes"])[LEARNED]).where(rows.variant != LEARNED)
    rows = rows.assign(least=rows.bytes == rows.bytes.min(), less_learned=less)
    rows = pd.concat([rows, ends.assign(least=False)], ignore_index=True).sort_values("bytes", kind="stable")
    return rows.assign(kilobytes=rows.bytes / 1000, budget=(rows.bytes / 1000).map("{:,g} kB".format))


def _tradeoff(frames: Frames) -> pd.DataFrame:
    """Scores on the own and on other test sets, columns id and ood, by `model` and the `point` along its line, of tasks that all have."""
    sweep, wise = frames["sweep"], frames["wise"]
    own = sweep[(sweep.localizer == LEARNED) & (sweep.variant == GRAFTED)]
    parts = [own.assign(model="graft by size", point=own.sparsity)]
    for variant, name in ((WISE_FT, "WiSE-FT"), (WISE_GRAFT, "WiSE-graft")):
        parts.append(wise[wise.variant == variant].assign(model=name, point=wise.alpha))
    rest = frames["models"].query("group in ['peft', 'end']")
    rows = pd.concat([*parts, rest.assign(model=rest.method, point=0.0)], ignore_index=True)
    means = rows.groupby(["model", *CELL, "point", "where"], sort=False).score.mean().unstack()
    tested = means.reindex(columns=["id", "ood"]).dropna().reset_index()
    of_all = tested[tested.groupby("task").model.transform("nunique") == tested.model.nunique()]
    return of_all.assign(smallest=(of_all.model == "graft by size") & (of_all.point == own.sparsity.min()))


# --- Values of notes, titles and claims ----------------------------------------------------------------------------


def _facts(frames: Frames, least: float) -> dict[str, str]:
    """Texts by name, empty where there is nothing to say."""
    sizes = {
        "smallest": _smallest(frames), "region_size": _region_size(frames),
        "mask_size": nearest(frames["places"].sparsity), "smallest_overlap": frames["fish"].sparsity.min(),
        "largest_size": max(common_sizes(frames["sweep"]), default=None), "largest_overlap": frames["fish"].sparsity.max(),
        "trajectory_size": frames["trajectory"].sparsity.max(),
    }  # fmt: skip
    texts = {name: "" if size is None or pd.isna(size) else small_percent(size) for name, size in sizes.items()}
    off = ", ".join(stage for stage in AXES if frames[stage].empty)
    return texts | {
        "off": off, "left_out": left_out(_tested(frames["anchor"], variant=FINETUNED).gain, least), "middle": _no_middle(frames),
        "shifts": shifts_in_words(_tested(frames["grafts"], "ood")), "search": search_in_words(frames["run"]),
        "few_compressed": _few(frames["compression"].task.nunique()),
    }  # fmt: skip


def _few(tasks: int) -> str:
    """That there is no interval over so few tasks; empty of more, and of none."""
    return (
        f"{counted(tasks, 'task')}, fewer than {FEWEST}, allow no interval and no verdict" if 0 < tasks < FEWEST else ""
    )


def _no_middle(frames: Frames) -> str:
    middle, layers = frames["places"].query("view == 'middle'"), frames["composition"].layer
    if middle.share.notna().any():
        return ""
    count = layers[layers != OUTSIDE].nunique()
    return f"not measurable with {counted(count, 'layer')}, of which none is in the middle third"


@stage
def main(params: Settings) -> None:
    """Write the report from the records of all cells that params.yaml names."""
    publish("study", collect(params))
