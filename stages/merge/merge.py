"""merge: how good models of several tasks are, by the way they were made, as tables, figures and claims."""

from stages.lib.entry import stage
from stages.workflow.settings import load_params


@stage
def main() -> None:
    """Bring the records of the merged models named by params.yaml together."""
    params = load_params(
        "tasks", "seeds", "task", "data", "model", "runtime.precision", "finetune", "movement", "graft",
        "localizer", "calibration.bins", "calibration.wise_alphas", "calibration.graft_alphas", "calibration.refit_head_steps", "ood",
        "summary.least_gain", "merge", "combination",
    )  # fmt: skip

    from stages.lib.report.format import measured_with
    from stages.lib.report.publish import figures, plot_data, publish
    from stages.merge.figures import FIGURES
    from stages.merge.report import collect, details, headline, report

    merged = collect(params.seeds, params.merge, params.combination, params.summary.least_gain)
    made, draw = report(merged, measured_with(params)), (plot_data(merged.frames), figures(FIGURES, merged))
    publish("merge", made, headline(merged), details(merged), *draw, settings=params)


if __name__ == "__main__":
    main()
