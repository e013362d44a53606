"""sensitivity: how much the pretrained model needs its least sensitive parameters, for all tasks of one seed."""

from stages.lib import paths
from stages.lib.entry import stage
from stages.lib.io import make_folders
from stages.workflow.settings import MODEL, load_params


@stage
def main(seed: int) -> None:
    """Prune the least, the most and random ones; calibrate masks in other ways, and see how alike they are."""
    params = load_params(
        "tasks", *MODEL, "graft.region", "localizer.talos", "talos.tasks", "talos.sparsity", "talos.test_max",
        "sensitivity",
    )  # fmt: skip
    make_folders(paths.reading_dir("sensitivity", (), seed))
    if not params.talos.tasks:
        return

    from stages.lib import runtime
    from stages.talos.sensitivity_masks import measure_sensitivity

    print("\n".join(measure_sensitivity(seed, params, runtime.start(params.runtime))))


if __name__ == "__main__":
    main()
