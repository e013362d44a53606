"""merge: how good models of several tasks are, by the way they were made."""

from pathlib import Path

from stages.workflow.core.settings import load_params
from stages.workflow.core.stage import stage


@stage
def main() -> None:
    """Bring the records of the merged models named by params.yaml together."""
    params = load_params(
        "tasks", "seeds", "model", "data", "graft.sparsity", "summary.least_gain", "merge.groups", "combination.methods"
    )

    from stages.merge.frames import collect
    from stages.workflow.report.publish import publish

    publish("merge", collect(params), Path("stages/merge"), Path("plots/merge"))


if __name__ == "__main__":
    main()
