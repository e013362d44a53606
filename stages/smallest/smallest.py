"""smallest: how small the grafts are that bring most of the gain, as tables, a figure and claims."""

from stages.lib.entry import stage
from stages.workflow.settings import load_params


@stage
def main() -> None:
    """Bring the records of the searches named by params.yaml together."""
    params = load_params(
        "tasks", "seeds", "task", "data", "model", "runtime.precision", "finetune", "graft", "localizer",
        "calibration.bins", "ood", "summary.least_gain", "smallest",
    )  # fmt: skip

    from stages.lib.report.format import measured_with
    from stages.lib.report.publish import figures, plot_data, publish
    from stages.smallest.figures import FIGURES
    from stages.smallest.frames import collect
    from stages.smallest.report import details, headline, report

    found = collect(params.seeds, params.smallest, params.summary.least_gain)
    made, draw = report(found, measured_with(params)), (plot_data(found.plots), figures(FIGURES, found))
    publish("smallest", made, headline(found), details(found), *draw, settings=params)


if __name__ == "__main__":
    main()
