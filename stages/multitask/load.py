"""Everything the report on multi-task learning is made of, read from the files of its stages."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import permutations, product

import pandas as pd

from stages.lib.graft.mask_indices import read_header, read_indices
from stages.lib.metrics.classification import accuracy
from stages.lib.metrics.gain import gained, relative_gain
from stages.lib.metrics.overlap import asymmetric_overlap, chance_asymmetric_overlap
from stages.lib.metrics.predictions import first_rows, read_predictions
from stages.lib.metrics.variants import FINETUNED, PRETRAINED
from stages.lib.report.load import Cell, Records, Row, frame_of, grid, require_files
from stages.lib.settings import Params
from stages.workflow.core import paths

SINGLE, UNION, PURIFIED = "single", "union", "purified"
MOVEMENT = "movement"
MATRIX = ["paradigm", "localizer", "sparsity"]
LEVELS = ["paradigm", "seed", "task", "n", "pretrained", "single", "joint", "gained"]
REGIONS = [*MATRIX, "seed", "task", "kept"]
GAINS = [*MATRIX, "seed", "kind", "source", "target", "inside", "alike", "n", "selected", "accuracy", "gain"]
OVERLAPS = [*MATRIX, "first", "first_seed", "second", "second_seed", "alike", "overlap", "chance"]


@dataclass(frozen=True, eq=False)  # told apart as objects, so that what follows from one can be cached
class Multitask:
    """Tidy frames; accuracies, overlaps and gains are fractions, a relative gain that is not said is NaN.

    regions: a row for each (matrix, seed, task): `kept`, what dev left of a learned region, learned | movement.
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
    regions: pd.DataFrame
    gains: pd.DataFrame
    overlaps: pd.DataFrame


def are_alike(groups: dict[str, list[str]], first: str, second: str) -> bool:
    """Tells whether some group has both tasks."""
    return any(first in members and second in members for members in groups.values())


def collect(params: Params) -> Multitask:
    """Read the cells that the settings name: `params` has the seeds and the sections multitask, joint, skill and transfer.

    Raises DataError that names each missing file with the `dvc repro` that makes it, or a damaged one;
    MaskError for a damaged mask.
    """
    settings, paradigms = params.multitask, params.joint.paradigms
    sizes = [str(sparsity) for sparsity in params.skill.sparsities]
    cell = {"seed": params.seeds, "task": settings.tasks}
    models = grid(paradigm=paradigms, **cell)
    matrix = grid(paradigm=paradigms, localizer=params.skill.localizers, sparsity=sizes, **cell)
    path = "metrics/level/{paradigm}/{seed}/{task}.json"
    level = Records("multitask", "level", path, models, needs=("rows",))
    reference = Records("", "reference", "metrics/reference/{seed}/{task}.safetensors", models)
    path = "metrics/transfer/{paradigm}/{localizer}/{sparsity}/{seed}/{task}.json"
    transfer = Records("multitask", "transfer", path, matrix, needs=("rows",))
    path = "masks/skill/{paradigm}/{localizer}/{seed}/{sparsity}/{task}.safetensors"
    skill = Records("multitask", "skill", path, matrix, "{paradigm}-{localizer}-{seed}")
    require_files("make multitask", level, reference, transfer, skill)

    levels = frame_of(level.rows(partial(_level_rows, params)), LEVELS)
    ends = levels.set_index(["paradigm", "seed", "task"])[["pretrained", "joint"]]
    sources = {*settings.tasks, *settings.groups, *params.transfer.unions}
    gains = frame_of(transfer.rows(partial(_gain_rows, params, ends, sources)), GAINS)
    return Multitask(
        tasks=settings.tasks,
        seeds=params.seeds,
        groups=settings.groups,
        unions={**settings.groups, **params.transfer.unions},
        least_gain=params.summary.least_gain,
        levels=levels,
        regions=frame_of(_region_rows(skill), REGIONS),
        gains=gains.assign(gain=gains.gain.astype(float)),
        overlaps=frame_of(overlap_rows(skill, settings.groups), OVERLAPS),
    )


def _level_rows(params: Params, cell: Cell, record: Row) -> Iterator[Row]:
    rows = {row["variant"]: row for row in record["rows"]}
    before, after = rows[PRETRAINED]["accuracy"], rows[FINETUNED]["accuracy"]
    # of the main pipeline's fine-tuned model, on the same test rows
    file = paths.predictions("reference", cell["task"], cell["seed"])
    alone = first_rows(read_predictions(file), params.multitask.test_max)
    single = accuracy(alone.logits[cell["task"]][FINETUNED], alone.labels[cell["task"]])
    scores = {"n": rows[FINETUNED]["n"], "pretrained": before, "single": single, "joint": after}
    yield {**cell, **scores, "gained": gained(before, after, params.summary.least_gain)}


def _gain_rows(params: Params, ends: pd.DataFrame, sources: set[str], cell: Cell, record: Row) -> Iterator[Row]:
    task = cell["task"]
    before, after = ends.loc[(cell["paradigm"], cell["seed"], task)]
    for row in (row for row in record["rows"] if row["source"] in sources):
        yield {
            **cell,
            **{name: row[name] for name in ("kind", "source", "n", "selected", "accuracy")},
            "sparsity": float(cell["sparsity"]),
            "target": task,
            "inside": task in row["members"],
            "alike": row["kind"] == SINGLE and are_alike(params.multitask.groups, row["source"], task),
            "gain": relative_gain(row["accuracy"], before, after, params.summary.least_gain),
        }


def _region_rows(masks: Records) -> Iterator[Row]:
    for cell in masks.cells:
        yield {**cell, "sparsity": float(cell["sparsity"]), "kept": read_header(masks.file(cell)).get("kept")}


def overlap_rows(masks: Records, groups: dict[str, list[str]]) -> Iterator[Row]:
    """A row for each ordered pair of regions of a matrix: task by task, and seed by seed."""
    matrix: dict[tuple[str, ...], list[Cell]] = {}
    for cell in masks.cells:
        matrix.setdefault(tuple(cell[name] for name in MATRIX), []).append(cell)
    for (paradigm, localizer, sparsity), cells in matrix.items():
        tasks, seeds = (dict.fromkeys(cell[name] for cell in cells) for name in ("task", "seed"))
        places = [*product(tasks, seeds)]
        files = {(cell["task"], cell["seed"]): masks.file(cell) for cell in cells}
        found = {place: read_indices(files[place]) for place in places}
        for one, other in permutations(places, 2):
            (region, first), (_, second) = found[one], found[other]
            values = [paradigm, localizer, float(sparsity), *one, *other, are_alike(groups, one[0], other[0])]
            values.append(asymmetric_overlap(first, second))
            values.append(chance_asymmetric_overlap(len(first), len(second), region.size))
            yield dict(zip(OVERLAPS, values, strict=True))
