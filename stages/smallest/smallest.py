"""smallest: how small the grafts are that bring most of the gain, as tables, a figure and claims."""

from pathlib import Path

from stages.workflow.core.settings import load_params
from stages.workflow.core.stage import stage


@stage
def main() -> None:
    """Bring the records of the searches named by params.yaml together."""
    params = load_params("tasks", "seeds", "model", "data", "graft.sparsity", "summary.least_gain", "smallest")

    from stages.smallest.frames import collect
    from stages.workflow.report.publish import publish

    publish("smallest", collect(params), Path("stages/smallest"), Path("plots/smallest"))


if __name__ == "__main__":
    main()
