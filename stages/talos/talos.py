"""talos: what all stages of task arithmetic say together."""

from stages.lib.entry import stage
from stages.lib.params import load_params


@stage
def main() -> None:
    """Bring the records of the cells named by params.yaml together."""
    params = load_params("talos.tasks", "talos.seeds", "edit.methods", "arithmetic.methods", "disentangle")

    from stages.lib.report.publish import publish
    from stages.lib.report.talos.collecting import collect
    from stages.lib.report.talos.compose import write_report
    from stages.lib.report.talos.data import plot_data
    from stages.lib.report.talos.figures import figures
    from stages.lib.report.talos.summary import summary

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
