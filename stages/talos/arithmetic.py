"""arithmetic: task addition and negation with the vectors of one method, for all tasks of one seed."""

from skill_grafting.io import make_folders
from stages.workflow.core import paths
from stages.workflow.core.settings import MODEL, load_params
from stages.workflow.core.stage import stage


@stage
def main(method: str, seed: int) -> None:
    """Choose alpha on dev, and measure on test."""
    params = load_params(
        "tasks", *MODEL, "graft.region", "talos.tasks", "talos.test_max", "talos.dev_max", "arithmetic.points",
        "arithmetic.addition", "arithmetic.negation",
    )  # fmt: skip
    make_folders(paths.stage_dir("arithmetic", (method,), seed))
    if not params.talos.tasks:
        return

    from skill_grafting import runtime
    from stages.talos.experiment.vector_arithmetic import add_and_negate

    print("\n".join(add_and_negate(method, seed, params, runtime.start(params.runtime))))


if __name__ == "__main__":
    main()
