"""The whole report of merged models, and the tidy tables behind it."""

from pathlib import Path

from stages.lib.io import write_text
from stages.lib.report.document import Report
from stages.lib.report.format import counted
from stages.merge.report.choosing import label
from stages.merge.report.collecting import Merged
from stages.merge.report.findings import claims
from stages.merge.report.tables import tables

DECIMALS = 6
INTERVALS = (
    "Intervals are t-intervals for the mean of paired differences of single cells (task, seed), which takes cells as "
    "independent; the seeds of one task are not quite."
)


def write_report(merged: Merged) -> Report:
    """Tables and claims, or that there are none."""
    size = f"{counted(len(merged.groups), 'group')} of tasks, {counted(len(merged.seeds), 'seed')}"
    facts = [INTERVALS, *_at_the_edge(merged)] if merged.methods else ["combination: off, so without any merged model"]
    return Report("Several tasks in one model", size, tables(merged), facts, claims(merged) if merged.methods else [])


def _at_the_edge(merged: Merged) -> list[str]:
    """Methods for which dev chose the largest alpha there was."""
    largest = merged.frames["dev"].alpha.max()
    models = merged.frames["models"]
    found = [label(name) for name in models[models.alpha == largest].method.unique()]
    if not found:
        return []
    return [f"The largest alpha, {largest:g}, was chosen for {', '.join(found)}: a larger one may be better."]


def plot_data(merged: Merged, folder: Path) -> list[Path]:
    """Write scores.csv, models.csv, dev.csv and collisions.csv, as far as there is anything; gives their paths."""
    written = []
    for name, frame in merged.frames.items():
        if len(frame):
            text = frame.round(DECIMALS).to_csv(index=False, lineterminator="\n")
            write_text(folder / f"{name}.csv", text)
            written.append(folder / f"{name}.csv")
    return written
