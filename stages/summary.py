"""summary: the report of the main pipeline, as tables, figures and claims."""

from pathlib import Path

from stages.workflow.core.settings import load_params
from stages.workflow.core.stage import stage


@stage
def main() -> None:
    """Write the report from the records of all cells that params.yaml names."""
    params = load_params("tasks", "seeds", "data", "model", "graft.sparsity", "calibration.bins", "ood", "summary")

    from stages.frames import collect
    from stages.workflow.report.publish import publish

    publish("summary", collect(params), Path("stages"), Path("plots"))


if __name__ == "__main__":
    main()
