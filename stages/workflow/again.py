"""again: a report once more from its CSV files, without a run, for instance when claims are judged by another rule.

python -m stages.workflow.again                                               all pipelines, from plots
python -m stages.workflow.again merge                                         one of them
python -m stages.workflow.again merge --frames FOLDER                         the figures that lie beside the frames of a dated report
python -m stages.workflow.again merge --frames FOLDER --page FOLDER/merge.md  the claims of a page of it
"""

import argparse
from pathlib import Path

from skill_grafting.support.command import guarded
from skill_grafting.support.errors import DataError, did_you_mean
from skill_grafting.support.io import write_json, write_text
from stages.workflow.report.claims import judge
from stages.workflow.report.publish import (
    CLAIMS,
    claims_record,
    claims_text,
    derive_with,
    report,
    report_folders,
    save_figures,
)
from stages.workflow.report.spec import Frames, Spec, load_frames, read_spec
from stages.workflow.stage import paths


def main() -> None:
    """Parse the command line and write the reports."""
    parser = argparse.ArgumentParser(prog="python -m stages.workflow.again", description="A report once more.")
    parser.add_argument("pipelines", nargs="*", help="summary (the main one), study, talos, ...; all if none is named")
    parser.add_argument("--frames", type=Path, help="the CSV files of a run of one pipeline")
    parser.add_argument("--page", type=Path, help="the page whose claims are judged again, from these alone")
    asked = parser.parse_args()
    if (asked.frames and len(asked.pipelines) != 1) or (asked.page and not asked.frames):
        parser.error("--frames needs the name of one pipeline, and --page needs --frames")
    known = report_folders()
    for name in asked.pipelines:
        if name not in known:
            raise DataError(f"{name}: unknown pipeline{did_you_mean(name, known)}; there are {', '.join(known)}")
    if asked.frames:
        if asked.page:
            judge_again(asked.pipelines[0], asked.frames, asked.page)
        else:
            draw_again(asked.pipelines[0], asked.frames)
        return
    for name in asked.pipelines or known:
        report(name)


def judge_again(pipeline: str, frames: Path, page: Path) -> None:
    """Put the claims of these frames into a page in place of those that it has, and beside it as <page>_claims.json.

    The tables stay as they were measured.  A frame that the run has not kept is taken as one without rows.
    """
    spec, found = _dated(pipeline, frames)
    before, _, _ = page.read_text(encoding="utf-8").partition(CLAIMS)
    write_text(page, f"{before}{claims_text(judge(spec, found))}".rstrip() + "\n")
    write_json(page.with_name(f"{page.stem}_claims.json"), claims_record(spec, found))
    print(f"again: {page}")


def draw_again(pipeline: str, frames: Path) -> None:
    """Draw every figure that lies beside these frames once more."""
    spec, found = _dated(pipeline, frames)
    there = {name: figure for name, figure in spec.figures.items() if any(frames.glob(f"{name}*.png"))}
    save_figures(spec.model_copy(update={"figures": there}), found, frames)
    print(f"again: {', '.join(there) or 'no figure'} in {frames}")


def _dated(pipeline: str, frames: Path) -> tuple[Spec, Frames]:
    """The spec of a pipeline and the frames of a dated report; of those that it hasn't kept frames without rows."""
    folder = report_folders()[pipeline]
    others = {name: frame.iloc[:0] for name, frame in load_frames(paths.report_plots(pipeline)).items()}
    return read_spec(folder / "report.yaml"), derive_with(folder, others | load_frames(frames, folder / "paper.csv"))


if __name__ == "__main__":
    guarded("again", main)
