"""skill: the region of every task in the joint model of one seed, by one localizer, at every size."""

from skill_grafting.io import write_json
from stages.workflow.core import paths
from stages.workflow.core.settings import MODEL, load_localizer, load_params
from stages.workflow.core.stage import stage


@stage
def main(paradigm: str, localizer: str, seed: int) -> None:
    """Find the regions and store them as mask files."""
    params = load_params("tasks", *MODEL, "graft.region", "graft.rule", "multitask.tasks", "skill.sparsities")
    params.localizer = load_localizer(localizer)
    if not params.multitask.tasks:
        # DVC keeps no empty folder within an output, and the next stage depends on one for each size
        for size in params.skill.sparsities:
            write_json(paths.SKILL / paradigm / localizer / str(seed) / str(size) / "none.json", {"tasks": []})
        return

    from skill_grafting import runtime
    from stages.multitask.experiment.task_masks import find_task_masks

    print(find_task_masks(paradigm, localizer, seed, params, runtime.start(params.runtime)))


if __name__ == "__main__":
    main()
