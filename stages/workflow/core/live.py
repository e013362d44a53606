"""Curves of a fine-tuning while it trains, by DVCLive: files that DVC's extension draws, and Studio where `dvc exp run` has a token."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from stages.lib.errors import ParamsError

from . import paths

Report = Callable[[int, Mapping[str, float]], None]


@contextmanager
def live_curves(kind: str, cell: str) -> Iterator[Callable[[Mapping[str, Any]], Report]]:
    """What gives, for a point of the grid, a function that takes a step and what was measured after it.

    With `dvclive` each point has a folder plots/live/CELL/bs8_lr0.05; with `none` nothing is written.  Raises ParamsError
    where dvclive isn't installed.
    """
    if kind == "none":
        yield lambda point: lambda step, values: None
        return
    try:
        from dvclive import Live
    except ImportError:
        raise ParamsError("runtime.live: dvclive is not installed; pip install dvclive, or none") from None
    with ExitStack() as stack:

        def report_of(point: Mapping[str, Any]) -> Report:
            folder = paths.LIVE / cell / f"bs{point['batch_size']}_lr{point['learning_rate']}"
            live = stack.enter_context(Live(str(folder), save_dvc_exp=False, dvcyaml=None))

            def report(step: int, values: Mapping[str, float]) -> None:
                live.step = step
                for name, value in values.items():
                    live.log_metric(name, value)
                live.sync()

            return report

        yield report_of
