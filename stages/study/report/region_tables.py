"""Tables about learned regions, laid out like tables 1, 3 and 8 of the paper."""

from itertools import chain
from typing import Any

import pandas as pd

from stages.lib.metrics.variants import FINETUNED
from stages.lib.report.document import Row, Table
from stages.lib.report.format import DAGGER, percent, small_percent, spread
from stages.lib.report.stats import mean_of
from stages.study.report import choosing
from stages.study.report.choosing import BIAS, FISH, LEARNED, RANDOM
from stages.study.report.collecting import Study
from stages.study.report.paper import table1, table3, table8

SCORE_ECE = ("score", "ece")
PAPER = "paper: RoBERTa-base, 4096-shot, 5 seeds; no target for other settings"
VALUES = "mean (standard deviation over cells) in %; n: cells, one for each task and seed"


def readout_table(study: Study) -> Table | None:
    """Fine-tuned model, graft, its region trained alone, and all biases trained alone (table 1)."""
    size = region_size(study)
    if size is None:
        return None
    columns = _columns(study, size)
    rows = []
    for task in study.tasks:
        cells = [texts(frame[frame.task == task], SCORE_ECE) for frame in columns.values()]
        if any(cells[2]):
            n = len(choosing.by_cell(columns["retrain"][columns["retrain"].task == task]))
            rows.append(Row("ours", [choosing.named(study, task), str(n), *chain(*cells)]))
            rows += _paper_row(table1(task), columns, SCORE_ECE)
    titles = ["FT", "graft", "retrain", "BitFit"]
    header = ["task", "n", *(f"{title} {measure}" for title in titles for measure in ("score", "ECE"))]
    title = f"Table 1: the region trained alone, at a sparsity of {small_percent(size)}"
    notes = [
        VALUES,
        "retrain: only the region's parameters are trained; BitFit: only biases are",
        PAPER,
        *_dagger(study),
    ]
    return Table(title, header, rows, notes) if rows else None


def ood_table(study: Study) -> Table | None:
    """Accuracy on other test sets of the same four models (table 3)."""
    size = region_size(study)
    if size is None:
        size = choosing.nearest(choosing.common_sparsities(study))
    columns = _columns(study, size, "ood")
    rows = []
    for task, test_set in choosing.pairs(study):
        own = {name: _pair(frame, task, test_set) for name, frame in columns.items()}
        if any(map(len, own.values())):
            n = max(len(choosing.by_cell(frame)) for frame in own.values())
            scores = [mean_of(choosing.by_cell(frame)).text() for frame in own.values()]
            rows.append(Row("ours", [f"{choosing.named(study, task)} -> {test_set}", str(n), *scores]))
            theirs = {name: table3(task, test_set, name) for name in columns}
            if any(theirs.values()):
                rows.append(Row("paper", ["  paper", "", *(spread(*pair) if pair else "" for pair in theirs.values())]))
    header = ["trained -> tested", "n", "FT", "graft", "retrain", "BitFit"]
    title = "Table 3: scores out of distribution" + (f", at a sparsity of {small_percent(size)}" if size else "")
    return Table(title, header, rows, [VALUES, PAPER]) if rows else None


def fish_table(study: Study) -> Table | None:
    """Overlap with the FISH mask, and grafts on the learned, the FISH and a random region (table 8)."""
    if not {LEARNED, FISH} <= {*choosing.localizers(study)}:
        return None
    rows = []
    for task in study.tasks:
        for size in choosing.sparsities(study.frames["sweep"]):
            rows += _fish_rows(study, task, size)
    header = ["task", "sparsity", "n", "overlap", "chance overlap"]
    header += [f"{name} {measure}" for name in ("graft", "FISH", "random") for measure in ("score", "ECE")]
    notes = [VALUES, "overlap: intersection over union of the learned region and the FISH mask", PAPER, *_dagger(study)]
    return Table("Table 8: the learned region and the FISH mask", header, rows, notes)


def region_size(study: Study) -> float | None:
    """The size at which readouts of learned regions are shown: of those there are, the one nearest the paper's."""
    rows = study.frames["readout"]
    return choosing.nearest(choosing.sparsities(rows[rows.localizer == LEARNED]))


def _columns(study: Study, size: float | None, where: str = "id") -> dict[str, pd.DataFrame]:
    return {
        "finetuned": choosing.anchor(study, FINETUNED, where),
        "graft": choosing.sweep(study, LEARNED, size, where),
        "retrain": choosing.readout(study, "retrain", LEARNED, size, where),
        "bitfit": choosing.readout(study, "retrain", BIAS, None, where),
    }


def _fish_rows(study: Study, task: str, size: float) -> list[Row]:
    overlaps = study.frames["localizer_overlap"]
    of_pair = overlaps["first"].isin([LEARNED, FISH]) & overlaps["second"].isin([LEARNED, FISH])
    found = overlaps[(overlaps.task == task) & (overlaps.sparsity == size) & of_pair]
    if found.empty:
        return []
    grafts = []
    for name in (LEARNED, FISH, RANDOM):
        frame = choosing.sweep(study, name, size)
        grafts += texts(frame[frame.task == task], SCORE_ECE)
    overlap = [mean_of(found.iou).text(), percent(found.chance.mean(), 2)]
    rows = [Row("ours", [choosing.named(study, task), small_percent(size), str(len(found)), *overlap, *grafts])]
    theirs = table8(task, float(size))
    if theirs:
        pairs = [spread(*theirs[name][measure]) for name in (LEARNED, FISH, RANDOM) for measure in SCORE_ECE]
        rows.append(Row("paper", ["  paper", "", "", spread(*theirs["overlap"]), "", *pairs]))
    return rows


def _paper_row(theirs: dict[str, Any], columns: dict[str, Any], measures: tuple[str, ...]) -> list[Row]:
    if not theirs:
        return []
    pairs = [spread(*theirs[name][measure]) for name in columns for measure in measures]
    return [Row("paper", ["  paper", "", *pairs])]


def texts(frame: pd.DataFrame, measures: tuple[str, ...]) -> list[str]:
    """Each measure's mean and deviation over cells."""
    return [mean_of(choosing.by_cell(frame, measure)).text() for measure in measures]


def _pair(frame: pd.DataFrame, task: str, test_set: str) -> pd.DataFrame:
    return frame[(frame.task == task) & (frame.test_set == test_set)]


def _dagger(study: Study) -> list[str]:
    return [f"{DAGGER} F1, the others accuracy"] if choosing.f1_tasks(study) else []
