"""An experiment of DVC whose stages run side by side.

`dvc exp run` changes the settings, runs the stages one after another, and keeps all that they made as an experiment.  Here the
runner comes between the first and the second, so that DVC finds nothing left to run.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from dvc.exceptions import DvcException
from dvc.repo import Repo
from dvc.stage import Stage

from stages.commands.parallel.bound import bound
from stages.commands.parallel.quick_dvc import run

RUNNER = (sys.executable, "-m", "stages.commands.parallel")


def run_experiment(
    settings: Sequence[str],
    name: str | None,
    words: Sequence[str],
    targets: Sequence[str],
    environment: Mapping[str, str] | None = None,
) -> int:
    """`dvc exp run -S SETTING ... -n NAME TARGET ...` by the runner, with these words and in this environment; gives DVC's exit code."""
    own = Repo.reproduce

    def reproduce(repo: Repo, *arguments: Any, **options: Any) -> list[Stage]:
        # not in this process, whose signals and whose notes of what is in the files are DVC's
        # `subprocess.run` would kill it soon after Ctrl-C, while it still ends its stages
        with subprocess.Popen(bound([*RUNNER, *words, *targets]), env=os.environ | (environment or {})) as runner:
            failed = runner.wait()
        if failed:
            raise DvcException("a stage failed; the settings stay as they were changed, as with `dvc exp run`")
        return own(repo, *arguments, **options)

    Repo.reproduce = reproduce
    # it warns of each output, of all pipelines, that other seeds or tasks will have: hundreds of lines
    logging.getLogger("dvc_data.index.checkout").setLevel(logging.ERROR)
    try:
        flags = [flag for setting in settings for flag in ("--set-param", setting)]
        return run(["exp", "run", *flags, *(("--name", name) if name else ()), *targets])
    finally:
        Repo.reproduce = own
