"""multitask: the report on multi-task learning, with the paper's figures 8 and 11 to 14."""

from pathlib import Path

from stages.multitask.frames import collect
from stages.workflow.core.settings import load_params
from stages.workflow.core.stage import stage
from stages.workflow.report.publish import publish


@stage
def main() -> None:
    """Write the report from the records of all cells that params.yaml names."""
    params = load_params(
        "tasks", "seeds", "model", "data", "graft.sparsity", "summary.least_gain", "multitask", "joint.paradigms", "skill",
        "transfer",
    )  # fmt: skip
    publish("multitask", collect(params), Path("stages/multitask"), Path("plots/multitask"))


if __name__ == "__main__":
    main()
