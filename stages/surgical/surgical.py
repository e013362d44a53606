"""surgical: the report on layer scores and on fine-tuning of selected layers."""

from pathlib import Path

from stages.workflow.core.settings import load_params
from stages.workflow.core.stage import stage


@stage
def main() -> None:
    """Write the report from the records of all cells that params.yaml names."""
    params = load_params(
        "tasks", "seeds", "model", "data", "graft.sparsity", "graft.localizer", "fim.tasks", "surgery.selections",
        "surgery.tasks", "surgery.score", "robustness.tasks", "surgical",
    )  # fmt: skip

    from stages.surgical.frames import collect
    from stages.workflow.report.publish import publish

    publish("surgical", collect(params), Path("stages/surgical"), Path("plots/surgical"))


if __name__ == "__main__":
    main()
