"""summary: what all cells together say, as numbers, tables, figures and a verdict."""

from stages.lib import paths
from stages.lib.entry import stage
from stages.lib.io import write_json, write_text
from stages.lib.params import load_params


@stage
def main() -> None:
    """Bring the cells named by params.yaml together."""
    params = load_params("tasks", "seeds", "ood", "summary")

    from stages.lib.report.document import write_report as store
    from stages.lib.report.markdown import to_markdown
    from stages.lib.report.plot_data import write_plot_data
    from stages.lib.report.publish import show
    from stages.report.aggregate import summarize
    from stages.report.cells import collect
    from stages.report.compose import write_report
    from stages.report.figures import write_figures

    cells = collect(params.tasks, params.seeds, params.ood.sets)
    summary = summarize(cells)
    report = write_report(cells, summary, params.summary.retained_target, params.summary.ece_target, params.ood.leaks)
    write_plot_data(cells, paths.PLOTS)
    write_figures(cells, summary, paths.PLOTS)
    write_text(paths.SUMMARY.with_suffix(".md"), to_markdown(report))
    write_json(paths.SUMMARY, summary)
    store(paths.report_document("summary"), report)
    show(report)


if __name__ == "__main__":
    main()
