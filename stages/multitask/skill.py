"""skill: the region of every task in the joint model of one seed, by one localizer, at every size (paper, section 5.1)."""

from skill_grafting.grafting.mask import GraftMask
from skill_grafting.grafting.mask_files import StoredMask, write_mask
from skill_grafting.support.io import write_json
from skill_grafting.support.progress import progress
from stages.multitask.joint_model import JointCell, open_joint
from stages.multitask.settings import Settings
from stages.text.models.objective import draws
from stages.text.tasks.runtime import Runtime
from stages.workflow.stage import paths
from stages.workflow.stage.decorator import stage


def find_task_masks(paradigm: str, name: str, seed: int, params: Settings, machine: Runtime) -> str:
    """Store every task's region of every size, by one localizer; returns a line for the log."""
    cell = open_joint(paradigm, seed, params.multitask.tasks, params, machine)
    sparsities = params.skill.sparsities
    title = f"skill {paradigm} {name} {seed}"
    with progress(title, len(params.multitask.tasks) * len(sparsities), "region") as bar:
        for task in params.multitask.tasks:
            # the task's head goes with its regions, if it has one
            head = {key: part.detach().cpu() for key, part in cell.shared.heads()[task].items()}
            about = {**cell.header(), **cell.origin(), "task": task, "localizer": name}
            for sparsity, mask in task_masks(cell, task, name, params).items():
                path = paths.mask("skill", task, seed, paradigm, name, str(sparsity))
                stored = StoredMask(mask, cell.values_at(mask), head, {**about, "found": mask.record})
                write_mask(path, stored)
                bar.update()
    sizes = ", ".join(map(str, sparsities))
    return f"{title}: regions of {sizes} for {', '.join(params.multitask.tasks)}"


def task_masks(cell: JointCell, task: str, name: str, params: Settings) -> dict[float, GraftMask]:
    """Sparsity -> region of a task, for the loss on its training rows, with the joint model as the fine-tuned one.

    A region does not depend on which other sizes there are.
    """
    words, localizer = ("skill", name, task, cell.seed), getattr(params.localizer, name)
    loss = cell.objective_of(task, words, cell.rows_of(task, "dev"))
    return cell.masks(localizer, params.skill.sparsities, "skill.sparsities", loss, draws(*words))


@stage
def main(params: Settings, machine: Runtime, paradigm: str, localizer: str, seed: int) -> None:
    """Find the regions and store them as mask files."""
    if not params.multitask.tasks:
        # DVC keeps no empty folder within an output, and the next stage depends on one for each size
        for size in params.skill.sparsities:
            write_json(
                paths.mask("skill", "none", seed, paradigm, localizer, str(size)).with_suffix(".json"), {"tasks": []}
            )
        return
    print(find_task_masks(paradigm, localizer, seed, params, machine))
