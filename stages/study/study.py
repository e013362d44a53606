"""study: what all stages of the single-task study say together, as the paper's tables and figures."""

import sys
from pathlib import Path

from stages.lib import paths
from stages.lib.artifacts import write_json, write_text
from stages.lib.entry import stage
from stages.lib.params import load_params


@stage
def main() -> None:
    """Bring the records of the cells named by params.yaml together."""
    params = load_params("study", "ood", "sweep", "readout", "wise", "peft", "paradigm", "trajectory")

    from rich.console import Console

    from stages.lib.report.markdown import to_markdown
    from stages.lib.report.study.cells import study_cells
    from stages.lib.report.study.collecting import collect
    from stages.lib.report.study.compose import write_report
    from stages.lib.report.study.data import plot_data
    from stages.lib.report.study.figures import figures
    from stages.lib.report.study.summary import summary
    from stages.lib.report.terminal import to_terminal

    study = collect(Path(), study_cells(params))
    report = write_report(study)
    paths.report_plots("study").mkdir(parents=True, exist_ok=True)
    plot_data(study, paths.report_plots("study"))
    figures(study, paths.report_plots("study"))
    write_text(paths.report("study").with_suffix(".md"), to_markdown(report))
    write_json(paths.report("study"), summary(study))
    sys.stdout.reconfigure(errors="replace")  # for terminals that have no dagger
    console = Console(highlight=False)
    console.print(to_terminal(report, console))


if __name__ == "__main__":
    main()
