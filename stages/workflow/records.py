"""The records of stages as tidy frames, in two steps: name the files (Records), then say what rows a record has (`table`).

A report reads the cells that params.yaml names.  Files of others, left by an earlier run, are not looked
at, and one that is missing stops the report rather than vanish from an average.
"""

import json
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import pandas as pd

from skill_grafting.support.errors import DataError, one_line
from skill_grafting.support.formatting import small_percent
from skill_grafting.support.io import read_json
from stages.text.scores.gain import relative_gain
from stages.text.scores.variants import FINETUNED, PRETRAINED
from stages.text.sources.packages import find_package, provenance
from stages.text.tasks.tasks import registry
from stages.workflow.report.formats import counts

# frames are small here, and pyarrow strings would make a report a fifth slower
pd.options.mode.string_storage = "python"

SHOWN = 10

# tasks whose kind has this word differ in their texts alone
SKILL = "sentiment"
Cell = dict[str, Any]
Row = dict[str, Any]


def grid(**axes: Iterable[Any]) -> list[Cell]:
    """Every combination of the axes' values, the last axis changing fastest; none where an axis has none."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


@dataclass(frozen=True)
class Records:
    """The files of one stage, a cell each: `path` is a pattern over the cells' axes, and so is `item`, the cell's name in DVC.

    Without `item` it is all axes of the path but the last, since one run of a stage makes the records of
    all tasks: "metrics/edit/{method}/{seed}/{task}.json" is made by edit@{method}-{seed}.  `pipeline` is
    the folder of the stage's dvc.yaml, empty for the main pipeline.
    """

    pipeline: str
    stage: str
    path: str
    cells: Sequence[Cell]
    item: str = ""

    def file(self, cell: Cell) -> Path:
        """The file of a cell."""
        return Path(self.path.format(**cell))

    def made_by(self, cell: Cell) -> str:
        """The command that makes it."""
        axes = [name for _, name, _, _ in string.Formatter().parse(self.path) if name]
        item = (self.item or "-".join(f"{{{name}}}" for name in axes[:-1])).format(**cell)
        where = f"stages/{self.pipeline}/dvc.yaml:" if self.pipeline else ""
        return f"`dvc repro {where}{self.stage}@{item}` makes it"

    def table(
        self, make: Callable[[Cell, Row], Iterable[Row]], columns: Sequence[str], more: bool = False
    ) -> pd.DataFrame:
        """A frame with these columns of all rows that `make` yields for each cell and its record; see frame_of.

        A row has the axes of its cell, too.  What is missing or no whole record is a DataError.
        """
        found: list[Row] = []
        for cell in self.cells:
            record = self._read(cell)
            try:
                found += [{**cell, **row} for row in make(cell, record)]
            except (KeyError, TypeError) as error:
                raise self._no_record(cell, f": {error!r}") from None
        return frame_of(found, columns, more)

    def _read(self, cell: Cell) -> Row:
        path = self.file(cell)
        if not path.exists():
            raise DataError(f"{path}: not there; {self.made_by(cell)}")
        record = read_json(path)
        if not isinstance(record, dict) or record.get("stage", self.stage) != self.stage:
            raise self._no_record(cell)
        return record

    def _no_record(self, cell: Cell, why: str = "") -> DataError:
        return DataError(f"{self.file(cell)}: not a record of {self.stage}{why}; {self.made_by(cell)}")


def require_files(makes_all: str, *several: Records) -> None:
    """Raise DataError that names the missing files, each with what makes it, and `makes_all` where they are many."""
    missing = [
        f"{records.file(cell)}: not there; {records.made_by(cell)}"
        for records in several
        for cell in records.cells
        if not records.file(cell).exists()
    ]
    if missing:
        more = [f"and {len(missing) - SHOWN} more files; `{makes_all}` makes them all"] * (len(missing) > SHOWN)
        raise DataError("\n  ".join([*missing[:SHOWN], *more]))


def compared(
    masks: Records,
    axes: Sequence[str],
    pairs: Callable[[Iterable[int], int], Iterable[tuple[int, int]]],
    measure: Callable[[Any, Any], Row],
) -> Iterator[tuple[Cell, Cell, Row]]:
    """Any two cells that differ in these axes alone, with what is measured of their masks."""
    from skill_grafting.grafting.mask_files import read_mask  # imports torch

    groups: dict[tuple, list[Cell]] = {}
    for cell in masks.cells:
        groups.setdefault(tuple(value for name, value in cell.items() if name not in axes), []).append(cell)
    for cells in groups.values():
        found = [read_mask(masks.file(cell)).mask for cell in cells]
        for one, other in pairs(range(len(cells)), 2):
            yield cells[one], cells[other], measure(found[one], found[other])


def frame_of(rows: Iterable[Row], columns: Sequence[str], more: bool = False) -> pd.DataFrame:
    """A tidy frame with these columns, also without rows; with `more`, all others that rows have stand behind them."""
    rows = list(rows)
    others = [name for row in rows for name in row if name not in columns] if more else []
    return pd.DataFrame(rows, columns=[*columns, *dict.fromkeys(others)])


def exact(shares: pd.Series, rows: pd.Series) -> pd.Series:
    """Exact shares of so many rows, from shares rounded to four digits, so that ties are ties again."""
    return ((shares * rows).round() / rows).where(rows < 5000, shares)


def label_kinds(labels: pd.Series) -> pd.Series:
    """What kind of task each is by its number of labels."""
    return pd.Series("two labels", labels.index).mask(labels > 2, "more labels")


def shifts(tasks: pd.Series, test_sets: pd.Series) -> pd.Series:
    """How far test sets are from tasks, as section 4.2 of the paper has it.

    `small` within one skill, as from one sort of review to another, `large` from another skill, as from opinions in news (MPQA) or
    answered questions (QNLI), and `unknown` where one is a user's own.
    """
    skills = {name: SKILL if SKILL in entry["kind"] else entry["kind"] for name, entry in registry().items()}
    one, other = tasks.map(skills), test_sets.map(skills)
    return pd.Series("large", tasks.index).mask(one == other, "small").mask(one.isna() | other.isna(), "unknown")


def shifts_in_words(rows: pd.DataFrame) -> str:
    """Of rows with a task, a test set and their shift: "here it is small in 12 pairs"."""
    pairs = rows.drop_duplicates(["task", "test_set"])["shift"].value_counts(sort=False)
    return "here " + (" and ".join(f"it is {name} in {counts(pair=n)}" for name, n in pairs.items()) or "there is none")


def mask_header(file: Path) -> tuple[Row, dict[str, int]]:
    """What the header of a mask file of the pipeline says, and the size of each tensor that travels whole; read without torch.

    Raises DataError for a file that can't be read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np") as opened:
            header = json.loads((opened.metadata() or {})["graft"])
            whole = [name for name in opened.keys() if name.startswith("head/")]  # noqa: SIM118 - not a dict
            return header, {name.removeprefix("head/"): prod(opened.get_slice(name).get_shape()) for name in whole}
    except (OSError, SafetensorError, LookupError, ValueError) as error:
        raise DataError(f"{file}: damaged: {one_line(error)}") from error


