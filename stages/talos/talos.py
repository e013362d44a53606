"""talos: the report on task arithmetic."""

from pathlib import Path

from stages.workflow.core.settings import load_params
from stages.workflow.core.stage import stage


@stage
def main() -> None:
    """Write the report from the records of all cells that params.yaml names."""
    params = load_params(
        "tasks", "seeds", "model", "data", "graft.sparsity", "summary.least_gain", "talos.tasks", "edit.methods",
        "arithmetic.methods", "disentangle",
    )  # fmt: skip

    from stages.talos.frames import collect
    from stages.workflow.report.publish import publish

    publish("talos", collect(params), Path("stages/talos"), Path("plots/talos"))


if __name__ == "__main__":
    main()
