"""edit: the task vectors of one method, for all tasks of one seed."""

from skill_grafting.io import make_folders
from stages.workflow.core import paths
from stages.workflow.core.settings import MODEL, load_localizer, load_params
from stages.workflow.core.stage import stage


@stage
def main(method: str, seed: int) -> None:
    """Train them, or take them from the main pipeline, and see what each does to every task."""
    params = load_params(
        "tasks", *MODEL, "finetune.optimizer", "finetune.momentum", "graft.region", "graft.rule", "talos.tasks",
        "talos.sparsity", "talos.test_max", "edit.training",
    )  # fmt: skip
    params.localizer = load_localizer(method)
    make_folders(paths.EDIT / method / str(seed), paths.stage_dir("edit", (method,), seed))
    if not params.talos.tasks:
        return

    from skill_grafting import runtime
    from stages.talos.experiment.task_vectors import make_vectors

    print("\n".join(make_vectors(method, seed, params, runtime.start(params.runtime))))


if __name__ == "__main__":
    main()
