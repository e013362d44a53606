"""continual: the report on sequences of tasks, with the paper's table 4."""

from pathlib import Path

from stages.continual.frames import collect
from stages.workflow.core.settings import load_params
from stages.workflow.core.stage import stage
from stages.workflow.report.publish import publish


@stage
def main() -> None:
    """Write the report from the records of all sequences that params.yaml names."""
    params = load_params(
        "tasks", "seeds", "model", "data", "graft.sparsity", "sequence.methods", "sequence.orders", "order"
    )
    publish("continual", collect(params), Path("stages/continual"), Path("plots/continual"))


if __name__ == "__main__":
    main()
