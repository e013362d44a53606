"""study: what all stages of the single-task study say together, as the paper's tables and figures."""

from stages.lib.entry import stage
from stages.workflow.settings import load_params


@stage
def main() -> None:
    """Bring the records of the cells named by params.yaml together."""
    params = load_params(
        "tasks", "seeds", "task", "data", "model", "runtime.precision", "finetune", "movement", "graft",
        "localizer", "calibration.bins", "ood", "summary.least_gain", "study", "anchor", "sweep", "readout", "wise", "peft", "paradigm", "trajectory",
    )  # fmt: skip

    from stages.lib.report.format import measured_with
    from stages.lib.report.publish import figures, plot_data, publish
    from stages.study.figures import FIGURES
    from stages.study.frames import cells_of, collect
    from stages.study.report import details, headline, report

    study = collect(cells_of(params), params.summary.least_gain, params.model.mode)
    draw = plot_data(study.data()), figures(FIGURES, study)
    publish("study", report(study, measured_with(params)), headline(study), details(study), *draw, settings=params)


if __name__ == "__main__":
    main()
