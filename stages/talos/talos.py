"""talos: what all stages of task arithmetic say together."""

import sys

from stages.lib import paths
from stages.lib.artifacts import write_json, write_text
from stages.lib.entry import stage
from stages.lib.params import load_params


@stage
def main() -> None:
    """Bring the records of the cells named by params.yaml together."""
    params = load_params("talos.tasks", "talos.seeds", "edit.methods", "arithmetic.methods", "disentangle")

    from rich.console import Console

    from stages.lib.report.markdown import to_markdown
    from stages.lib.report.talos.collecting import collect
    from stages.lib.report.talos.compose import write_report
    from stages.lib.report.talos.data import plot_data
    from stages.lib.report.talos.figures import figures
    from stages.lib.report.talos.summary import summary
    from stages.lib.report.terminal import to_terminal

    talos = collect(params)
    report = write_report(talos)
    paths.report_plots("talos").mkdir(parents=True, exist_ok=True)
    plot_data(talos, paths.report_plots("talos"))
    figures(talos, paths.report_plots("talos"))
    write_text(paths.report("talos").with_suffix(".md"), to_markdown(report))
    write_json(paths.report("talos"), summary(talos))
    sys.stdout.reconfigure(errors="replace")  # for terminals that cannot show everything
    console = Console(highlight=False)
    console.print(to_terminal(report, console))


if __name__ == "__main__":
    main()
