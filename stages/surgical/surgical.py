"""surgical: the report on layer scores and on fine-tuning of selected layers."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from skill_grafting.grafting.composition import composition
from skill_grafting.grafting.mask_files import read_mask
from skill_grafting.support.formatting import percent
from stages.surgical.rankings import (  # fmt: skip
    CELL,
    LAYER,
    LAYERS_TO_RANK,
    across,
    agreement,
    chosen,
    mask_share_in_top,
    of_heads,
    of_pairs,
    over_training,
)
from stages.surgical.selections import order, parse
from stages.surgical.settings import Settings
from stages.text.scores.gain import gained
from stages.workflow.records import Cell, Records, Row, frame_of, grid, require_files, run_frame
from stages.workflow.report.publish import publish
from stages.workflow.stage.decorator import stage

FIM = [*CELL, "target", "examples", "used", "head", "aggregation", "layer", "score"]
SURGERY = [
    "selection", "kind", "size", *CELL, "draw", "layers", "trained", "model_parameters", "n", "accuracy",
    "score", "majority", "constant", "loss", "peak_learning_rate",
]  # fmt: skip
STEPS = [*CELL, "step", "layer", "score", "moved", "start", "dev_accuracy"]
REGIONS = [*LAYER, "share", "chance"]
WAY = ["target", "aggregation", "examples"]
MARGIN = 0.01  # a run less than this above the share of the most frequent label is flagged


def collect(params: Settings) -> dict[str, pd.DataFrame]:
    """Read the cells that the settings name, and the masks of the scored ones, which graft.localizer found; layers count from 1."""
    seeds, scored = params.seeds, grid(seed=params.seeds, task=params.fim.tasks)
    operated = grid(selection=params.surgery.selections, seed=seeds, task=params.surgery.tasks)
    trained = grid(seed=seeds, task=params.robustness.tasks)
    fims = Records("surgical", "fim", "metrics/fim/{seed}/{task}.json", scored)
    operations = Records("surgical", "surgery", "metrics/surgery/{selection}/{seed}/{task}.json", operated)
    followed = Records("surgical", "robustness", "metrics/robustness/{seed}/{task}.json", trained)
    masks = Records("", "mask", "masks/learned/{seed}/{task}.safetensors", scored, "{task}-{seed}")
    require_files("make surgical", fims, operations, followed, masks)
    surgery = operations.table(_runs, SURGERY)
    fim, steps = fims.table(_layers, FIM), followed.table(_layers, STEPS)
    regions = frame_of((row for cell in scored for row in _regions(cell, masks.file(cell))), REGIONS)
    score = {name: getattr(params.surgery.score, name) for name in WAY}
    return {
        "fim": fim,
        "surgery": surgery.assign(
            layers=[" ".join(str(layer + 1) for layer in layers) or "none" for layers in surgery.layers],
            flagged=~gained(surgery.majority, surgery.accuracy, MARGIN),
        ),
        "robustness": over_training(steps),
        "regions": regions,
        "run": run_frame(params).assign(tasks=len(params.fim.tasks), localizer=params.graft.localizer, **score),
    }


def _layers(_: Cell, record: Row) -> Iterator[Row]:
    """A row for each layer, of which every list of a part has an item."""
    for part in record["rows"]:
        lists = {name: part[name] for name in ("scores", "moved", "start") if name in part}
        for layer, values in enumerate(zip(*lists.values(), strict=True), start=1):
            yield {**part, "layer": layer, "score": values[0], **dict(zip(lists, values, strict=True))}


def _runs(cell: Cell, record: Row) -> list[Row]:
    kind, size = parse(cell["selection"])
    more = {"kind": kind, "size": size, "model_parameters": record["model_parameters"]}
    return [{**row, **more} for row in record["rows"]]


def _regions(cell: Cell, path: Path) -> list[Row]:
    mask = read_mask(path).mask
    places = pd.DataFrame(composition(mask.counts, mask.region.shapes)).dropna(subset="layer")
    return [
        {**cell, "layer": int(layer) + 1, **{name: float(rows[name].sum()) for name in ("share", "chance")}}
        for layer, rows in places.groupby("layer")
    ]


# --- Derived columns ------------------------------------------------------------------------------------------------


def derive(frames: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The frames with every quantity that report.yaml names as a column."""
    [run], fim, regions = frames["run"].to_dict("records"), frames["fim"], frames["regions"]
    way, layers = {name: run[name] for name in WAY}, int(fim.layer.max())
    scores, runs, steps = chosen(fim, **way), frames["surgery"], frames["robustness"].assign(layers=layers)
    tasks, seeds = across(scores)
    sizes = sorted({*runs[runs.kind == "top"]["size"].dropna().astype(int)})
    half = max((size for size in sizes if size <= layers / 2), default=0)
    inside = mask_share_in_top(scores, regions, sizes or [1])
    ended, cells = ends(steps), selected(runs, half)
    return frames | {
        "ranked": ranked(scores),
        "shares": _shares(scores, regions),
        "pairs": of_pairs(tasks, seeds),
        "of_tasks": tasks.reset_index(),
        "of_seeds": seeds.reset_index(),
        "of_heads": of_heads(fim, **way),
        "ways": _ways(fim, scores),
        "selected": cells,
        "robustness": steps,
        "ends": ended,
        "inside": inside.assign(best=inside["size"].map(best_layers)),
        "facts": _facts(runs, cells[cells.half], ended, layers),
    }


