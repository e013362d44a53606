"""compare: the reports of several runs of one pipeline side by side, or of their tasks together.

python -m stages.workflow.compare summary 16=few/plots 64=plots --to shots           one line and one point a run
python -m stages.workflow.compare summary sets=a/plots pairs=b/plots --pool --to all     one report over all their tasks
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from skill_grafting.command import guarded
from skill_grafting.errors import DataError, did_you_mean
from skill_grafting.io import write_text

from .report.claims import judge
from .report.publish import derive_with, markdown, report_folders, save_figures
from .report.spec import Figure, Frames, Spec, Table, load_frames, read_spec

CELL = ["task", "seed"]


def main() -> None:
    """Parse the command line, write the report and its figures."""
    parser = argparse.ArgumentParser(
        prog="python -m stages.workflow.compare", description="Several runs of one pipeline."
    )
    parser.add_argument("pipeline", help="summary (the main one), study, talos, ...")
    parser.add_argument("runs", nargs="+", metavar="NAME=FOLDER", help="a run's name, and the folder of its CSV files")
    parser.add_argument("--pool", action="store_true", help="pool the tasks of all runs into one report")
    parser.add_argument("--to", type=Path, required=True, help="folder for report.md and the figures")
    asked = parser.parse_args()
    known = report_folders()
    if asked.pipeline not in known:
        raise DataError(
            f"{asked.pipeline}: unknown pipeline{did_you_mean(asked.pipeline, known)}; there are {', '.join(known)}"
        )
    folder = known[asked.pipeline]
    runs = {name: load_frames(plots, folder / "paper.csv") for name, plots in named_folders(asked.runs).items()}
    spec = read_spec(folder / "report.yaml")
    if asked.pool:
        frames = derive_with(folder, pooled(runs))
        write_text(asked.to / "report.md", markdown(spec, frames))
    else:
        derived = {name: derive_with(folder, frames) for name, frames in runs.items()}
        spec, frames = by_run(spec), side_by_side(derived)
        write_text(
            asked.to / "report.md", f"{markdown(spec, frames)}\n{verdicts(read_spec(folder / 'report.yaml'), derived)}"
        )
    save_figures(spec, frames, asked.to)
    print(f"compare: {asked.to / 'report.md'}")


def named_folders(words: Sequence[str]) -> dict[str, Path]:
    """Name -> folder; raises DataError for a word that is not NAME=FOLDER, or a folder without the CSV files of a run."""
    found: dict[str, Path] = {}
    for word in words:
        name, sign, folder = word.partition("=")
        if not sign or not name or name in found:
            raise DataError(f"{word}: expected NAME=FOLDER, each name once, as in 64=plots")
        if not Path(folder, "run.csv").exists():
            raise DataError(f"{folder}: has no run.csv, so these are not the CSV files of a run, or of one too old")
        found[name] = Path(folder)
    return found


def pooled(runs: Mapping[str, Frames]) -> Frames:
    """The frames of all runs as those of one; raises DataError if two runs have the same cell."""
    frames = {
        name: pd.concat([run[name] for run in runs.values() if name in run], ignore_index=True)
        for name in _common(runs)
    }
    cells = pd.concat([_cells(run) for run in runs.values()])
    if (twice := cells[cells.duplicated()]).size:
        raise DataError(f"{', '.join(runs)}: two of these have {twice.task.iloc[0]} with seed {twice.seed.iloc[0]}")
    first = next(iter(runs.values()))
    sizes = {"tasks": cells.task.nunique(), "seeds": cells.seed.nunique()}
    return frames | {"run": first["run"].assign(**sizes)} | ({"paper": first["paper"]} if "paper" in first else {})


def side_by_side(runs: Mapping[str, Frames]) -> Frames:
    """The derived frames of all runs with a column `run`, of the tasks that all have."""
    tasks = set.intersection(*({*_cells(run).task} for run in runs.values()))
    if not tasks:
        raise DataError(f"{', '.join(runs)}: no task is in all of these")
    found = {}
    for name in _common(runs):
        frame = pd.concat([run[name].assign(run=label) for label, run in runs.items()], ignore_index=True)
        found[name] = frame[frame.task.isin(tasks)] if "task" in frame else frame
    return found


def _cells(frames: Frames) -> pd.DataFrame:
    """Each task with each seed that a run has of it; what was published is no run's."""
    own = {name: frame for name, frame in frames.items() if not name.endswith("published")}
    about = [frame[CELL] for frame in own.values() if {*CELL} <= {*frame}]
    return pd.concat([pd.DataFrame(columns=CELL), *about]).drop_duplicates()


def _common(runs: Mapping[str, Frames]) -> list[str]:
    whole = {"paper", "run", "facts"}  # not about cells
    return [
        name for name in next(iter(runs.values())) if name not in whole and all(name in run for run in runs.values())
    ]


def by_run(spec: Spec) -> Spec:
    """The spec with a line and a row of dots for each run, and its other figures once for each; values of a single run are left out."""

    def table(name: str, one: Table) -> Table:
        lead = {"by": ["run", *one.by], "lead": ["run", *(one.lead or one.by)], "average": "", "paper": ""}
        notes = [note for note in one.notes if "{" not in note]
        return one.model_copy(update={**lead, "title": _plain(one.title, spec.label(name)), "notes": notes})

    def figure(name: str, one: Figure) -> Figure:
        place = {"y": "run", "points": "task", "mean": ""} if one.kind == "dots" else {"split": "run"}
        title = f"{spec.label(name)}: {one.label}, by run"
        return one.model_copy(update={**place, "title": title, "caption": _plain(one.caption, "")})

    tables = {name: table(name, one) for name, one in spec.tables.items()}
    figures = {name: figure(name, one) for name, one in spec.figures.items()}
    return spec.model_copy(update={"tables": tables, "figures": figures, "claims": [], "sentence": "", "setting": ""})


def _plain(text: str, otherwise: str) -> str:
    return otherwise if "{" in text else text


def verdicts(spec: Spec, runs: Mapping[str, Frames]) -> str:
    """A line for each claim, a column for each run."""
    verdict_of = {name: {claim.words: claim.verdict for claim in judge(spec, frames)} for name, frames in runs.items()}
    table = pd.DataFrame(verdict_of).fillna("").rename_axis("claim")
    return f"## Claims by run\n\n{table.to_markdown()}\n"


if __name__ == "__main__":
    guarded("compare", main)
