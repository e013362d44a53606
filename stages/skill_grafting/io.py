"""Reading and writing files: JSON, JSON lines, text; always complete or not there.

Everything is written under a temporary name of its own beside its target and then renamed, so that a file or folder with its
final name is complete.  A stage that is killed leaves at most a `*.partial`, which git and DVC pass over.
"""

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterable, Iterator
from hashlib import file_digest
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .errors import DataError, GraftError, StorageError

STORAGE_PROBLEMS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EIO, errno.ENAMETOOLONG),
    *(errno.ELOOP, errno.ENOTDIR, errno.EISDIR),
)
# files that this process has read: path, size, time of the last change
READ: list[tuple[str, int, int]] = []


@contextlib.contextmanager
def replacing(target: Path, fresh: bool = False) -> Iterator[Path]:
    """Give a temporary path to write a file or folder at; rename it to `target` at the end.

    Raises StorageError if the disk is full or the place can't be written, or, with `fresh`, if there is more than an empty
    folder at `target` by then; it is as before in any case.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(suffix=".partial", prefix=f"{target.name[:50]}.", dir=target.parent) as folder:
            made = Path(folder) / "new" / target.name
            made.parent.mkdir()
            yield made
            _share(made, Path(folder))
            if fresh and (any(target.iterdir()) if target.is_dir() else os.path.lexists(target)):
                raise StorageError(f"{target}: exists by now; remove it or choose another name")
            if target.is_dir() and not made.is_dir():
                raise IsADirectoryError(errno.EISDIR, "a folder stands where a file is to be", str(target))
            _put(made, target, Path(folder))
    except BaseException as error:
        if is_storage_problem(error):
            remedy = "nothing was left behind; fix this and run again"
            raise StorageError(f"{target}: could not be written: {error}; {remedy}") from error
        raise


def require_free(target: Path) -> Path:
    """The absolute path of a folder to be made; StorageError if something but an empty folder is there, or it can't be."""
    target = Path(os.path.normpath(target.absolute()))  # `new/..` is a folder that is there
    try:
        target.lstat()
    except FileNotFoundError:
        return target
    except OSError as error:  # a name that is too long, a file for a folder
        raise StorageError(f"{target}: can't be written: {error.strerror}") from None
    if target.is_symlink() or not target.is_dir() or any(target.iterdir()):
        raise StorageError(f"{target}: is there already; remove it or choose another name")
    return target


def require_no_folder(file: Path) -> Path:
    """Give the path of a file to be written back; StorageError if a folder would have to go for it."""
    if file.is_dir():
        raise StorageError(f"{file}: is a folder, which a file won't replace; choose another name")
    return file


def _put(made: Path, target: Path, folder: Path) -> None:
    """Rename what was made to its target; a folder that stands there, or that another writer puts there meanwhile, goes into `folder`."""
    for turn in count():
        try:
            made.replace(target)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        with contextlib.suppress(FileNotFoundError):
            target.rename(folder / f"old {turn}")


def _share(path: Path, folder: Path) -> None:
    """Give files the permissions of new ones in `folder`, since safetensors makes them readable by their owner only."""
    (folder / "usual").touch()  # to ask for the umask is to change it, for other threads, too
    usual = (folder / "usual").stat().st_mode & 0o066
    for part in (*path.rglob("*"), path):
        if part.is_file() and not part.is_symlink():
            part.chmod(part.stat().st_mode | usual)


def require_permission(file: Path) -> None:
    """Raise OSError for a file that may not be read, which safetensors would call missing."""
    file.open("rb").close()


def is_storage_problem(error: BaseException) -> bool:
    """Say whether an error comes from a disk that is full, may not be written or fails."""
    # safetensors and tokenizers raise types of their own, with the system's error number in the message
    match = re.search(r"\(os error (\d+)\)", str(error)) if not isinstance(error, GraftError) else None
    code = int(match[1]) if match else getattr(error, "errno", None)
    return code in STORAGE_PROBLEMS


def note(*files: Path) -> None:
    """Note files as read by this process, so that a loop resumes only if they are the same; those that aren't there are passed over."""
    found = [(file, file.stat()) for file in files if file.is_file()]
    READ.extend((str(file), about.st_size, about.st_mtime_ns) for file, about in found)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def make_folders(*folders: Path) -> None:
    """Create folders that DVC expects even if no task of the stage is chosen."""
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)


def taken_along(path: Path) -> str:
    """How an experiment that DVC runs in a folder of its own gets what git doesn't have; nothing elsewhere."""
    apart = "/.dvc/tmp/exps/" in Path.cwd().as_posix() and not path.is_absolute()
    return f"; an experiment in a folder of its own takes along what git doesn't have by `-C {path}`" if apart else ""


def require(path: Path, made_by: str) -> Path:
    """Give `path` back if it exists; raise DataError that names the stage which makes it if not."""
    if not path.exists():
        raise DataError(f"{path}: not there; `dvc repro {made_by}` makes it")
    return path


def write_json(path: Path, value: object) -> None:
    """Write `value` as indented JSON; NaN is an error, since JSON knows none."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path, error: type[GraftError] = DataError) -> Any:
    """Read a JSON file; raise `error` that names it if it is missing or damaged."""
    note(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise error(f"{path}: no such file") from None
    except (ValueError, RecursionError) as problem:
        raise error(f"{path}: not valid JSON: {json_problem(problem)}") from None


def json_problem(problem: Exception) -> str:
    """The error of Python's reader of JSON (ValueError or RecursionError), in plain words."""
    if isinstance(problem, RecursionError):
        return "nested too deeply"
    return "a number of too many digits" if "int_max_str_digits" in str(problem) else str(problem)


def write_rows(path: Path, rows: Iterable[dict]) -> None:
    """Write one JSON object a line."""
    with replacing(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def read_rows(path: Path) -> list[dict]:
    """Read what write_rows wrote; raise DataError that names the file if it is missing or damaged."""
    note(path)
    try:
        # split on "\n" alone: text may hold other line separators, which JSON leaves as they are
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (ValueError, RecursionError) as problem:
        raise DataError(f"{path}: damaged: {json_problem(problem)}") from None


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")
