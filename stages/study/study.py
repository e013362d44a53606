"""study: what all stages of the single-task study say together, as the paper's tables and figures."""

from pathlib import Path

from stages.lib.entry import stage
from stages.lib.params import load_params


@stage
def main() -> None:
    """Bring the records of the cells named by params.yaml together."""
    params = load_params("study", "ood", "sweep", "readout", "wise", "peft", "paradigm", "trajectory")

    from stages.lib.report.publish import publish
    from stages.study.report.cells import study_cells
    from stages.study.report.collecting import collect
    from stages.study.report.compose import write_report
    from stages.study.report.data import plot_data
    from stages.study.report.figures import figures
    from stages.study.report.summary import summary

    study = collect(Path(), study_cells(params))
    publish(
        "study",
        write_report(study),
        summary(study),
        lambda folder: plot_data(study, folder),
        lambda folder: figures(study, folder),
    )


if __name__ == "__main__":
    main()
