"""What the study wants to know of mask files: which region indices, and in which layers and modules.

Reads what `stages.lib.graft.mask_file` wrote, without the seconds that torch takes to load.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from stages.lib.errors import MaskError
from stages.lib.metrics.composition import composition
from stages.lib.metrics.overlap import asymmetric_overlap, chance_asymmetric_overlap, chance_iou, iou
from stages.study.report.records import AXES, Cell, mask_path

OUTSIDE = -1


@dataclass(frozen=True)
class MaskIndices:
    """Shapes of the region's tensors, in its order, and the flat indices selected in each."""

    shapes: dict[str, tuple[int, ...]]
    indices: dict[str, np.ndarray]

    @property
    def graftable(self) -> int:
        """Number of parameters of the region."""
        return sum(map(prod, self.shapes.values()))

    def region_indices(self) -> np.ndarray:
        """Sorted indices over all tensors laid end to end, int64."""
        starts = dict(zip(self.shapes, [0, *accumulate(map(prod, self.shapes.values()))], strict=False))
        parts = [self.indices[name].astype(np.int64) + starts[name] for name in self.shapes if name in self.indices]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def read_indices(path: Path) -> MaskIndices:
    """Indices and shapes of a mask file; raises MaskError if it is damaged."""
    try:
        with safe_open(path, framework="np") as file:
            header = json.loads(file.metadata()["graft"])
            names = [key for key in file.keys() if key.startswith("indices/")]  # noqa: SIM118 - not a dict
            indices = {key.removeprefix("indices/"): file.get_tensor(key) for key in names}
        return MaskIndices({name: tuple(shape) for name, shape in header["shapes"].items()}, indices)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise MaskError(f"{path}: not a mask file, or damaged: {error!r}") from error


def composition_rows(root: Path, cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """The rows of `composition` for each cell of the sweep, with its axes; layer is -1 outside the layers."""
    rows = []
    for cell in cells:
        mask = read_indices(mask_path(root, cell))
        counts = {name: len(indices) for name, indices in mask.indices.items()}
        axes = dict(zip(AXES["sweep"], cell, strict=True))
        for row in composition(counts, mask.shapes):
            rows.append({**axes, **row, "layer": OUTSIDE if row["layer"] is None else row["layer"]})
    return rows


def localizer_overlaps(root: Path, cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """IoU of the masks of any two localizers, at the same sparsity, seed and task, beside what chance gives."""
    rows = []
    for (sparsity, seed, task), names in _together(cells, keep=(1, 2, 3), vary=0).items():
        masks = {name: read_indices(mask_path(root, (name, sparsity, seed, task))) for name in names}
        found = {name: mask.region_indices() for name, mask in masks.items()}
        for number, first in enumerate(names):
            for second in names[number + 1 :]:
                axes = {"sparsity": sparsity, "seed": seed, "task": task, "first": first, "second": second}
                sizes = len(found[first]), len(found[second]), masks[first].graftable
                rows.append({**axes, "iou": iou(found[first], found[second]), "chance": chance_iou(*sizes)})
    return rows


def task_overlaps(root: Path, cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """Share of the second task's mask that lies in the first's, same localizer, sparsity and seed, beside chance."""
    rows = []
    for (localizer, sparsity, seed), tasks in _together(cells, keep=(0, 1, 2), vary=3).items():
        masks = {task: read_indices(mask_path(root, (localizer, sparsity, seed, task))) for task in tasks}
        found = {task: mask.region_indices() for task, mask in masks.items()}
        for first in tasks:
            for second in tasks:
                if first != second:
                    axes = {
                        "localizer": localizer,
                        "sparsity": sparsity,
                        "seed": seed,
                        "first": first,
                        "second": second,
                    }
                    share = asymmetric_overlap(found[first], found[second])
                    sizes = len(found[first]), len(found[second]), masks[first].graftable
                    rows.append({**axes, "overlap": share, "chance": chance_asymmetric_overlap(*sizes)})
    return rows


def _together(cells: Iterable[Cell], keep: tuple[int, ...], vary: int) -> dict[tuple, list[Any]]:
    groups: dict[tuple, list[Any]] = {}
    for cell in cells:
        groups.setdefault(tuple(cell[number] for number in keep), []).append(cell[vary])
    return groups
