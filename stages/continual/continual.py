"""continual: what the sequences of tasks show, as the paper's table 4 and what goes with it."""

from stages.lib.entry import stage
from stages.lib.params import load_params


@stage
def main() -> None:
    """Bring the records of the sequences named by params.yaml together."""
    params = load_params("sequence", "order")

    from stages.continual.figures import makers
    from stages.continual.report import collect, numbers, report
    from stages.lib.report.publish import figures, plot_data, publish

    data = collect(params.sequence, params.order)
    frames = {"accuracy": data.accuracy, "measure": data.measure, "memory": data.memory}
    publish("continual", report(data), numbers(data), plot_data(frames, exact=()), figures(makers(data), data))


if __name__ == "__main__":
    main()
