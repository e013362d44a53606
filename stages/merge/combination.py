"""combination: the models of several tasks made into one, in one way, for every group of tasks of one seed."""

from skill_grafting.io import make_folders
from stages.workflow.core import paths
from stages.workflow.core.settings import MODEL, load_localizer, load_params
from stages.workflow.core.stage import stage


@stage
def main(method: str, seed: int) -> None:
    """Merge, choose the weight on dev if there is one, and measure on the test set of every task."""
    params = load_params(
        "tasks", *MODEL, "finetune.train", "graft.region", "graft.rule", "calibration.bins", "merge",
        "combination.search", "combination.shares",
    )  # fmt: skip
    params.localizer = load_localizer(method)
    make_folders(paths.stage_dir("combination", (method,), seed))

    from skill_grafting import runtime
    from stages.merge.merged_models import combine

    machine = runtime.start(params.runtime)
    for group in params.merge.groups:
        print(combine(method, group, seed, params, machine))


if __name__ == "__main__":
    main()
