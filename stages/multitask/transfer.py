"""transfer: every region of one joint model, and every union of them, grafted and tested on every task."""

from skill_grafting.io import make_folders
from stages.workflow.core import paths
from stages.workflow.core.settings import MODEL, load_params
from stages.workflow.core.stage import stage


@stage
def main(paradigm: str, localizer: str, sparsity: str, seed: int) -> None:
    """Graft, predict, and purify unions on the way."""
    params = load_params(
        "tasks", *MODEL, "graft.region", "localizer.learned", "calibration.bins", "multitask.tasks",
        "multitask.test_max", "multitask.groups", "transfer",
    )  # fmt: skip
    make_folders(paths.stage_dir("transfer", (paradigm, localizer, sparsity), seed))
    if not params.multitask.tasks:
        return

    from skill_grafting import runtime
    from stages.multitask.experiment.transfer_matrix import transfer

    print(transfer(paradigm, localizer, sparsity, seed, params, runtime.start(params.runtime)))


if __name__ == "__main__":
    main()
