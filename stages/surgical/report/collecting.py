"""Everything the surgical tables and figures are made of, as tidy frames."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from stages.lib import paths
from stages.lib.errors import DataError
from stages.lib.metrics.composition import composition
from stages.study.report.masks import read_indices
from stages.surgical.report.records import Cell, cells_of, read_all
from stages.surgical.selections import Selection

Records = dict[Cell, dict[str, Any]]
FIM = ["task", "seed", "target", "examples", "used", "head", "aggregation", "layer", "score"]
SURGERY = [
    "selection", "kind", "size", "task", "seed", "draw", "layers", "trained", "model_parameters", "n", "accuracy",
    "score", "majority", "loss", "peak_learning_rate",
]  # fmt: skip
ROBUSTNESS = ["task", "seed", "step", "layer", "score", "moved", "start", "dev_accuracy"]
# accuracies are quotients, so that a difference of exactly the margin may come out a little smaller
ROUNDING = 1e-9
REGIONS = ["task", "seed", "layer", "share", "chance"]


@dataclass(frozen=True)
class Surgical:
    """Frames with one row for each layer (fim, robustness, regions) or each fine-tuning (surgery).

    `regions` is where the learned masks of the main pipeline lie: the share of the mask in a layer, and
    the share a random one would have.  `size` is None for the selections `all` and `none`.
    """

    settings: Any
    fim: pd.DataFrame
    surgery: pd.DataFrame
    robustness: pd.DataFrame
    regions: pd.DataFrame

    @property
    def layers(self) -> int:
        """How many layers the model has."""
        return int(self.fim.layer.max()) + 1

    def chosen(self, **other: Any) -> pd.Series:
        """(task, seed, layer) -> the score that chose the layers, its mean over heads, or an `other` one.

        Of a cell without so many examples it is the score of the most that were asked for below that, as in surgery.
        """
        score = self.settings.surgery.score
        wanted = {"target": score.target, "aggregation": score.aggregation, "examples": score.examples} | other
        frame = self.fim[self.fim.examples <= wanted.pop("examples")]
        for name, value in wanted.items():
            frame = frame[frame[name] == value]
        frame = frame[frame.examples == frame.groupby(["task", "seed"])["examples"].transform("max")]
        return frame.groupby(["task", "seed", "layer"], sort=False)["score"].mean()

    def flagged(self) -> pd.DataFrame:
        """Fine-tunings that are hardly better than always predicting the most frequent label."""
        above = self.surgery.accuracy - self.surgery.majority
        return self.surgery[above < self.settings.surgical.margin - ROUNDING]

    def learners(self) -> set[tuple] | None:
        """Cells (task, seed) where training all layers is not flagged; None where that was not done."""
        whole = self.surgery[self.surgery.selection == "all"]
        if whole.empty:
            return None
        return {*zip(whole.task, whole.seed, strict=True)} - {
            (row.task, row.seed) for row in self.flagged().itertuples() if row.selection == "all"
        }


def collect(root: Path, params: Any) -> Surgical:
    """Read the cells that params.yaml names, and the learned masks of the scored ones.

    Raises DataError for missing records, and where two selections of different layers were trained alike.
    """
    records = read_all(root, cells_of(params))
    surgery = _surgery_rows(records["surgery"])
    require_distinct(surgery)
    return Surgical(
        params,
        pd.DataFrame(_fim_rows(records["fim"]), columns=FIM),
        pd.DataFrame(surgery, columns=SURGERY),
        pd.DataFrame(_robustness_rows(records["robustness"]), columns=ROBUSTNESS),
        pd.DataFrame(_region_rows(root, records["fim"]), columns=REGIONS),
    )


def require_distinct(rows: Iterable[dict[str, Any]]) -> None:
    """Raise DataError if different layers of one cell have the same losses at every step and on the test set.

    Then the same parameters were trained, whatever the selections say.
    """
    seen: dict[tuple, list[int]] = {}
    for row in rows:
        if not row["curve"]:
            continue
        losses = tuple(point["train_loss"] for point in row["curve"])
        first = seen.setdefault((row["task"], row["seed"], losses, row["loss"]), row["layers"])
        if first != row["layers"]:
            cell, (one, other) = f"{row['task']}-{row['seed']}", map(layer_text, (first, row["layers"]))
            raise DataError(
                f"surgery: training layers {one} and training layers {other} of {cell} gave the same loss at "
                "every step, so the same parameters were trained; the selection of layers is broken"
            )


def layer_text(layers: list[int]) -> str:
    """Layers for people, counted from 1: "2, 11"."""
    return ", ".join(str(layer + 1) for layer in layers) or "none"


def _fim_rows(records: Records) -> list[dict[str, Any]]:
    return [
        {**row, "task": task, "seed": seed, "layer": layer, "score": score}
        for (seed, task), record in records.items()
        for row in record["rows"]
        for layer, score in enumerate(row["scores"])
    ]


def _surgery_rows(records: Records) -> list[dict[str, Any]]:
    found = []
    for (selection, seed, task), record in records.items():
        parsed = Selection.parse(selection)
        axes = {"selection": selection, "kind": parsed.kind, "size": parsed.size, "task": task, "seed": seed}
        found += [{**row, **axes, "model_parameters": record["model_parameters"]} for row in record["rows"]]
    return found


def _robustness_rows(records: Records) -> list[dict[str, Any]]:
    return [
        {**row, "task": task, "seed": seed, "layer": layer, "score": score, "moved": moved, "start": start}
        for (seed, task), record in records.items()
        for row in record["rows"]
        for layer, (score, moved, start) in enumerate(zip(row["scores"], row["moved"], row["start"], strict=True))
    ]


def _region_rows(root: Path, cells: Iterable[Cell]) -> list[dict[str, Any]]:
    found = []
    for seed, task in cells:
        path = root / paths.learned(task, seed)
        if not path.exists():
            raise DataError(f"{path}: not there; `dvc repro mask@{task}-{seed}` makes it")
        mask = read_indices(path)
        counts = {name: len(indices) for name, indices in mask.indices.items()}
        places = pd.DataFrame(composition(counts, mask.shapes)).dropna(subset="layer")
        for layer, rows in places.groupby("layer"):
            sums = {name: float(rows[name].sum()) for name in ("share", "chance")}
            found.append({"task": task, "seed": seed, "layer": int(layer), **sums})
    return found
