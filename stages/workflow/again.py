"""again: a report once more from its CSV files, without a run, for instance when claims are judged by another rule.

python -m stages.workflow.again                                               all pipelines, from plots
python -m stages.workflow.again merge                                         one of them
python -m stages.workflow.again merge --frames FOLDER --page FOLDER/merge.md  the claims of a page of a dated report
"""

import argparse
from pathlib import Path

from skill_grafting.support.command import guarded
from skill_grafting.support.errors import DataError, did_you_mean
from skill_grafting.support.io import write_json, write_text
from stages.workflow.report.claims import judge
from stages.workflow.report.publish import CLAIMS, claims_record, claims_text, derive_with, report, report_folders
from stages.workflow.report.spec import load_frames, read_spec
from stages.workflow.stage import paths


def main() -> None:
    """Parse the command line and write the reports."""
    parser = argparse.ArgumentParser(prog="python -m stages.workflow.again", description="A report once more.")
    parser.add_argument("pipelines", nargs="*", help="summary (the main one), study, talos, ...; all if none is named")
    parser.add_argument("--frames", type=Path, help="the CSV files of a run of one pipeline")
    parser.add_argument("--page", type=Path, help="the page whose claims are judged again, from these alone")
    asked = parser.parse_args()
    known = report_folders()
    for name in asked.pipelines:
        if name not in known:
            raise DataError(f"{name}: unknown pipeline{did_you_mean(name, known)}; there are {', '.join(known)}")
    if asked.page:
        judge_again(asked.pipelines[0], asked.frames, asked.page)
        return
    for name in asked.pipelines or known:
        report(name)


def judge_again(pipeline: str, frames: Path, page: Path) -> None:
    """Put the claims of these frames into a page in place of those that it has, and beside it as <page>_claims.json.

    The tables stay as they were measured.  A frame that the run has not kept is taken as one without rows.
    """
    folder = report_folders()[pipeline]
    others = {name: frame.iloc[:0] for name, frame in load_frames(paths.report_plots(pipeline)).items()}
    found = derive_with(folder, others | load_frames(frames, folder / "paper.csv"))
    spec = read_spec(folder / "report.yaml")
    before, _, _ = page.read_text(encoding="utf-8").partition(CLAIMS)
    write_text(page, f"{before}{claims_text(judge(spec, found))}\n")
    write_json(page.with_name(f"{page.stem}_claims.json"), claims_record(spec, found))
    print(f"again: {page}")


if __name__ == "__main__":
    guarded("again", main)
