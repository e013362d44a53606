"""merge: the report on models of several tasks, by merging method."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd

from skill_grafting.support.formatting import small_percent
from stages.merge.settings import LOCALIZED, MERGED, MOVED, Settings, read_localized
from stages.text.scores.variants import FINETUNED, GRAFTED, PRETRAINED
from stages.workflow.records import (
    Cell,
    Records,
    Row,
    add_gain,
    exact,
    grid,
    left_out,
    require_files,
    run_frame,
    scores_of_ends,
)
from stages.workflow.report.formats import counts, display_name
from stages.workflow.report.publish import publish
from stages.workflow.stage.decorator import stage

STITCHED = "stitch_mean"
SINGLES = {
    PRETRAINED: "pretrained",
    GRAFTED: "own graft of each task",
    FINETUNED: "own fine-tuned model of each task",
}
CELL = ["group", "seed", "task"]
# a search that puts more than so many budgets into its mask has not looked for one of that size
MANY = 10
COLUMNS = {
    "scores": ["group", "method", "seed", "task", "n", "score", "accuracy", "ece", "retained", "gain", "single", "own", "constant"],
    "models": ["group", "method", "seed", "kind", "alpha", "bytes", "head_bytes", "single_bytes"],
    "dev": ["group", "method", "seed", "alpha", "normalised"],
    "collisions": ["group", "seed", "tasks", "graftable", "union", "colliding", "opposed", "chance_union", "chance_colliding"],
    "searches": ["group", "method", "seed", "task", "rate", "start", "end", "crossed", "k", "graft_loss", "chosen", "score", "moved"],
}  # fmt: skip


def collect(params: Settings) -> dict[str, pd.DataFrame]:
    """Read the records of the cells that the settings name; raises DataError that names each missing one and the command that makes it.

    scores: the single-task models are methods too; `single` is the score of the task's own model of the same kind, `own` is
    score / single, `retained` score / fine-tuned score, and `gain` the relative gain.  models: `kind` is the single-task model
    that a merged one is made of.  dev: its curve of alphas.  collisions: a row for each group and seed that has grafts.
    searches: a row for each step size of a mask that was looked for, with the scores of the chosen graft and of that of equal size of
    what moved most.
    """
    cells = grid(method=params.combination.methods, group=params.merge.groups, seed=params.seeds)
    records = Records("merge", "combination", "metrics/combination/{method}/{seed}/{group}.json", cells)
    require_files("make merge", records)
    frames = {name: records.table(partial(_rows, name), COLUMNS[name]) for name in COLUMNS}
    # what all methods of a group and seed have in common is taken from the first
    for name, once in (("scores", ["group", "method", "seed", "task"]), ("collisions", ["group", "seed"])):
        frames[name] = frames[name].drop_duplicates(once, ignore_index=True)
    scores = frames["scores"].astype({"retained": float})  # null where the fine-tuned model scores 0
    ends = scores_of_ends(scores.assign(variant=scores.method), CELL)
    least = params.summary.least_gain
    return frames | {"scores": add_gain(scores, ends, least), "run": run_frame(params).assign(least_gain=least)}


def _rows(frame: str, _: Cell, record: Row) -> Iterator[Row]:
    """The rows that one record has in a frame."""
    if frame == "scores":
        yield from _scores(record)
    elif frame == "dev":
        yield from record.get("dev", [])
    elif frame == "models":
        sizes = {name: record[name] for name in ("bytes", "head_bytes", "kind")}
        singles = sum(record.get("single_bytes", [record["bytes"]] * len(record["tasks"])))
        yield {**sizes, "single_bytes": singles, "alpha": record.get("alpha", np.nan)}
    elif frame == "searches":
        scores = {(row["task"], row["variant"]): row["score"] for row in record["rows"]}
        for task, rows in record.get("searches", {}).items():
            of_task = {"task": task, "score": scores[task, LOCALIZED], "moved": scores[task, MOVED]}
            yield from ({**of_task, **row} for row in rows)
    elif "collisions" in record:
        yield {"tasks": len(record["tasks"]), "graftable": record["graftable"], **record["collisions"]}


def _scores(record: Row) -> Iterator[Row]:
    """Those of the merged model, and of the single ones, which are methods too."""
    scores = {(row["task"], row["variant"]): row for row in record["rows"]}
    single = {task: scores[task, record["kind"]]["score"] for task in record["tasks"]}
    for (task, variant), row in scores.items():
        if variant == MERGED:
            own = row["score"] / single[task] if single[task] else np.nan
            yield {**row, "single": single[task], "own": own}
        elif variant in SINGLES:
            yield {**row, "method": variant}


def derive(frames: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The frames with every quantity that report.yaml names as a column; `model` is the displayed name of a method."""
    models, collisions = frames["models"], frames["collisions"]
    kinds = dict(zip(models.method, models.kind, strict=True))
    labels = {name: _label(name, kinds.get(name)) for name in (*SINGLES, *kinds)}
    scores = _with_baselines(frames["scores"]).assign(
        model=lambda rows: rows.method.map(labels), kind=lambda rows: rows.method.map(kinds)
    )
    return frames | {
        "scores": scores,
        "averaged": _averaged(scores).merge(_kept_bytes(models), how="left", on=["group", "method"]),
        "rivals": _rivals(scores, frames["searches"]),
        "searches": frames["searches"].assign(
            model=frames["searches"].method.map(labels),
            step=frames["searches"].rate.map("{:.0e}".format, na_action="ignore"),
            change=frames["searches"].end - frames["searches"].start,
            budgets=frames["searches"].crossed / frames["searches"].k,
        ),
        "kept": scores[scores.method == STITCHED],
        "collisions": collisions.assign(
            selected=collisions["union"] / collisions.graftable,
            share=collisions.colliding / collisions["union"],
            chance=collisions.chance_colliding / collisions.chance_union,
            opposing=collisions.opposed / collisions.colliding,
        ),
        "facts": _facts(scores, float(frames["run"].least_gain.iloc[0])),
    }


