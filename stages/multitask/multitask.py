"""multitask: the report on multi-task learning, with the paper's figures 8 and 11 to 14.

What two kinds of regions do is compared on the same task, since relative gains on different tasks have different scales.
"""

from collections.abc import Iterator
from functools import partial
from itertools import permutations

import pandas as pd

from skill_grafting.support.formatting import percent, small_percent
from stages.multitask.settings import Settings
from stages.text.scores.classification import accuracy
from stages.text.scores.gain import gained, relative_gain
from stages.text.scores.overlap import share_inside
from stages.text.scores.predictions import first_rows, read_predictions
from stages.text.scores.variants import FINETUNED, PRETRAINED
from stages.workflow.records import Cell, Records, Row, compared, frame_of, grid, left_out, require_files, run_frame
from stages.workflow.report.formats import display_name
from stages.workflow.report.publish import publish
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage

SINGLE, UNION, PURIFIED = "single", "union", "purified"
MATRIX = ["paradigm", "localizer", "sparsity"]
LEVELS = ["paradigm", "seed", "task", "n", "pretrained", "single", "joint", "gained"]
GAINS = [*MATRIX, "seed", "kind", "source", "target", "inside", "similar", "n", "selected", "accuracy", "gain"]
OVERLAPS = [*MATRIX, "first", "first_seed", "second", "second_seed", "similar", "overlap", "chance"]


def are_similar(groups: dict[str, list[str]], first: str, second: str) -> bool:
    """True if some group contains both tasks."""
    return any(first in members and second in members for members in groups.values())


def collect(params: Settings) -> dict[str, pd.DataFrame]:
    """Read the cells that the settings name; an undefined relative gain is NaN.

    gain: `inside` where the target is one of the source's tasks, `similar` where a group has both (of single regions only).
    overlap: a row for each ordered pair of regions of a matrix, also of different seeds.
    Raises DataError that names each missing file with the `dvc repro` that makes it, or a damaged one; MaskError for a damaged mask.
    """
    settings, paradigms = params.multitask, params.joint.paradigms
    sizes = [str(sparsity) for sparsity in params.skill.sparsities]
    cell = {"seed": params.seeds, "task": settings.tasks}
    axes = {"paradigm": paradigms, "localizer": params.skill.localizers, "sparsity": sizes}
    models = grid(paradigm=paradigms, **cell)
    level = Records("multitask", "level", "metrics/level/{paradigm}/{seed}/{task}.json", models)
    reference = Records("", "reference", "metrics/reference/{seed}/{task}.safetensors", models)
    path = "metrics/transfer/{paradigm}/{localizer}/{sparsity}/{seed}/{task}.json"
    transfer = Records("multitask", "transfer", path, grid(**axes, **cell))
    path = "masks/skill/{paradigm}/{localizer}/{seed}/{sparsity}/{task}.safetensors"
    regions = grid(**axes, task=settings.tasks, seed=params.seeds)
    skill = Records("multitask", "skill", path, regions, "{paradigm}-{localizer}-{seed}")
    require_files("make multitask", level, reference, transfer, skill)

    levels = level.table(partial(_level_rows, params), LEVELS)
    ends = levels.set_index(["paradigm", "seed", "task"])[["pretrained", "joint"]]
    sources = {*settings.tasks, *settings.groups, *params.transfer.unions}
    gains = transfer.table(partial(_gain_rows, params, ends, sources), GAINS)
    return {
        "level": levels,
        "gain": gains.assign(gain=gains.gain.astype(float)),
        "overlap": frame_of(_overlap_rows(settings.groups, skill), OVERLAPS),
        "groups": frame_of(
            ({"group": name, "task": task} for name, own in settings.groups.items() for task in own), ["group", "task"]
        ),
        "run": run_frame(params).assign(tasks=len(settings.tasks), least_gain=params.summary.least_gain),
    }


def _level_rows(params: Settings, cell: Cell, record: Row) -> Iterator[Row]:
    rows = {row["variant"]: row for row in record["rows"]}
    before, after = rows[PRETRAINED]["accuracy"], rows[FINETUNED]["accuracy"]
    # of the main pipeline's fine-tuned model, on the same test rows
    file = paths.logits("reference", cell["task"], cell["seed"])
    alone = first_rows(read_predictions(file), params.multitask.test_max)
    single = accuracy(alone.logits[cell["task"]][FINETUNED], alone.labels[cell["task"]])
    scores = {"n": rows[FINETUNED]["n"], "pretrained": before, "single": single, "joint": after}
    yield {**scores, "gained": gained(before, after, params.summary.least_gain)}


