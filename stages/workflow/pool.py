"""pool: the tasks of several runs of one pipeline together in one report.

python -m stages.workflow.pool summary few/plots pairs/plots --to all
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from skill_grafting.support.command import guarded
from skill_grafting.support.errors import DataError, did_you_mean
from skill_grafting.support.io import write_text
from stages.workflow.report.publish import derive_with, markdown, report_folders, save_figures
from stages.workflow.report.spec import Frames, load_frames, read_spec

CELL = ["task", "seed"]
# not about cells
WHOLE = {"paper", "run", "facts"}


def main() -> None:
    """Parse the command line, write the report and its figures."""
    parser = argparse.ArgumentParser(prog="python -m stages.workflow.pool", description="Several runs of one pipeline.")
    parser.add_argument("pipeline", help="summary (the main one), study, talos, ...")
    parser.add_argument("runs", nargs="+", type=Path, metavar="FOLDER", help="the CSV files of a run")
    parser.add_argument("--to", type=Path, required=True, help="folder for report.md and the figures")
    asked = parser.parse_args()
    known = report_folders()
    if asked.pipeline not in known:
        near = did_you_mean(asked.pipeline, known)
        raise DataError(f"{asked.pipeline}: unknown pipeline{near}; there are {', '.join(known)}")
    for run in asked.runs:
        if not (run / "run.csv").exists():
            raise DataError(f"{run}: has no run.csv, so these are not the CSV files of a run, or of one too old")
    folder = known[asked.pipeline]
    frames = derive_with(folder, pooled({run: load_frames(run, folder / "paper.csv") for run in asked.runs}))
    spec = read_spec(folder / "report.yaml")
    write_text(asked.to / "report.md", markdown(spec, frames))
    save_figures(spec, frames, asked.to)
    print(f"pool: {asked.to / 'report.md'}")


def pooled(runs: Mapping[Path, Frames]) -> Frames:
    """The frames of all runs as those of one; raises DataError if two runs have the same cell."""
    first, *others = runs.values()
    common = [name for name in first if name not in WHOLE and all(name in run for run in others)]
    frames = {name: pd.concat([run[name] for run in runs.values()], ignore_index=True) for name in common}
    cells = pd.concat([_cells(run) for run in runs.values()])
    if (twice := cells[cells.duplicated()]).size:
        which = ", ".join(map(str, runs))
        raise DataError(f"{which}: two of these have {twice.task.iloc[0]} with seed {twice.seed.iloc[0]}")
    sizes = {"tasks": cells.task.nunique(), "seeds": cells.seed.nunique()}
    return frames | {"run": first["run"].assign(**sizes)} | ({"paper": first["paper"]} if "paper" in first else {})


def _cells(frames: Frames) -> pd.DataFrame:
    """Each task with each seed that a run has of it."""
    about = [frame[CELL] for frame in frames.values() if {*CELL} <= {*frame}]
    return pd.concat([pd.DataFrame(columns=CELL), *about]).drop_duplicates()


if __name__ == "__main__":
    guarded("pool", main)
