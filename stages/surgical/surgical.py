"""surgical: what the scores of layers, and fine-tuning of the selected ones, say together."""

from stages.lib.entry import stage
from stages.workflow.settings import load_params


@stage
def main() -> None:
    """Bring the records of the cells named by params.yaml together."""
    params = load_params(
        "tasks", "seeds", "task", "data", "model", "runtime.precision", "finetune", "movement", "graft",
        "localizer.${graft.localizer}", "ood", "fim", "surgery", "robustness", "surgical",
    )  # fmt: skip

    from stages.lib.report.format import measured_with
    from stages.lib.report.publish import figures, plot_data, publish
    from stages.surgical.figures import FIGURES
    from stages.surgical.frames import collect
    from stages.surgical.report import details, headline, report

    data = collect(params)
    made, draw = report(data, measured_with(params)), (plot_data(data.plots), figures(FIGURES, data))
    publish("surgical", made, headline(data), details(data), *draw, settings=params)


if __name__ == "__main__":
    main()
