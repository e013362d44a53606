"""multitask: what all stages of multi-task learning say together, as the paper's figures 8 and 11 to 14."""

from pathlib import Path

from stages.lib.entry import stage
from stages.lib.params import load_params


@stage
def main() -> None:
    """Bring the records of the cells named by params.yaml together."""
    params = load_params("multitask", "joint.paradigms", "skill", "transfer")

    from stages.lib.report.publish import publish
    from stages.multitask.report.collecting import collect
    from stages.multitask.report.compose import write_report
    from stages.multitask.report.data import plot_data
    from stages.multitask.report.figures import figures
    from stages.multitask.report.summary import summary

    found = collect(Path(), params)
    publish(
        "multitask",
        write_report(found),
        summary(found),
        lambda folder: plot_data(found, folder),
        lambda folder: figures(found, folder),
    )


if __name__ == "__main__":
    main()
