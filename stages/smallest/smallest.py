"""smallest: the report on the smallest grafts that bring most of the gain."""

from pathlib import Path

from stages.workflow.core.settings import load_params
from stages.workflow.core.stage import stage


@stage
def main() -> None:
    """Write the report from the records of all searches that params.yaml names."""
    params = load_params("tasks", "seeds", "model", "data", "graft.sparsity", "summary.least_gain", "smallest")

    from stages.smallest.frames import collect
    from stages.workflow.report.publish import publish

    publish("smallest", collect(params), Path("stages/smallest"), Path("plots/smallest"))


if __name__ == "__main__":
    main()
