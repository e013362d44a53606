"""surgical: what the scores of layers, and fine-tuning of the selected ones, say together."""

from pathlib import Path

from stages.lib.entry import stage
from stages.lib.params import load_params


@stage
def main() -> None:
    """Bring the records of the cells named by params.yaml together."""
    params = load_params("fim", "surgery", "robustness", "surgical")

    from stages.lib.report.publish import publish
    from stages.surgical.report.collecting import collect
    from stages.surgical.report.compose import plot_data, write_report
    from stages.surgical.report.figures import figures
    from stages.surgical.report.summary import summary

    data = collect(Path(), params)
    publish(
        "surgical",
        write_report(data),
        summary(data),
        lambda folder: plot_data(data, folder),
        lambda folder: figures(data, folder),
    )


if __name__ == "__main__":
    main()
