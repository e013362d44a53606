"""continual: the report on sequences of tasks, with the paper's table 4."""

from collections.abc import Iterable

import pandas as pd

from stages.continual.settings import Settings
from stages.text.scores.variants import FINETUNED, PRETRAINED
from stages.workflow.records import Cell, Records, Row, exact, grid, run_frame
from stages.workflow.report.formats import counts
from stages.workflow.report.publish import publish
from stages.workflow.stage.decorator import stage

NAIVE, GRAFTING = "naive", "grafting"
WALK = ["method", "order", "seed"]
CELL = ["order", "seed", "task"]
ACCURACY = [
    *WALK, "task", "place", "length", "step", "after", "variant", "n", "accuracy", "accuracy_se", "score", "f1", "ece", "loss",
    "agreement", "unchanged", "agreement_with_own", "majority",
]  # fmt: skip
MEMORY = [*WALK, "task", "place", "head", "skill", "model", "region", "own", "strength"]
ALONE = "a model for each task"


def collect(params: Settings) -> dict[str, pd.DataFrame]:
    """Read the records of every method and order of the section `sequence`, for every seed.

    accuracy: a row for each method, order, seed, task and step since the task's own; step 0 is the task's own fine-tuned or
    pretrained model (`variant`), `length` the number of steps.  measure: `measures`.  memory: bytes
    kept after each step.  Raises DataError that names a missing record with the `dvc repro` that makes it.
    """
    settings = params.sequence
    chosen = {name: params.order[name] for name in settings.orders if params.order[name]} if settings.methods else {}
    walks = grid(method=settings.methods, order=chosen, seed=params.seeds)
    cells = [{**walk, "task": task} for walk in walks for task in chosen[walk["order"]]]
    path = "metrics/sequence/{method}/{order}/{seed}/{task}.json"
    records = Records("continual", "sequence", path, cells)

    def tested(cell: Cell, record: Row) -> Iterable[Row]:
        more = {"place": record["place"], "length": len(chosen[cell["order"]])}
        return [{**row, **more} for row in record["rows"]]

    def kept(_: Cell, record: Row) -> Iterable[Row]:
        return [{**record, **record["kept_bytes"], "model": record["model_bytes"]}]

    accuracy, memory = records.table(tested, ACCURACY), records.table(kept, MEMORY)
    return {"accuracy": accuracy, "measure": measures(accuracy), "memory": memory, "run": run_frame(params)}


def measures(accuracy: pd.DataFrame) -> pd.DataFrame:
    """Means over the tasks of every walk through a sequence.

    average: accuracy after the last step (ACC of Lopez-Paz and Ranzato, 2017).  learned: that of each task right after its own step.
    forgetting: what all tasks but the last lost since they were best (F of Chaudhry et al., 2018); the best is looked for among
    the steps from a task's own on but the last, so that what is below 0 was gained in the last step.
    """
    walked = accuracy[accuracy.step > 0].set_index([*WALK, "task"])
    values = walked.accuracy.astype(float)
    end, new = (values[walked.step == walked[name]] for name in ("length", "place"))
    best = values[walked.step < walked.length].groupby(level=[0, 1, 2, 3], sort=False).max()
    parts = {"average": end, "learned": new, "forgetting": best - end.reindex(best.index)}
    walks = {name: part.groupby(level=WALK, sort=False).mean() for name, part in parts.items()}
    return pd.DataFrame(walks, index=walks["average"].index).reset_index()


# --- Derived columns ------------------------------------------------------------------------------------------------