def search_of(header: Row) -> Row:
    """In how many steps a mask was learned, and among how many of them its own was chosen; nothing for one that was not learned."""
    found = header.get("found", {})
    if "steps" not in found.get("settings", {}):
        return {}
    rated = sum("dev_score" in step for step in found.get("history", ()))
    return {"steps": found["settings"]["steps"], "candidates": max(rated, 1)}


def search_in_words(masks: pd.DataFrame, more: str = "") -> str:
    """The search behind learned masks: " (mask learned in 20 steps, the best of 10 of them by train and dev)"; empty for others."""
    known = masks.dropna(subset=["steps"]) if "steps" in masks else masks.iloc[:0]
    if known.empty:
        return ""
    steps, candidates = int(known.steps.max()), int(known.candidates.max())
    kept = f"the best of {candidates} of them by train and dev" if candidates > 1 else "the last of them"
    return f" (mask learned in {counts(step=steps)}, {kept}{more})"


def left_out(gains: pd.Series, least: float, who: str = "fine-tuning") -> str:
    """The runs without a relative gain: "; without 1 of 12 runs (task and seed), in which fine-tuning gained less than 5 points"; empty for none."""
    missing = gains.isna().sum()
    return (
        f"; without {missing} of {counts(run=len(gains))} (task and seed), in which {who} gained less than {100 * least:g} points"
        * bool(missing)
    )


def run_frame(params: Any) -> pd.DataFrame:
    """One row about the run: the model and where it is from, mode, shots and size of the graft."""
    model, data = params.model, params.data
    title, source = title_and_source(model)
    shots = "all" if data.k is None else f"{'at most ' if data.scarce == 'split' else ''}{data.k}"
    return pd.DataFrame([{
        "model": title, "provenance": source, "mode": model.mode, "shots": shots,
        "size": small_percent(params.graft.sparsity), "tasks": len(params.tasks), "seeds": len(params.seeds),
    }])  # fmt: skip


def title_and_source(model: Any) -> tuple[str, str]:
    """What the model of the section `model` is called, and where it is from: of a package what packages.yaml says of it."""
    if model.source == "packaged":
        return find_package(model.name, "model").about.title, provenance(model.name)
    if model.source == "hub":
        revision = f" at revision {model.revision}" if model.revision else ""
        return model.name, f"{model.name}, as the hub has it{revision}"
    return model.name, f"{model.name}, from a folder of the user's, about which nothing more is known here"


def scores_of_ends(rows: pd.DataFrame, cell: Sequence[str], start: str = PRETRAINED) -> pd.DataFrame:
    """Scores of the variant that gains are measured from and of the fine-tuned model, a column each, by the columns that identify a cell."""
    ends = rows[rows.variant.isin([start, FINETUNED])]
    return ends.pivot(index=[*cell], columns="variant", values="score").reindex(columns=[start, FINETUNED])


def add_gain(
    rows: pd.DataFrame, ends: pd.DataFrame, least: float, start: str = PRETRAINED, name: str = "gain"
) -> pd.DataFrame:
    """`rows` with a column `name`, the relative gain of each score; NaN where it is undefined or an end is not known.

    `ends` is as scores_of_ends gives it from this start; the names of its index are columns of `rows`.
    """
    both = rows[[*ends.index.names]].merge(ends, how="left", left_on=[*ends.index.names], right_index=True)
    cells = zip(rows.score, both[start], both[FINETUNED], strict=True)
    return rows.assign(**{name: pd.Series([relative_gain(*cell, least) for cell in cells], rows.index, dtype=float)})
