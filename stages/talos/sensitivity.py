"""sensitivity: how much the pretrained model needs its least sensitive parameters, for all tasks of one seed."""

from skill_grafting.io import make_folders
from stages.workflow.core import paths
from stages.workflow.core.settings import MODEL, load_params
from stages.workflow.core.stage import stage


@stage
def main(seed: int) -> None:
    """Prune the least, the most and random ones; calibrate masks in other ways, and measure how much they overlap."""
    params = load_params(
        "tasks", *MODEL, "graft.region", "localizer.talos", "talos.tasks", "talos.sparsity", "talos.test_max",
        "sensitivity",
    )  # fmt: skip
    make_folders(paths.stage_dir("sensitivity", (), seed))
    if not params.talos.tasks:
        return

    from skill_grafting import runtime
    from stages.talos.experiment.sensitivity_masks import measure_sensitivity

    print("\n".join(measure_sensitivity(seed, params, runtime.start(params.runtime))))


if __name__ == "__main__":
    main()
