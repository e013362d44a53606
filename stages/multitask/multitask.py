"""multitask: what all stages of multi-task learning say together, as the paper's figures 8 and 11 to 14."""

from stages.lib.entry import stage
from stages.workflow.settings import load_params


@stage
def main() -> None:
    """Bring the records of the cells named by params.yaml together."""
    params = load_params(
        "tasks", "seeds", "task", "data", "model", "runtime.precision", "finetune", "graft.region", "graft.rule",
        "localizer", "calibration.bins", "ood", "summary.least_gain", "multitask", "joint", "skill", "transfer",
    )  # fmt: skip

    from stages.lib.report.format import measured_with
    from stages.lib.report.publish import figures, plot_data, publish
    from stages.multitask.figures import makers
    from stages.multitask.load import collect
    from stages.multitask.report import details, headline, report

    data = collect(params)
    frames = {"level": data.levels, "gain": data.gains, "overlap": data.overlaps}
    made, draw = report(data, measured_with(params)), (plot_data(frames), figures(makers(data), data))
    publish("multitask", made, headline(data), details(data), *draw, settings=params)


if __name__ == "__main__":
    main()
