"""Everything the tables and figures of multi-task learning are made of, read from the files of its stages.

The cells are those that params.yaml names: files of other tasks, left by an earlier run, are not looked
at, and a missing one stops the report rather than vanish from a mean.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from stages.lib import paths
from stages.lib.metrics.classification import accuracy
from stages.lib.metrics.overlap import asymmetric_overlap, chance_asymmetric_overlap
from stages.lib.metrics.predictions import first_rows, read_predictions
from stages.lib.metrics.variants import FINETUNED, PRETRAINED
from stages.multitask.gain import gained, relative_gain
from stages.multitask.report.records import level_cells, read_rows_of, require_files, transfer_cells
from stages.study.report.masks import read_indices

SINGLE, UNION, PURIFIED = "single", "union", "purified"
MATRIX = ["paradigm", "localizer", "sparsity"]
LEVELS = ["paradigm", "seed", "task", "n", "pretrained", "single", "joint", "gained"]
GAINS = [*MATRIX, "seed", "kind", "source", "target", "inside", "alike", "n", "selected", "accuracy", "gain"]
OVERLAPS = [*MATRIX, "first", "first_seed", "second", "second_seed", "alike", "overlap", "chance"]


@dataclass(frozen=True)
class Multitask:
    """Tidy frames; accuracies, overlaps and gains are fractions, a relative gain that is not said is NaN.

    levels: a row for each (paradigm, seed, task): accuracy of the pretrained, the single-task and the
    joint model, and whether the joint one gained `least_gain`.
    gains: a row for each (matrix, seed, source, target): `inside` where the target is one of the source's
    tasks, `alike` where a group has both (of single regions only).
    overlaps: a row for each ordered pair of regions of a matrix, also of different seeds.
    """

    tasks: list[str]
    seeds: list[int]
    groups: dict[str, list[str]]
    unions: dict[str, list[str]]
    least_gain: float
    levels: pd.DataFrame
    gains: pd.DataFrame
    overlaps: pd.DataFrame

    @property
    def matrices(self) -> list[tuple[str, str, float]]:
        """(paradigm, localizer, sparsity) of every matrix, in the order of params.yaml."""
        return [*self.gains[MATRIX].drop_duplicates().itertuples(index=False, name=None)]

    def alike(self, first: str, second: str) -> bool:
        """Whether some group has both tasks."""
        return are_alike(self.groups, first, second)


def are_alike(groups: dict[str, list[str]], first: str, second: str) -> bool:
    """Whether some group has both tasks."""
    return any(first in members and second in members for members in groups.values())


def collect(root: Path, params: Any) -> Multitask:
    """Read the cells that the settings name.

    Raises DataError that names each missing file with the `dvc repro` that makes it, or a damaged one;
    MaskError for a damaged mask.
    """
    require_files(root, params)
    settings = params.multitask
    levels = pd.DataFrame(_level_rows(root, params), columns=LEVELS)
    gains = pd.DataFrame(_gain_rows(root, params, levels), columns=GAINS)
    return Multitask(
        tasks=settings.tasks,
        seeds=settings.seeds,
        groups=settings.groups,
        unions={**settings.groups, **params.transfer.unions},
        least_gain=settings.least_gain,
        levels=levels,
        gains=gains.assign(gain=gains.gain.astype(float)),
        overlaps=pd.DataFrame(_overlap_rows(root, params), columns=OVERLAPS),
    )


def _level_rows(root: Path, params: Any) -> Iterator[list[Any]]:
    settings = params.multitask
    for (paradigm, seed), task in product(level_cells(params), settings.tasks):
        rows = {row["variant"]: row for row in read_rows_of(root, "level", (paradigm,), task, seed)}
        before, after = rows[PRETRAINED]["accuracy"], rows[FINETUNED]["accuracy"]
        alone = _single_task_accuracy(root, task, seed, settings.test_max)
        found = gained(before, after, settings.least_gain)
        yield [paradigm, seed, task, rows[FINETUNED]["n"], before, alone, after, found]


def _single_task_accuracy(root: Path, task: str, seed: int, n: int) -> float:
    """Of the main pipeline's fine-tuned model, on the same test rows."""
    predictions = first_rows(read_predictions(root / paths.predictions("reference", task, seed)), n)
    return accuracy(predictions.logits[task][FINETUNED], predictions.labels[task])


def _gain_rows(root: Path, params: Any, levels: pd.DataFrame) -> Iterator[list[Any]]:
    settings = params.multitask
    sources = {*settings.tasks, *settings.groups, *params.transfer.unions}
    ends = levels.set_index(["paradigm", "seed", "task"])[["pretrained", "joint"]]
    for (*axes, seed), task in product(transfer_cells(params), settings.tasks):
        before, after = ends.loc[(axes[0], seed, task)]
        rows = read_rows_of(root, "transfer", tuple(axes), task, seed)
        for row in (row for row in rows if row["source"] in sources):
            gain = relative_gain(row["accuracy"], before, after, settings.least_gain)
            alike = row["kind"] == SINGLE and are_alike(settings.groups, row["source"], task)
            yield [
                *axes[:2], float(axes[2]), seed, row["kind"], row["source"], task, task in row["members"],
                alike, row["n"], row["selected"], row["accuracy"], gain,
            ]  # fmt: skip


def _overlap_rows(root: Path, params: Any) -> Iterator[list[Any]]:
    settings = params.multitask
    matrices = dict.fromkeys(tuple(axes) for *axes, _ in transfer_cells(params))
    for axes in matrices:
        places = [*product(settings.tasks, settings.seeds)]
        masks = {place: read_indices(root / paths.skill_mask(*axes, *place)) for place in places}
        found = {place: mask.region_indices() for place, mask in masks.items()}
        for one, other in product(places, places):
            if one != other:
                share = asymmetric_overlap(found[one], found[other])
                chance = chance_asymmetric_overlap(len(found[one]), len(found[other]), masks[one].graftable)
                alike = are_alike(settings.groups, one[0], other[0])
                yield [axes[0], axes[1], float(axes[2]), *one, *other, alike, share, chance]
