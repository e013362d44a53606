"""merge: how good models of several tasks are, by the way they were made, as tables, figures and claims."""

import sys
from pathlib import Path

from stages.lib import paths
from stages.lib.artifacts import write_json, write_text
from stages.lib.entry import stage
from stages.lib.params import load_params


@stage
def main() -> None:
    """Bring the records of the merged models named by params.yaml together."""
    params = load_params("merge", "combination")

    from rich.console import Console

    from stages.lib.report.markdown import to_markdown
    from stages.lib.report.merge.collecting import collect
    from stages.lib.report.merge.compose import plot_data, write_report
    from stages.lib.report.merge.figures import figures
    from stages.lib.report.merge.summary import summary
    from stages.lib.report.terminal import to_terminal

    merged = collect(Path(), params.merge.groups, params.combination.methods, params.combination.seeds)
    report = write_report(merged)
    paths.report_plots("merge").mkdir(parents=True, exist_ok=True)
    plot_data(merged, paths.report_plots("merge"))
    figures(merged, paths.report_plots("merge"))
    write_text(paths.report("merge").with_suffix(".md"), to_markdown(report))
    write_json(paths.report("merge"), summary(merged))
    sys.stdout.reconfigure(errors="replace")  # for terminals that have no dagger
    console = Console(highlight=False)
    console.print(to_terminal(report, console))


if __name__ == "__main__":
    main()
