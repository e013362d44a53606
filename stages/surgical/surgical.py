"""surgical: what the scores of layers, and fine-tuning of the selected ones, say together."""

import sys
from pathlib import Path

from stages.lib import paths
from stages.lib.artifacts import write_json, write_text
from stages.lib.entry import stage
from stages.lib.params import load_params


@stage
def main() -> None:
    """Bring the records of the cells named by params.yaml together."""
    params = load_params("fim", "surgery", "robustness", "surgical")

    from rich.console import Console

    from stages.lib.report.markdown import to_markdown
    from stages.lib.report.surgical.collecting import collect
    from stages.lib.report.surgical.compose import plot_data, write_report
    from stages.lib.report.surgical.figures import figures
    from stages.lib.report.surgical.summary import summary
    from stages.lib.report.terminal import to_terminal

    data = collect(Path(), params)
    report = write_report(data)
    plots = paths.report_plots("surgical")
    plots.mkdir(parents=True, exist_ok=True)
    plot_data(data, plots)
    figures(data, plots)
    write_text(paths.report("surgical").with_suffix(".md"), to_markdown(report))
    write_json(paths.report("surgical"), summary(data))
    sys.stdout.reconfigure(errors="replace")
    console = Console(highlight=False)
    console.print(to_terminal(report, console))


if __name__ == "__main__":
    main()
