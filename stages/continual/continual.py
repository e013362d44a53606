"""continual: what the sequences of tasks show, as the paper's table 4 and what goes with it."""

from stages.lib.entry import stage
from stages.workflow.settings import load_params


@stage
def main() -> None:
    """Bring the records of the sequences named by params.yaml together."""
    params = load_params(
        "tasks", "seeds", "task", "data", "model", "runtime.precision", "finetune", "movement", "graft",
        "localizer.${graft.localizer}", "calibration.bins", "ood", "sequence", "order", "method",
    )  # fmt: skip

    from stages.continual.figures import makers
    from stages.continual.report import collect, details, headline, report
    from stages.lib.report.format import measured_with
    from stages.lib.report.publish import figures, plot_data, publish

    data = collect(params.seeds, params.sequence, params.order)
    frames = {"accuracy": data.accuracy, "measure": data.measure, "memory": data.memory}
    made, draw = report(data, measured_with(params)), (plot_data(frames), figures(makers(data), data))
    publish("continual", made, headline(data), details(data), *draw, settings=params)


if __name__ == "__main__":
    main()
