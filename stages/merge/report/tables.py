"""The tables of merged models: how good and how large they are, on each task, and how often grafts collide."""

import pandas as pd

from stages.lib.merging.names import KINDS
from stages.lib.metrics.variants import FINETUNED, GRAFTED, PRETRAINED
from stages.lib.report.document import Row, Table
from stages.lib.report.format import percent, small_percent
from stages.lib.report.stats import Mean, mean_of
from stages.merge.report.choosing import by_cell, by_seed, label
from stages.merge.report.collecting import Merged

MEGA = 1e6
SEEDS = "in %: mean over tasks, then mean (standard deviation) over seeds; n: tasks times seeds"


def tables(merged: Merged) -> list[Table]:
    """All of them; none if combination is off."""
    if not merged.methods:
        return []
    by_task = [_task_table(merged, group) for group in merged.groups]
    return [_model_table(merged), *by_task, *_collision_tables(merged)]


def _model_table(merged: Merged) -> Table:
    rows = []
    for group, tasks in merged.groups.items():
        rows.append(Row("group", [f"{group}: {', '.join(tasks)}"]))
        rows += [
            Row("average", _model_cells(merged, group, method, _single_megabytes(merged, group, method)))
            for method in (PRETRAINED, GRAFTED, FINETUNED)
        ]
        rows += [
            Row("ours", _model_cells(merged, group, method, _megabytes(merged, group, method)))
            for method in merged.methods
        ]
    notes = [
        SEEDS,
        "of own: score / that of the task's own model of the same kind, graft or fine-tuned; of FT: score / that of the fine-tuned one",
        "worst of FT: the lowest of these over tasks, for each seed",
        "alpha: weight of what is added to the pretrained model, chosen on dev, a value for each seed",
        "MB: what has to be kept beside the pretrained model, heads included; a graft takes 4 bytes for an index and 4 for a value",
    ]
    header = ["model", "n", "score", "of own", "of FT", "worst of FT", "alpha", "MB"]
    return Table("One model for several tasks", header, rows, notes)


def _model_cells(merged: Merged, group: str, method: str, size: str) -> list[str]:
    worst = by_cell(merged, group, method, "retained").groupby("seed").min()
    single = method in (PRETRAINED, GRAFTED, FINETUNED)
    own = Mean(0, None, None) if single else mean_of(by_seed(merged, group, method, "own"))
    values = [mean_of(by_seed(merged, group, method)), own, mean_of(by_seed(merged, group, method, "retained"))]
    texts = [value.text() for value in (*values, mean_of(worst))]
    alphas = ", ".join(f"{alpha:g}" for alpha in _models(merged, group, method).alpha.dropna())
    return [label(method), str(len(merged.scores(group, method))), *texts, alphas, size]


def _models(merged: Merged, group: str, method: str) -> pd.DataFrame:
    frame = merged.frames["models"]
    return frame[(frame.group == group) & (frame.method == method)]


def _megabytes(merged: Merged, group: str, method: str) -> str:
    found = _models(merged, group, method)
    return f"{(found.bytes + found.head_bytes).mean() / MEGA:.2f}"


def _single_megabytes(merged: Merged, group: str, variant: str) -> str:
    """Of all single-task models together; empty where no merged model is made of them."""
    frame = merged.frames["models"]
    found = frame[(frame.group == group) & (frame.method.map(KINDS) == variant)]
    if variant == PRETRAINED:
        return f"{frame[frame.group == group].head_bytes.mean() / MEGA:.2f}"
    return f"{(found.single_bytes + found.head_bytes).mean() / MEGA:.2f}" if len(found) else ""


def _task_table(merged: Merged, group: str) -> Table:
    tasks, rows = merged.groups[group], []
    for method in (PRETRAINED, GRAFTED, FINETUNED, *merged.methods):
        scores = by_cell(merged, group, method)
        texts = [mean_of(scores.xs(task, level="task")).text() for task in tasks]
        rows.append(Row("ours" if method in merged.methods else "average", [label(method), *texts]))
    frame = merged.frames["scores"]
    sizes = frame[frame.group == group].groupby("task").n.min()
    notes = ["in %: mean (standard deviation over seeds)"]
    notes.append("test rows: " + ", ".join(f"{task} {int(sizes[task])}" for task in tasks))
    if ((frame.score - frame.accuracy).abs() > 1e-9).any():
        notes.append("the task's own metric, which isn't accuracy for all of them")
    return Table(f"Score on each task: {group}", ["model", *tasks], rows, notes)


def _collision_tables(merged: Merged) -> list[Table]:
    rows = []
    for group, found in merged.frames["collisions"].groupby("group", sort=False):
        shares = {
            "union": found["union"] / found.graftable,
            "colliding": found.colliding / found["union"],
            "chance": found.chance_colliding / found.chance_union,
            "opposed": found.opposed / found.colliding,
        }
        count = f"{found.colliding.mean():,.0f}"
        texts = [small_percent(shares["union"].mean()), count, *(_spread(shares[name]) for name in ("colliding", "chance", "opposed"))]  # fmt: skip
        rows.append(Row("ours", [group, str(len(found)), *texts]))
    notes = [
        "union: selected by any graft, of the graftable parameters; colliding: by two or more, a number and the share of the union in %",
        "chance: the share for random masks of the same sizes; opposed: colliding ones that one graft moves up and another down, in %",
        "n: seeds; mean (standard deviation over seeds)",
    ]
    header = ["group", "n", "union", "colliding", "share", "chance", "opposed"]
    return [Table("Parameters that several grafts select", header, rows, notes)] if rows else []


def _spread(shares: pd.Series) -> str:
    value = mean_of(shares)
    return value.text() if value.n else percent(None)
