"""merge: how good models of several tasks are, by the way they were made, as tables, figures and claims."""

from pathlib import Path

from stages.lib.entry import stage
from stages.lib.params import load_params


@stage
def main() -> None:
    """Bring the records of the merged models named by params.yaml together."""
    params = load_params("merge", "combination")

    from stages.lib.report.publish import publish
    from stages.merge.report.collecting import collect
    from stages.merge.report.compose import plot_data, write_report
    from stages.merge.report.figures import figures
    from stages.merge.report.summary import summary

    merged = collect(Path(), params.merge.groups, params.combination.methods, params.combination.seeds)
    publish(
        "merge",
        write_report(merged),
        summary(merged),
        lambda folder: plot_data(merged, folder),
        lambda folder: figures(merged, folder),
    )


if __name__ == "__main__":
    main()
