"""DVC's own command line, but a stage's entry is put into dvc.lock without reading and writing all others as YAML.

python -m stages.commands.parallel.quick_dvc repro --single-item STAGE

For each stage that has run DVC parses and dumps the whole file, comments kept: most of what it does where there are hundreds of
stages.  Here an entry takes its place in the text, which comes to the same bytes, under a temporary name and then renamed, so
that a killed run leaves no half of it.
"""

import logging
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stages.lib.io import write_text

# what DVC begins the file with; any other is left to DVC
START = "schema: '2.0'\nstages:\n"


def main() -> None:
    """Run DVC with the words of the command line."""
    # it answers Ctrl-C itself, and removes its locks
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(run(sys.argv[1:]))


def run(words: Sequence[str]) -> int:
    """DVC with these words; gives its exit code."""
    from dvc.cli import main as dvc
    from dvc.dvcfile import Lockfile

    own = Lockfile.dump_stages
    Lockfile.dump_stages = lambda lockfile, stages, **options: dump_stages(own, lockfile, stages, **options)
    return dvc([*words])


def dump_stages(own: Callable[..., None], lockfile: Any, stages: Sequence[Any], **options: Any) -> None:
    """Put the entries of stages into a file of DVC's class Lockfile, as its `own` method of this name does."""
    from dvc.stage.serialize import to_lockfile
    from dvc.utils.serialize import dumps_yaml

    path = Path(lockfile.path)
    before = text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if not is_plain(text):
        own(lockfile, stages, **options)
        return
    for stage in stages:
        entry = dumps_yaml({"stages": to_lockfile(stage, **options)}).partition("\n")[2]
        text = with_entry(text, entry)
    if text != before:
        logging.getLogger("dvc.dvcfile").info("Updating lock file '%s'", lockfile.relpath)
        write_text(path, text)
        lockfile.repo.scm_context.track_file(lockfile.relpath)


def is_plain(text: str) -> bool:
    """Whether a lock file is entries of stages alone, down to the end of its last line: one that was cut is not."""
    return text.startswith(START) and text.endswith("\n") and not re.search(r"^\S", text[len(START) :], re.MULTILINE)


def with_entry(text: str, entry: str) -> str:
    """The text of a lock file with an entry, indented as in there, in place of the one of the same name or at the end."""
    name = entry.partition("\n")[0]
    # up to the next line that is indented as little
    old = re.compile(rf"^{re.escape(name)}\n(?:(?! {{0,2}}\S).*\n)*", re.MULTILINE)
    replaced, times = old.subn(lambda _: entry, text, count=1)
    return replaced if times else text + entry


if __name__ == "__main__":
    main()
