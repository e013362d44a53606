"""continual: what the sequences of tasks show, as the paper's table 4 and what goes with it."""

from pathlib import Path

from stages.workflow.core.settings import load_params
from stages.workflow.core.stage import stage


@stage
def main() -> None:
    """Bring the records of the sequences named by params.yaml together."""
    params = load_params(
        "tasks", "seeds", "model", "data", "graft.sparsity", "sequence.methods", "sequence.orders", "order"
    )

    from stages.continual.frames import collect
    from stages.workflow.report.publish import publish

    publish("continual", collect(params), Path("stages/continual"), Path("plots/continual"))


if __name__ == "__main__":
    main()