def _label(method: str, kind: str | None) -> str:
    """The displayed name of a method, with what it merges."""
    if localized := read_localized(method):
        name = "Localize-and-Stitch" if localized[0] == "stitch" else display_name(localized[0])
        return f"stitched {name} masks of {small_percent(localized[1])}"
    return SINGLES.get(method) or display_name(method) + (" of whole models" if kind == FINETUNED else "")


def _with_baselines(scores: pd.DataFrame) -> pd.DataFrame:
    """Single-task models first; `above` is how far a score is above the pretrained model's and above always the same label."""
    scores = pd.concat([*(scores[scores.method == name] for name in SINGLES), scores[~scores.method.isin([*SINGLES])]])
    accuracy = exact(scores.accuracy, scores.n)
    scores = scores.assign(accuracy=accuracy, score=accuracy.where(scores.score == scores.accuracy, scores.score))
    start = scores[scores.method == PRETRAINED].groupby(CELL)[["score", "constant"]].mean().max(axis=1)
    scores = scores.merge(start.rename("start"), how="left", on=CELL)
    first = scores.group.eq(scores.group.iloc[0]) if len(scores) else scores.group
    return scores.assign(
        above=scores.score - scores.start,
        first=first,
        of_group=scores.group + ": " if scores.group.nunique() > 1 else "",
        worst=scores.groupby(["group", "method", "seed"]).retained.transform("min"),
    )


def _averaged(scores: pd.DataFrame) -> pd.DataFrame:
    """Scores without the relative ones of tasks that have none under some seed: means are over the same tasks for all seeds."""
    names = ["own", "retained", "gain"]
    by_task = scores.groupby(["group", "method", "task"])
    complete = {name: by_task[name].transform("count") == by_task.seed.transform("count") for name in names}
    return scores.assign(**{name: scores[name].where(complete[name]) for name in names})


def _kept_bytes(models: pd.DataFrame) -> pd.DataFrame:
    """Megabytes to be kept beside the pretrained model, and the alpha of each seed as a text, by group and method."""
    singles = [
        models.assign(method=PRETRAINED, kept=models.head_bytes),
        models.assign(method=models.kind, kept=models.head_bytes + models.single_bytes),
    ]
    merged = models.assign(kept=models.bytes + models.head_bytes)
    sizes = pd.concat([merged, *singles]).groupby(["group", "method"], sort=False).kept.mean() / 1e6
    chosen = models.dropna(subset="alpha").groupby(["group", "method"]).alpha
    alphas = chosen.agg(lambda values: ", ".join(f"{alpha:g}" for alpha in values))
    return pd.DataFrame({"megabytes": sizes, "alphas": alphas}).reset_index()


def _rivals(scores: pd.DataFrame, searches: pd.DataFrame) -> pd.DataFrame:
    """Scores of the stitched mean, `stitched`, beside those of every other merged model, `rival`; `unsound`: why its masks tell nothing."""
    rivals = scores[scores.kind.notna() & (scores.method != STITCHED)].rename(columns={"score": "rival"})
    stitched = scores[scores.method == STITCHED].set_index(CELL).score.rename("stitched")
    chosen = searches[searches.chosen.astype(bool)].groupby(["group", "method"])
    why = {group: _unsound(part) for group, part in chosen}
    unsound = [why.get(group, "") for group in zip(rivals.group, rivals.method, strict=True)]
    return rivals.assign(whole=rivals.kind == FINETUNED, unsound=unsound).merge(stitched, on=CELL)


def _unsound(chosen: pd.DataFrame) -> str:
    """Why masks that were looked for are none to compare with, by the means over tasks and seeds; empty where they are."""
    means = chosen[["start", "end", "score", "moved"]].astype(float).mean()
    budgets = (chosen.crossed / chosen.k).astype(float).mean()
    reasons = (
        (means.end > means.start, f"its search ends at a loss of {means.end:.2f}, above its start, {means.start:.2f}"),
        (budgets > MANY, f"{budgets:.0f} times as many parameters crossed into its masks as they may hold"),
        (
            means.score < means.moved,
            f"its own grafts score {means.score:.1%}, those of equal size of what moved most {means.moved:.1%}",
        ),
    )
    return "; ".join(reason for holds, reason in reasons if holds)


def _facts(scores: pd.DataFrame, least: float) -> pd.DataFrame:
    """Values that notes and the setting name; an empty text leaves its note out."""
    tasks = scores.groupby("group", sort=False).task.unique()
    rows = scores.groupby("task", sort=False).n.min()
    return pd.DataFrame([{
        "sample": counts(group=len(tasks), seed=scores.seed.nunique()),
        "groups": "; ".join(f"{group}: {', '.join(names)}" for group, names in tasks.items()),
        "left_out": left_out(scores.gain[scores.method == FINETUNED], least),
        "test_rows": ", ".join(f"{task} {number}" for task, number in rows.items()),
        **_best(scores[scores["first"] & scores.kind.notna()]),
    }])  # fmt: skip


def _best(merged: pd.DataFrame) -> Row:
    """Of the merged models of the first group the one with the highest mean score, and how many there are."""
    means = merged.groupby("model", sort=False).score.mean()
    return {"ways": len(means) or None, "best": means.idxmax() if len(means) else "", "best_score": means.max()}


@stage
def main(params: Settings) -> None:
    """Write the report from the records of all merged models that params.yaml names."""
    publish("merge", collect(params))