def _gain_rows(params: Settings, ends: pd.DataFrame, sources: set[str], cell: Cell, record: Row) -> Iterator[Row]:
    task = cell["task"]
    before, after = ends.loc[(cell["paradigm"], cell["seed"], task)]
    for row in (row for row in record["rows"] if row["source"] in sources):
        yield {
            **{name: row[name] for name in ("kind", "source", "n", "selected", "accuracy")},
            "sparsity": float(cell["sparsity"]),
            "target": task,
            "inside": task in row["members"],
            "similar": row["kind"] == SINGLE and are_similar(params.multitask.groups, row["source"], task),
            "gain": relative_gain(row["accuracy"], before, after, params.summary.least_gain),
        }


def _overlap_rows(groups: dict[str, list[str]], masks: Records) -> Iterator[Row]:
    """A row for each ordered pair of regions of a matrix: task by task, and seed by seed."""
    for one, other, found in compared(masks, ["task", "seed"], permutations, share_inside):
        sides = {"first": one["task"], "first_seed": one["seed"], "second": other["task"], "second_seed": other["seed"]}
        similar = are_similar(groups, one["task"], other["task"])
        yield {**one, **sides, **found, "similar": similar, "sparsity": float(one["sparsity"])}


# --- Derived columns ------------------------------------------------------------------------------------------------


