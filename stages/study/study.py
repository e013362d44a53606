"""study: the report on the single-task study, with the paper's tables and figures."""

from pathlib import Path

from stages.workflow.core.settings import load_params
from stages.workflow.core.stage import stage


@stage
def main() -> None:
    """Write the report from the records of all cells that params.yaml names."""
    params = load_params(
        "tasks", "seeds", "model", "data", "graft.sparsity", "ood.sets", "summary.least_gain", "study.tasks", "sweep.localizers",
        "sweep.sparsities", "readout.readouts", "readout.localizers", "readout.sparsities", "readout.tasks", "wise.alphas",
        "peft.methods", "peft.tasks", "paradigm.paradigms", "paradigm.tasks", "trajectory.tasks",
    )  # fmt: skip

    from stages.study.frames import collect
    from stages.workflow.report.publish import publish

    publish("study", collect(params), Path("stages/study"), Path("plots/study"))


if __name__ == "__main__":
    main()
