"""multitask: what all stages of multi-task learning say together, as the paper's figures 8 and 11 to 14."""

import sys
from pathlib import Path

from stages.lib import paths
from stages.lib.artifacts import write_json, write_text
from stages.lib.entry import stage
from stages.lib.params import load_params


@stage
def main() -> None:
    """Bring the records of the cells named by params.yaml together."""
    params = load_params("multitask", "joint.paradigms", "skill", "transfer")

    from rich.console import Console

    from stages.lib.report.markdown import to_markdown
    from stages.lib.report.multitask.collecting import collect
    from stages.lib.report.multitask.compose import write_report
    from stages.lib.report.multitask.data import plot_data
    from stages.lib.report.multitask.figures import figures
    from stages.lib.report.multitask.summary import summary
    from stages.lib.report.terminal import to_terminal

    found = collect(Path(), params)
    report = write_report(found)
    folder = paths.report_plots("multitask")
    folder.mkdir(parents=True, exist_ok=True)
    plot_data(found, folder)
    figures(found, folder)
    write_text(paths.report("multitask").with_suffix(".md"), to_markdown(report))
    write_json(paths.report("multitask"), summary(found))
    sys.stdout.reconfigure(errors="replace")  # for terminals that have no dagger
    console = Console(highlight=False)
    console.print(to_terminal(report, console))


if __name__ == "__main__":
    main()
