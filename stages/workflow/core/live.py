"""Curves of a fine-tuning while it trains, by DVCLive: files that DVC's extension draws, and Studio where `dvc exp run` has a token."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from skill_grafting.errors import ParamsError
from skill_grafting.training.finetuning import Log, Point, no_log

from . import paths


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
