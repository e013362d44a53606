"""wise: WiSE-FT and WiSE-graft, all the way from the pretrained to the fine-tuned or grafted model."""

from skill_grafting.io import make_folders
from stages.workflow.core import paths
from stages.workflow.core.settings import MODEL, load_params
from stages.workflow.core.stage import stage


@stage
def main(seed: int) -> None:
    """Measure both interpolations of every task that has out-of-distribution test sets."""
    params = load_params(
        "tasks", *MODEL, "graft.region", "calibration.bins", "study.tasks", "study.test_max", "wise.alphas"
    )
    make_folders(paths.stage_dir("wise", (), seed))

    from skill_grafting import runtime
    from stages.study.interpolation_grid import interpolate

    machine = runtime.start(params.runtime)
    for task in params.study.tasks if params.wise.alphas else []:
        print(interpolate(task, seed, params, machine))


if __name__ == "__main__":
    main()
