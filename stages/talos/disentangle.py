"""disentangle: how far two tasks' vectors of one method disturb each other, for one seed."""

from skill_grafting.io import make_folders
from stages.workflow.core import paths
from stages.workflow.core.settings import MODEL, load_params
from stages.workflow.core.stage import stage


@stage
def main(method: str, seed: int) -> None:
    """Lay the vectors of each pair over each other, at every point of a grid of coefficients."""
    params = load_params("tasks", "talos.tasks", *MODEL, "graft.region", "disentangle.grid")
    make_folders(paths.stage_dir("disentangle", (method,), seed))

    from skill_grafting import runtime
    from stages.talos.experiment.disentanglement import disentangle

    print("\n".join(disentangle(method, seed, params, runtime.start(params.runtime))))


if __name__ == "__main__":
    main()
