"""merge: the report on models of several tasks, by merging method."""

from pathlib import Path

from stages.merge.frames import collect
from stages.workflow.core.settings import load_params
from stages.workflow.core.stage import stage
from stages.workflow.report.publish import publish


@stage
def main() -> None:
    """Write the report from the records of all merged models that params.yaml names."""
    params = load_params(
        "tasks", "seeds", "model", "data", "graft.sparsity", "summary.least_gain", "merge.groups", "combination.methods"
    )
    publish("merge", collect(params), Path("stages/merge"), Path("plots/merge"))


if __name__ == "__main__":
    main()
