"""The records of surgical fine-tuning, and the learned masks of the same cells, as tidy frames."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from stages.lib.errors import DataError
from stages.lib.graft.mask_file import read_mask
from stages.lib.metrics.composition import composition
from stages.lib.metrics.gain import gained
from stages.lib.metrics.overlap import kendall, spearman
from stages.lib.report.load import Cell, Records, Row, frame_of, grid, require_files
from stages.lib.settings import Params
from stages.surgical.experiment.selections import parse
from stages.surgical.settings import SurgeryParams, SurgicalParams

CELL = ["task", "seed"]
LAYER = [*CELL, "layer"]
FIM = [*CELL, "target", "examples", "used", "head", "aggregation", "layer", "score"]
SURGERY = [
    "selection", "kind", "size", *CELL, "draw", "layers", "trained", "model_parameters", "n", "accuracy",
    "score", "majority", "constant", "loss", "peak_learning_rate",
]  # fmt: skip
ROBUSTNESS = [*CELL, "step", "layer", "score", "moved", "start", "dev_accuracy"]
CHECKPOINTS = [*CELL, "step", "spearman", "kendall", "dev_accuracy", "moved"]
REGIONS = [*LAYER, "share", "chance"]


@dataclass(frozen=True, eq=False)  # told apart as objects, so that what follows from one can be cached
class Surgical:
    """Frames with one row for each layer (fim, robustness, regions) or each fine-tuning (runs).

    `regions` is where the masks of the main pipeline lie, found by `localizer`: the share of the mask in a layer, and
    the share a random one would have.  `size` is None for the selections `all` and `none`.
    """

    surgery: SurgeryParams
    limits: SurgicalParams
    localizer: str
    fim: pd.DataFrame
    runs: pd.DataFrame
    robustness: pd.DataFrame
    regions: pd.DataFrame

    @property
    def layers(self) -> int:
        """The number of layers of the model."""
        return int(self.fim.layer.max()) + 1

    def chosen(self, **other: Any) -> pd.Series:
        """(task, seed, layer) -> the score that chose the layers, its mean over heads, or an `other` one.

        Of a cell without so many examples it is the score of the most that were asked for below that, as in surgery.
        """
        wanted = {name: getattr(self.surgery.score, name) for name in ("target", "aggregation", "examples")} | other
        frame = self.fim[self.fim.examples <= wanted.pop("examples")]
        for name, value in wanted.items():
            frame = frame[frame[name] == value]
        frame = frame[frame.examples == frame.groupby(CELL)["examples"].transform("max")]
        return frame.groupby(LAYER, sort=False)["score"].mean()

    @cached_property
    def flagged(self) -> pd.Series:
        """Which fine-tunings are hardly better than always predicting the most frequent label."""
        return ~gained(self.runs.majority, self.runs.accuracy, self.limits.margin)

    @cached_property
    def checkpoints(self) -> pd.DataFrame:
        """Agreement of each ranking during training with that of step 0, and movement relative to the pretrained norm."""
        rows = []
        for (task, seed), cell in self.robustness.groupby(CELL, sort=False):
            start = cell[cell.step == 0].score.tolist()
            for step, now in cell.groupby("step"):
                row = {"task": task, "seed": seed, "step": int(step), "dev_accuracy": now.dev_accuracy.iloc[0]}
                ranks = {measure.__name__: measure(start, now.score.tolist()) for measure in (spearman, kendall)}
                rows.append({**row, **ranks, "moved": float(((now.moved**2).sum() / (now.start**2).sum()) ** 0.5)})
        return frame_of(rows, CHECKPOINTS).astype({"spearman": float, "kendall": float})

    @property
    def plots(self) -> dict[str, pd.DataFrame]:
        """The data behind the figures, their layers counted from 1."""
        runs = self.runs.assign(
            layers=[layer_text(layers).replace(",", "") for layers in self.runs.layers], flagged=self.flagged
        )
        fim, regions = (frame.assign(layer=frame.layer + 1) for frame in (self.fim, self.regions))
        return {"fim": fim, "surgery": runs, "robustness": self.checkpoints, "regions": regions}


def collect(params: Params) -> Surgical:
    """Read the cells that the settings name, and the masks of the scored ones, which graft.localizer found.

    Raises DataError for missing records, and where two selections of different layers were trained alike.
    """
    needs, seeds, scored = ("stage", "rows"), params.seeds, grid(seed=params.seeds, task=params.fim.tasks)
    operated = grid(selection=params.surgery.selections, seed=seeds, task=params.surgery.tasks)
    trained = grid(seed=seeds, task=params.robustness.tasks)
    fims = Records("surgical", "fim", "metrics/fim/{seed}/{task}.json", scored, needs=needs)
    operations = Records("surgical", "surgery", "metrics/surgery/{selection}/{seed}/{task}.json", operated, needs=needs)
    steps = Records("surgical", "robustness", "metrics/robustness/{seed}/{task}.json", trained, needs=needs)
    masks = Records("", "mask", "masks/learned/{seed}/{task}.safetensors", scored, "{task}-{seed}")
    require_files("make surgical", fims, operations, steps, masks)
    runs = operations.rows(_runs)
    require_distinct(runs)
    return Surgical(
        params.surgery, params.surgical, params.graft.localizer,
        frame_of(fims.rows(_layers), FIM),
        frame_of(runs, SURGERY),
        frame_of(steps.rows(_layers), ROBUSTNESS),
        frame_of((row for cell in scored for row in _regions(cell, masks.file(cell))), REGIONS),
    )  # fmt: skip


def _layers(cell: Cell, record: Row) -> Iterator[Row]:
    """A row for each layer, of which every list of a part has an item, layers counted from 0."""
    for part in record["rows"]:
        lists = {name: part[name] for name in ("scores", "moved", "start") if name in part}
        for layer, values in enumerate(zip(*lists.values(), strict=True)):
            yield {**part, **cell, "layer": layer, "score": values[0], **dict(zip(lists, values, strict=True))}


def _runs(cell: Cell, record: Row) -> list[Row]:
    kind, size = parse(cell["selection"])
    more = {**cell, "kind": kind, "size": size, "model_parameters": record["model_parameters"]}
    return [{**row, **more} for row in record["rows"]]


def _regions(cell: Cell, path: Path) -> list[Row]:
    mask = read_mask(path).mask
    places = pd.DataFrame(composition(mask.counts, mask.region.shapes)).dropna(subset="layer")
    return [
        {**cell, "layer": int(layer), **{name: float(rows[name].sum()) for name in ("share", "chance")}}
        for layer, rows in places.groupby("layer")
    ]


def require_distinct(rows: Iterable[Row]) -> None:
    """Raise DataError if different layers of one cell have the same losses at every step and on the test set.

    Then the same parameters were trained, whatever the selections say.
    """
    seen: dict[tuple, list[int]] = {}
    for row in (row for row in rows if row["curve"]):
        losses = tuple(point["train_loss"] for point in row["curve"])
        first = seen.setdefault((row["task"], row["seed"], losses, row["loss"]), row["layers"])
        if first != row["layers"]:
            one, other = map(layer_text, (first, row["layers"]))
            raise DataError(
                f"surgery: training layers {one} and training layers {other} of {row['task']}-{row['seed']} gave the same "
                "loss at every step, so the same parameters were trained; the selection of layers is broken"
            )


def layer_text(layers: list[int]) -> str:
    """Layers for people, counted from 1: "2, 11"."""
    return ", ".join(str(layer + 1) for layer in layers) or "none"
