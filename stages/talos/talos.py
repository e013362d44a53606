"""talos: what all stages of task arithmetic say together."""

from stages.lib.entry import stage
from stages.lib.params import load_params


@stage
def main() -> None:
    """Bring the records of the cells named by params.yaml together."""
    params = load_params("talos.tasks", "talos.seeds", "edit.methods", "arithmetic.methods", "disentangle")

    from stages.lib.report.publish import publish
    from stages.talos.report.collecting import collect
    from stages.talos.report.compose import write_report
    from stages.talos.report.data import plot_data
    from stages.talos.report.figures import figures
    from stages.talos.report.summary import summary

    talos = collect(params)
    publish(
        "talos",
        write_report(talos),
        summary(talos),
        lambda folder: plot_data(talos, folder),
        lambda folder: figures(talos, folder),
    )


if __name__ == "__main__":
    main()
