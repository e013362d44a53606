"""DVC's own command line, but a stage's entry is put into dvc.lock without reading and writing all others as YAML.

python -m stages.commands.parallel.quick_dvc repro --single-item STAGE

For each stage that has run DVC parses and dumps the whole file, comments kept: most of what it does where there are hundreds of
stages.  Here an entry takes its place in the text, which comes to the same bytes, under a temporary name and then renamed, so
that a killed run leaves no half of it.  Where one stage alone is asked for, its entry is all that is read of the file.  And
params.yaml is parsed once, where DVC does it several times for a stage.
"""

import logging
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.lib.io import write_text

if TYPE_CHECKING:
    from dvc.dvcfile import Lockfile
    from dvc.stage import Stage

# what DVC begins the file with; any other is left to DVC
START = "schema: '2.0'\nstages:\n"
SINGLE = "--single-item"


def main() -> None:
    """Run DVC with the words of the command line."""
    # it answers Ctrl-C itself, and removes its locks
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(run(sys.argv[1:]))


def run(words: Sequence[str]) -> int:
    """DVC with these words; gives its exit code."""
    from dvc.cli import main as dvc
    from dvc.dvcfile import Lockfile

    dump, load = Lockfile.dump_stages, Lockfile.load
    Lockfile.dump_stages = lambda lockfile, stages, **options: dump_stages(dump, lockfile, stages, **options)
    if SINGLE not in words:
        return dvc([*words])
    names = [word.rpartition(":")[2] for word in words[words.index(SINGLE) + 1 :]]
    Lockfile.load = lambda lockfile: load_entries(load, lockfile, names)
    with settings_read_once():
        return dvc([*words])


@contextmanager
def settings_read_once() -> Iterator[None]:
    """Spare DVC to parse params.yaml anew for each stage, unless it was changed, and to walk through all of it for each setting."""
    from dvc.dependency import param

    @cache
    def load(fs: object, path: str, _changed: int) -> dict[str, Any]:
        return param.load_path(path, fs)

    def read(fs: object, path: str, keys: list[str] | None = None, flatten: bool = False) -> dict[str, Any]:
        if not (keys and flatten):
            return own(fs, path, keys, flatten)
        values = load(fs, path, Path(path).stat().st_mtime_ns)
        return {key: found[0] for key in keys if (found := _setting(values, key))}

    own = param.read_param_file
    param.read_param_file = read
    try:
        yield
    finally:
        param.read_param_file = own


def _setting(values: object, key: str) -> tuple[Any, ...]:
    """The value at a dotted key, or nothing."""
    for name in key.split("."):
        if not isinstance(values, dict) or name not in values:
            return ()
        values = values[name]
    return (values,)


def load_entries(own: Callable[..., Any], lockfile: "Lockfile", names: Sequence[str]) -> dict[str, Any]:
    """The part of a file of DVC's class Lockfile on stages with these names, as its `own` method gives of all."""
    from dvc.utils.serialize import parse_yaml

    path = Path(lockfile.path)
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if not is_plain(text):
        return own(lockfile)
    entries = [entry[0] for name in names if (entry := _pattern(f"  {name}:").search(text))]
    return lockfile.validate(parse_yaml(START + "".join(entries) if entries else START.strip() + " {}", path))


def dump_stages(own: Callable[..., None], lockfile: "Lockfile", stages: Sequence["Stage"], **options: Any) -> None:
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
    """True if a lock file is entries of stages alone, down to the end of its last line: one that was cut is not."""
    return text.startswith(START) and text.endswith("\n") and not re.search(r"^\S", text[len(START) :], re.MULTILINE)


def with_entry(text: str, entry: str) -> str:
    """The text of a lock file with an entry, indented as in there, in place of the one of the same name or at the end."""
    replaced, times = _pattern(entry.partition("\n")[0]).subn(lambda _: entry, text, count=1)
    return replaced if times else text + entry


def _pattern(head: str) -> re.Pattern[str]:
    """An entry that begins with this line: up to the next line that is indented as little."""
    return re.compile(rf"^{re.escape(head)}\n(?:(?! {{0,2}}\S).*\n)*", re.MULTILINE)


if __name__ == "__main__":
    main()
