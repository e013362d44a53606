"""talos: what all stages of task arithmetic say together."""

from stages.lib.entry import stage
from stages.workflow.settings import load_params


@stage
def main() -> None:
    """Bring the records of the cells named by params.yaml together."""
    params = load_params(
        "tasks", "seeds", "task", "data", "model", "runtime.precision", "finetune", "movement", "graft",
        "localizer", "ood", "summary.least_gain", "talos", "sensitivity", "edit", "arithmetic", "disentangle",
    )  # fmt: skip

    from stages.lib.report.format import measured_with
    from stages.lib.report.publish import figures, plot_data, publish
    from stages.talos.figures import FIGURES
    from stages.talos.frames import collect
    from stages.talos.report import details, headline, report

    talos = collect(params)
    made, draw = report(talos, measured_with(params)), (plot_data(talos.frames), figures(FIGURES, talos))
    publish("talos", made, headline(talos), details(talos), *draw, settings=params)


if __name__ == "__main__":
    main()
