"""joint: one model fine-tuned on several tasks at once, in one way, for one seed."""

from skill_grafting.io import make_folders, read_rows, replacing, write_sealed
from stages.workflow.core import paths
from stages.workflow.core.settings import MODEL, load_params
from stages.workflow.core.stage import stage


@stage
def main(paradigm: str, seed: int) -> None:
    """Fine-tune, choosing the grid point by the mean dev score, and save a model folder with the tasks' heads."""
    params = load_params(
        "tasks", *MODEL, "finetune", "multitask.tasks", "joint.step_factor", "joint.eval_steps", "joint.adamw"
    )
    if not params.multitask.tasks:
        make_folders(paths.joint(paradigm, seed))
        return

    from skill_grafting import runtime
    from skill_grafting.progress import progress
    from skill_grafting.training.finetuning import settings_of
    from stages.multitask.experiment.joint_model import save_joint
    from stages.multitask.experiment.joint_training import JointPlan, train_joint
    from stages.workflow.core.stored import read_task

    names, joint = params.multitask.tasks, params.joint
    rows = {name: {split: read_rows(paths.sample(name, seed, split)) for split in ("train", "dev")} for name in names}
    finetune = settings_of(paradigm, params.finetune, joint.adamw).model_copy(update={"eval_steps": joint.eval_steps})
    how = JointPlan([read_task(name) for name in names], rows, seed, finetune, joint.step_factor)
    machine = runtime.start(params.runtime)
    steps = how.steps * len(finetune.batch_sizes) * len(finetune.learning_rates)
    with progress(f"joint {paradigm} {seed}", steps, "step") as bar:
        shared, record = train_joint(paths.PRETRAINED, how, params.model, machine, bar.update)
    with replacing(paths.joint(paradigm, seed)) as folder:
        write_sealed(folder / "training.json", {"tasks": names, "paradigm": paradigm, "seed": seed, **record})
        save_joint(shared, folder)
    print(f"joint {paradigm} {seed}: mean dev accuracy {record['dev_accuracy']:.3f}, {record['chosen']}")


if __name__ == "__main__":
    main()
