"""continual: what the sequences of tasks show, as the paper's table 4 and what goes with it."""

import sys
from pathlib import Path

from stages.lib import paths
from stages.lib.artifacts import write_json, write_text
from stages.lib.entry import stage
from stages.lib.params import load_params


@stage
def main() -> None:
    """Bring the records of the sequences named by params.yaml together."""
    params = load_params("sequence", "order")

    from rich.console import Console

    from stages.lib.report.continual.collecting import collect
    from stages.lib.report.continual.compose import write_report
    from stages.lib.report.continual.data import plot_data
    from stages.lib.report.continual.figures import figures
    from stages.lib.report.continual.summary import summary
    from stages.lib.report.markdown import to_markdown
    from stages.lib.report.terminal import to_terminal

    found = collect(Path(), params.sequence, params.order)
    report = write_report(found)
    paths.report_plots("continual").mkdir(parents=True, exist_ok=True)
    plot_data(found, paths.report_plots("continual"))
    figures(found, paths.report_plots("continual"))
    write_text(paths.report("continual").with_suffix(".md"), to_markdown(report))
    write_json(paths.report("continual"), summary(found))
    sys.stdout.reconfigure(errors="replace")  # for terminals that have no dagger
    console = Console(highlight=False)
    console.print(to_terminal(report, console))


if __name__ == "__main__":
    main()
