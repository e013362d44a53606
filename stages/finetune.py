"""finetune: the pretrained model fine-tuned on the k-shot data of one (task, seed), here or elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from skill_grafting import runtime
from skill_grafting.errors import ParamsError
from skill_grafting.io import replacing, write_json
from skill_grafting.models.loading import save_model
from skill_grafting.progress import progress
from skill_grafting.training.finetuning import Log, Point, finetune, no_log
from skill_grafting.training.taking_over import take_over
from stages.workflow.core import paths
from stages.workflow.core.settings import MODEL, load_params
from stages.workflow.core.stage import stage
from stages.workflow.core.training import open_training


@contextmanager
def live_curves(kind: str, cell: str) -> Iterator[Callable[[Point], Log]]:
    """What gives, for a point of the grid, a function that takes a step and what was measured after it.

    With `dvclive` each point has a folder plots/live/CELL/bs8_lr0.05; with `none` nothing is written.  Raises ParamsError
    where dvclive isn't installed.
    """
    if kind == "none":
        yield no_log
        return
    try:
        from dvclive import Live
    except ImportError:
        raise ParamsError("runtime.live: dvclive is not installed; pip install dvclive, or none") from None
    with ExitStack() as stack:

        def log_of(point: Point) -> Log:
            folder = paths.LIVE / cell / f"bs{point['batch_size']}_lr{point['learning_rate']}"
            live = stack.enter_context(Live(str(folder), save_dvc_exp=False, dvcyaml=None))

            def log(step: int, values: dict[str, float]) -> None:
                live.step = step
                for name, value in values.items():
                    live.log_metric(name, value)
                live.sync()

            return log

        yield log_of


@stage
def main(task: str, seed: int) -> None:
    """Fine-tune, choosing the grid point on dev, or use a checkpoint from elsewhere; save an ordinary model folder."""
    params = load_params(*MODEL, "finetune")
    cell = open_training(task, seed, params.model, runtime.start(params.runtime))
    if params.finetune.source == "train":
        with (
            progress(f"finetune {task}-{seed}", cell.total_steps(params.finetune), "step") as bar,
            live_curves(params.runtime.live, f"{task}-{seed}") as log_of,
        ):
            best = finetune(cell, params.finetune, bar.update, log_of=log_of)
    else:
        best = take_over(cell, params.finetune, cell.task.checkpoint_of(seed))
    with replacing(paths.finetuned(task, seed)) as folder:
        write_json(folder / "training.json", {"task": task, "seed": seed, **best.record})
        save_model(best.model.model, best.model.tokenizer, folder)
    measure = "exact match" if params.model.mode == "generative" else "accuracy"
    print(
        f"finetune {task}-{seed}: dev {measure} {best.record['dev_accuracy']:.3f}, {best.record.get('chosen') or best.record['checkpoint']}"
    )


if __name__ == "__main__":
    main()