def derive(frames: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The frames with every quantity that report.yaml names as a column."""
    [run], levels = frames["run"].to_dict("records"), frames["level"]
    first = levels.paradigm == levels.paradigm.iloc[0]
    levels = levels.assign(gap=levels.joint - levels.single, gained=levels.gained.astype(bool), leading=first)
    gains, overlaps = named(frames["gain"]), named(frames["overlap"]).assign(seed=lambda rows: rows.first_seed)
    effects, pairs = kinds_of_gains(gains), kinds_of_pairs(overlaps)
    about, similar = matrices(gains, effects, levels, run["least_gain"]), similarity(effects, pairs)
    effects, pairs, similar = (rows.merge(about, on="matrix", how="left") for rows in (effects, pairs, similar))
    return frames | {
        "level": levels,
        "levels": levels.melt([*LEVELS[:4]], ["pretrained", "single", "joint"], "model", "accuracy"),
        "gain": gains.assign(told=gains.matrix.map(_gains_told(effects)).fillna("")),
        "effects": effects,
        "pairs": pairs,
        "grid": pairs[pairs.kind.isin(["one model, two tasks", "two seeds, one task"])].sort_values(
            ["first", "second"],
            key=lambda names: names.map({name: place for place, name in enumerate(dict.fromkeys(overlaps["first"]))}),
        ),
        "similarity": similar,
        "facts": _facts(frames["groups"], levels),
    }


def named(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with the matrix of regions in words and as part of file names."""
    keys = [*rows[MATRIX].itertuples(index=False)]
    return rows.assign(
        matrix=[
            f"{display_name(paradigm)}, {display_name(localizer)}, {small_percent(sparsity)}"
            for paradigm, localizer, sparsity in keys
        ],
        file=[f"{paradigm}_{localizer}_{sparsity}" for paradigm, localizer, sparsity in keys],
        leading=[key == keys[0] for key in keys],
    )


def kinds_of_gains(gains: pd.DataFrame) -> pd.DataFrame:
    """Relative gains by kind of region, a row in each kind that it is of; `both`: on tasks that the kind's rival has, too."""
    rows = gains.dropna(subset="gain")
    inside, similar = rows.inside.astype(bool), rows.similar.astype(bool)
    single, union, purified = (rows.kind == name for name in (SINGLE, UNION, PURIFIED))
    kinds = {
        "own region": single & inside, "other regions": single & ~inside,
        "regions of similar tasks": single & ~inside & similar, "regions of other tasks": single & ~inside & ~similar,
        "union, its tasks": union & inside, "union, excluded tasks": union & ~inside,
        "purified, its tasks": purified & inside, "purified, excluded tasks": purified & ~inside,
    }  # fmt: skip
    found = pd.concat([rows[these].assign(region=kind) for kind, these in kinds.items()], ignore_index=True)
    names = [*kinds]
    rivals = dict(zip(names, [names[place ^ 1] for place in range(len(names))], strict=True))
    there = {*found[["matrix", "target", "region"]].itertuples(index=False, name=None)}
    both = [(row.matrix, row.target, rivals[row.region]) in there for row in found.itertuples()]
    return found.assign(both=both)


def kinds_of_pairs(overlaps: pd.DataFrame) -> pd.DataFrame:
    """Overlaps by kind of pair, a row in each kind that it is of."""
    one_model, one_task = overlaps.first_seed == overlaps.second_seed, overlaps["first"] == overlaps["second"]
    similar = overlaps.similar.astype(bool)
    kinds = {
        "one model, two tasks": one_model, "similar tasks": one_model & similar, "dissimilar tasks": one_model & ~similar,
        "two seeds, one task": ~one_model & one_task, "two seeds, two tasks": ~one_model & ~one_task,
    }  # fmt: skip
    return pd.concat([overlaps[these].assign(kind=kind) for kind, these in kinds.items()], ignore_index=True)


def similarity(effects: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """What a task gains from another's region beside how much the two overlap, by ordered pair and seed."""
    gains = effects[effects.region == "other regions"].rename(columns={"source": "first", "target": "second"})
    key = ["matrix", "first", "second", "seed"]
    shared = pairs[pairs.kind == "one model, two tasks"][[*key, "overlap"]]
    return gains[[*key, "file", "gain"]].merge(shared, on=key)


def matrices(gains: pd.DataFrame, effects: pd.DataFrame, levels: pd.DataFrame, least: float) -> pd.DataFrame:
    """A row for each matrix: in how many cells the own region is the best, and what is left out."""
    rows = []
    for matrix, paradigm in dict.fromkeys(zip(gains.matrix, gains.paradigm, strict=True)):
        part = effects[effects.matrix == matrix]
        best = {
            kind: part[part.region == kind].groupby(["target", "seed"]).gain.max()
            for kind in ("own region", "other regions")
        }
        cells = pd.concat(best, axis=1).dropna()
        gained = levels[levels.paradigm == paradigm].gained
        rows.append({
            "matrix": matrix, "best": f"{(cells.iloc[:, 0] > cells.iloc[:, 1]).sum()} of {len(cells)} runs",
            "left_out": left_out(gained.where(gained), least, "the joint model"),
        })  # fmt: skip
    return pd.DataFrame(rows, columns=["matrix", "best", "left_out"])


def _gains_told(effects: pd.DataFrame) -> dict[str, str]:
    """Of each matrix, what tasks gain from their own masks and from all others, means over tasks."""
    by_task = effects.groupby(["matrix", "region", "target"], sort=False).gain.mean()
    kinds = ("own region", "other regions")
    means = by_task.groupby(level=[0, 1], sort=False).mean().unstack().reindex(columns=[*kinds])
    shares = means.map(lambda share: percent(None if pd.isna(share) else share, 0))
    rows = shares.itertuples(name=None)
    return {
        matrix: f"A task's own mask recovers {own} % of the joint model's gain, other tasks' masks {others} % ({matrix})"
        for matrix, own, others in rows
    }


def _facts(groups: pd.DataFrame, levels: pd.DataFrame) -> pd.DataFrame:
    """Groups of similar tasks, test rows by task, and joint models."""
    similar = [
        f"similar tasks of the group {name}: {', '.join(own.task)}" for name, own in groups.groupby("group", sort=False)
    ]
    return pd.DataFrame([{
        "similar": "; ".join(similar),
        "rows": ", ".join(f"{task} {n}" for task, n in levels.groupby("task", sort=False).n.min().items()),
        "names": ", ".join(dict.fromkeys(levels.task)),
        "models": len(levels[["paradigm", "seed"]].drop_duplicates()),
    }])  # fmt: skip


@stage
def main(params: Settings) -> None:
    """Write the report from the records of all cells that params.yaml names."""
    publish("multitask", collect(params))