def derive(frames: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The frames with every quantity that report.yaml names as a column."""
    rows, memory, paper = frames["accuracy"], frames["memory"], frames.get("paper")
    rows = rows.assign(accuracy=exact(rows.accuracy, rows.n))
    later, ends, sizes = rows[rows.step > rows.place], _ends(rows), _sizes(memory)
    facts = _facts(rows, memory, [] if paper is None else [*paper.task.unique()])
    return frames | {
        "accuracy": rows,
        "later": later.assign(same=later.unchanged.eq(True).astype(float), tests=1.0),
        "ends": ends,
        "gap": _gap(ends),
        "steps": _steps(rows),
        "sizes": sizes,
        "facts": facts.assign(**_best(frames["measure"], sizes)),
    }


def _alone(rows: pd.DataFrame, variant: str) -> pd.DataFrame:
    """Rows about the fine-tuned or pretrained model, each (order, seed, task) once."""
    return rows[rows.variant == variant].drop_duplicates(CELL).assign(method=variant)


def _ends(rows: pd.DataFrame) -> pd.DataFrame:
    """A row for each task after the last step, beside it what it was when just `learned`; `mean` is the accuracy, for averages.

    The single models stand there as methods.  `last`: no task followed, so it cannot have been forgotten.  `above`: how far the
    task just learned is above the pretrained model and above always the same label.
    """
    new = rows[rows.step == rows.place].set_index([*WALK, "task"])
    start = _alone(rows, PRETRAINED).set_index(CELL)[["accuracy", "majority"]].max(axis=1).rename("start")
    ends = pd.concat(
        [_alone(rows, PRETRAINED), _alone(rows, FINETUNED), rows[(rows.step > 0) & (rows.step == rows.length)]]
    )
    learned = new[["accuracy", "ece"]].rename(columns={"accuracy": "learned", "ece": "learned_ece"})
    ends = ends.join(learned, on=[*WALK, "task"]).join(start, on=CELL)
    ends = ends.assign(mean=ends.accuracy, last=ends.place == ends.length, above=ends.learned - ends.start)
    orders = {name: place for place, name in enumerate(ends.order.unique())}
    return ends.sort_values(
        ["order", "place"], key=lambda column: column.map(orders) if column.name == "order" else column
    )


def _gap(ends: pd.DataFrame) -> pd.DataFrame:
    """Accuracy of grafting less that of naive fine-tuning after the last step."""
    first, second = (ends[ends.method == name].set_index([*CELL, "last"]).accuracy for name in (GRAFTING, NAIVE))
    return (first - second).rename("gap").reset_index()


def _steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Accuracy after each step; the model fine-tuned alone, which no step changes, stands beside as a method."""
    walked = rows[rows.step > 0]
    places = walked[[*CELL, "step"]].drop_duplicates()
    return pd.concat([walked, places.merge(_alone(rows, FINETUNED).drop(columns="step"), on=CELL)], ignore_index=True)


def _sizes(memory: pd.DataFrame) -> pd.DataFrame:
    """What is to be kept beside one model after the first and the last task, and a task in the mean, as shares of that model."""
    skills = memory.assign(skill=memory["skill"] / memory.model)
    kept = skills.loc[skills.groupby(WALK, sort=False).place.idxmax()] if len(skills) else skills
    first, last = skills[skills.place == 1].groupby("method")["skill"].mean(), kept.groupby("method")["skill"].mean()
    sizes = pd.DataFrame(
        {"first": first, "last": last, "each": (kept["skill"] / kept.place).groupby(kept.method).mean()}
    )
    if len(kept):
        sizes.loc[ALONE] = [1.0, kept.groupby(["order", "seed"]).place.max().mean(), 1.0]
    return sizes.rename_axis("method").reset_index()


def _facts(rows: pd.DataFrame, memory: pd.DataFrame, published: list[str]) -> pd.DataFrame:
    """Values that notes, the setting and claims name; an empty text leaves its note out."""
    methods, lengths = [*memory.method.unique()], rows.n[rows.step == rows.length]
    followed = memory[(memory.place > 1) & memory.own.notna()]
    chosen = memory[memory.strength.notna()].drop_duplicates(["order", "seed"]).strength.sort_values()
    return pd.DataFrame([{
        "sample": counts(order=memory.order.nunique(), seed=memory.seed.nunique(), method=len(methods)),
        "orders": counts(order=memory.order.nunique()),
        "of_seeds": counts(seed=memory.seed.nunique()),
        "test_rows": " to ".join(dict.fromkeys(f"{n:g}" for n in (lengths.min(), lengths.max()))),
        "strengths": ", ".join(f"{strength:g} in {counts(order=number)}" for strength, number in chosen.value_counts(sort=False).items()),
        "published": ", ".join(name for name in published if name in {*rows.task}),
        "taken": f"{100 * (1 - (followed.own / followed.region).mean()):.1f}" if len(followed) else "",
    }])  # fmt: skip


def _best(measure: pd.DataFrame, sizes: pd.DataFrame) -> Row:
    """The method with the highest mean accuracy at the end, and what it and grafting keep beside the model for each task."""
    averages, kept = measure.groupby("method", sort=False).average.mean(), sizes.set_index("method")["each"]
    best = averages.idxmax() if len(averages) else ""
    return {
        "best": best,
        "best_average": averages.get(best),
        "best_kept": kept.get(best),
        "grafting_kept": kept.get(GRAFTING),
    }


@stage
def main(params: Settings) -> None:
    """Write the report from the records of all sequences that params.yaml names."""
    publish("continual", collect(params))
