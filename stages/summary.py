"""summary: what all cells together say, as numbers, tables, figures and claims."""

from stages.lib.entry import stage
from stages.workflow.settings import load_params


@stage
def main() -> None:
    """Bring the cells named by params.yaml together."""
    params = load_params(
        "tasks", "seeds", "task", "data", "model", "runtime.precision", "finetune", "movement", "graft",
        "localizer.${graft.localizer}", "calibration", "ood", "summary",
    )  # fmt: skip

    from stages.figures import FIGURES
    from stages.lib.report.publish import figures, plot_data, publish
    from stages.report import collect, details, headline, report

    results = collect(params.tasks, params.seeds, params.ood, params.summary.least_gain)
    made = report(results, params.summary, params.ood.leaks, params.data)
    draw = plot_data(results.plots, empty=True), figures(FIGURES, results)
    publish("summary", made, headline(results), details(results, params.ood.leaks), *draw, settings=params)


if __name__ == "__main__":
    main()