def best_layers(size: int) -> str:
    """The selection of so many layers, in words."""
    return "the layer with the highest score" if size == 1 else f"the {size} layers with the highest scores"


def ranked(scores: pd.Series) -> pd.DataFrame:
    """Layers in the order of their scores, task by task, and the share of the first in their sum."""
    rows = []
    for task, part in scores.groupby("task", sort=False):
        by_layer = part.unstack("layer")
        means = by_layer.mean()
        layers = " ".join(str(means.index[place]) for place in order([*means]))
        rows.append([task, len(by_layer), layers, means.max() / means.sum()])
    return pd.DataFrame(rows, columns=["task", "n", "layers", "first"])


def _shares(scores: pd.Series, regions: pd.DataFrame) -> pd.DataFrame:
    """Share of each layer in the scores, in the graft and in a random mask."""
    score = (scores / scores.groupby(level=CELL).transform("sum")).rename("share").reset_index()
    by = {"FIM score": score, "graft": regions, "chance": regions.assign(share=regions.chance)}
    return pd.concat([frame.assign(of=name) for name, frame in by.items()], ignore_index=True)


def _ways(fim: pd.DataFrame, scores: pd.Series) -> pd.DataFrame:
    """Agreement of every way to score with the ranking that chooses, a row for each cell."""
    parts = []
    for way in fim[WAY].drop_duplicates().to_dict("records"):
        ranks = agreement(chosen(fim, **way), scores).rename("spearman")
        parts.append(ranks.reset_index().assign(**way))
    return pd.concat(parts, ignore_index=True)


def selected(runs: pd.DataFrame, half: int) -> pd.DataFrame:
    """A row for each selection, task and seed, the mean over draws: scores, and the share kept of the score of all layers."""
    weak = runs.assign(flagged=runs.flagged.astype(float), runs=1, share=runs.trained / runs.model_parameters)
    means = {name: (name, "mean") for name in ("score", "accuracy", "constant", "share")}
    kept = {name: (name, "first") for name in ("kind", "size")} | {name: (name, "sum") for name in ("flagged", "runs")}
    found = weak.groupby(["selection", *CELL], sort=False).agg(**means, **kept).reset_index()
    ends = {name: found[found.selection == name].set_index(CELL).score for name in ("all", "none")}
    scores = {name: found.set_index(CELL).index.map(values) for name, values in ends.items()}
    sized = found["size"].notna()
    random = found[found.kind == "random"].set_index([*CELL, "size"]).score.rename("random")
    less_random = found.score - found.join(random, on=[*CELL, "size"]).random
    return found.assign(
        kept=found.score / np.where(scores["all"] > 0, scores["all"], np.nan),
        above=found.score - np.fmax(scores["none"], found.constant),
        less_all=(found.score - scores["all"]).where(found.selection != "all"),
        less_random=less_random.where(found.kind != "random"),
        best=found["size"].where(sized, 0).astype(int).map(best_layers).where(sized),
        half=found["size"] == half,
    )


def ends(steps: pd.DataFrame) -> pd.DataFrame:
    """Of each cell the lowest agreement with the ranking before training, what it is at the end, and what dev gained."""
    later = steps[steps.step > 0].dropna(subset="spearman")
    last = later[later.step == later.groupby("task")["step"].transform("max")].set_index(CELL)
    dev = steps.sort_values("step").groupby(CELL).dev_accuracy.agg(["first", "last"])
    lowest = later.groupby(CELL, sort=False).spearman.min().rename("lowest").to_frame()
    return lowest.assign(last=last.spearman, moved=last.moved, learned=dev["last"] - dev["first"]).reset_index()


def _facts(runs: pd.DataFrame, half: pd.DataFrame, ended: pd.DataFrame, layers: int) -> pd.DataFrame:
    """Values that the report names: what half the layers keep, runs that learned nothing, and whether layers can be ranked."""
    weak = [
        f"{rows.flagged.sum()} of {len(rows)} of {task} ({percent(rows.majority.mean())} %)"
        for task, rows in runs.groupby("task", sort=False)
    ]
    rivals = {
        "top": "of the full score if chosen for the highest Fisher scores",
        "bottom": "if for the lowest",
        "random": "if at random",
    }
    shares = {
        kind: half[half.kind == kind].groupby("task").kept.mean().mean() for kind in rivals if kind in {*half.kind}
    }
    few = f"not measurable with {layers} layer{'s' * (layers > 1)}, of which there are too few rankings"
    return pd.DataFrame([{
        "rows": ", ".join(map(str, sorted({*runs.n}))),
        "layers": layers, "half": f"{half['size'].max():.0f}", "weak": ", ".join(weak), "lowest": ended.lowest.min(),
        "kept_by": ", ".join(f"{percent(share)} % {rivals[kind]}" for kind, share in shares.items()),
        "few": few if layers < LAYERS_TO_RANK else "",
    }])  # fmt: skip


@stage
def main(params: Settings) -> None:
    """Write the report from the records of all cells that params.yaml names."""
    publish("surgical", collect(params))
