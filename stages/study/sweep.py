"""sweep: the masks of one localizer at every size, and how good their grafts are, for all tasks of one seed."""

from itertools import product

from skill_grafting.io import make_folders
from stages.workflow.core import paths
from stages.workflow.core.settings import MODEL, load_params
from stages.workflow.core.stage import stage


@stage
def main(localizer: str, seed: int) -> None:
    """Find the masks, graft, and measure."""
    params = load_params(
        "tasks", *MODEL, "graft.region", "graft.rule", "calibration.bins", "study.tasks", "study.test_max", "sweep.sparsities",
        f"localizer.{localizer}",
    )  # fmt: skip
    make_folders(paths.SWEEP / localizer / str(seed), paths.METRICS / "sweep" / localizer / str(seed))

    from skill_grafting import runtime
    from stages.study.localizer_sweep import sweep

    machine = runtime.start(params.runtime)
    for sparsity, task in product(params.sweep.sparsities, params.study.tasks):
        print(sweep(localizer, str(sparsity), task, seed, params, machine))


if __name__ == "__main__":
    main()
