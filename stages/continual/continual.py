"""continual: what the sequences of tasks show, as the paper's table 4 and what goes with it."""

from pathlib import Path

from stages.lib.entry import stage
from stages.lib.params import load_params


@stage
def main() -> None:
    """Bring the records of the sequences named by params.yaml together."""
    params = load_params("sequence", "order")

    from stages.continual.report.collecting import collect
    from stages.continual.report.compose import write_report
    from stages.continual.report.data import plot_data
    from stages.continual.report.figures import figures
    from stages.continual.report.summary import summary
    from stages.lib.report.publish import publish

    found = collect(Path(), params.sequence, params.order)
    publish(
        "continual",
        write_report(found),
        summary(found),
        lambda folder: plot_data(found, folder),
        lambda folder: figures(found, folder),
    )


if __name__ == "__main__":
    main()
