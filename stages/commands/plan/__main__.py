"""plan: what `dvc repro` would do, what is cached, and what it costs, before anything starts.

python -m stages.commands.plan                    the main pipeline
python -m stages.commands.plan study              another pipeline, with what it needs of the main one
python -m stages.commands.plan study --stages     every single stage, and why it runs
python -m stages.commands.plan --line             one line

Nothing is executed, fetched or written, but what a killed run has left damaged is mended.
"""

import argparse
import sys
from pathlib import Path

from stages.lib import paths
from stages.lib.entry import guarded
from stages.lib.errors import ParamsError, did_you_mean


def main() -> None:
    """Parse the command line and do what it says."""
    parser = argparse.ArgumentParser(
        prog="python -m stages.commands.plan", description="Say what a run would do and cost."
    )
    parser.add_argument(
        "pipelines", nargs="*", help="folders of stages with a dvc.yaml, or these files; none for the main pipeline"
    )
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--stages", action="store_true", help="every single stage, and why it runs")
    shown.add_argument("--line", action="store_true", help="one line only")
    arguments = parser.parse_args()
    files = [_file(name) for name in arguments.pipelines] or [paths.PIPELINE]
    pipelines = [file.parent.name for file in files if file != paths.PIPELINE]

    from rich.console import Console

    from stages.commands.plan.costs import Costs, measure_slowness
    from stages.commands.plan.format import line, single_table, table
    from stages.commands.plan.predicted_steps import predict_steps
    from stages.workflow.settings import checked, read_files, with_localizers

    values, left_out = checked(read_files(["", *pipelines]))
    steps = predict_steps(files)
    costs = Costs(with_localizers(values), measure_slowness(values["runtime"].threads))
    sys.stdout.reconfigure(errors="replace")
    console = Console(highlight=False)
    if not arguments.line:
        console.print((single_table if arguments.stages else table)(steps, costs))
    for told in left_out:
        console.print(told, soft_wrap=True)
    console.print(line(steps, costs), soft_wrap=arguments.line)


def _file(pipeline: str) -> Path:
    """The dvc.yaml of a pipeline, or that file itself; raises ParamsError with the nearest name."""
    known = {path.parent.name: path for path in sorted(paths.PIPELINES.glob("*/dvc.yaml"))}
    if (file := Path(pipeline)) in (paths.PIPELINE, *known.values()):
        return file
    if pipeline not in known:
        names = ", ".join(known) or "none"
        raise ParamsError(f"unknown pipeline {pipeline!r}{did_you_mean(pipeline, known)}; known: {names}")
    return known[pipeline]


if __name__ == "__main__":
    guarded("plan", main)
