"""joint: one model fine-tuned on several tasks at once, in one way, for one seed."""

from types import SimpleNamespace

from stages.lib import paths
from stages.lib.entry import stage
from stages.lib.io import read_rows, replacing, write_json
from stages.lib.params import load_params


@stage
def main(paradigm: str, seed: int) -> None:
    """Fine-tune, choosing the grid point by the mean dev score, and save a model folder with the tasks' heads."""
    params = load_params(
        "model", "runtime", "finetune", "multitask.tasks", "joint.step_factor", "joint.eval_steps", "joint.adamw",
    )  # fmt: skip

    from stages.lib import runtime
    from stages.lib.data.task_cards import read_task
    from stages.lib.progress import progress
    from stages.lib.training.optimizers import settings_of
    from stages.multitask.joint_model import save_joint
    from stages.multitask.joint_training import joint_steps, train_joint

    names = params.multitask.tasks
    rows = {name: {split: read_rows(paths.sample(name, seed, split)) for split in ("train", "dev")} for name in names}
    how = settings_of(paradigm, params.finetune, params.joint.adamw)
    settings = SimpleNamespace(
        **{**vars(how), "step_factor": params.joint.step_factor, "eval_steps": params.joint.eval_steps}
    )
    tasks, machine = [read_task(name) for name in names], runtime.start(params.runtime)
    steps = joint_steps(settings, tasks, rows) * len(settings.batch_sizes) * len(settings.learning_rates)
    with progress(f"joint {paradigm} {seed}", steps, "step") as bar:
        best = train_joint(paths.PRETRAINED, tasks, rows, seed, params.model, settings, machine, bar.update)
    with replacing(paths.joint(paradigm, seed)) as folder:
        save_joint(best.shared, folder)
        write_json(folder / "training.json", {"tasks": names, "paradigm": paradigm, "seed": seed, **best.record})
    print(f"joint {paradigm} {seed}: mean dev accuracy {best.record['dev_accuracy']:.3f}, {best.record['chosen']}")


if __name__ == "__main__":
    main()
