"""Files and folders that are complete or not there.

Everything is written under a temporary name of its own beside its target and then renamed, so that a file or folder with its
final name is complete.  A process that is killed leaves at most a `*.partial`.
"""

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from .errors import GraftError, StorageError

WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
STORAGE_PROBLEMS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EIO, errno.ENAMETOOLONG),
    *(errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
)


@contextlib.contextmanager
def replacing(target: Path, fresh: bool = False) -> Iterator[Path]:
    """Give a temporary path to write a file or folder at; rename it to `target` at the end.

    Only regular files, folders and nothing are replaced: StorageError for a device, a pipe, a link or a read-only file, or, with
    `fresh`, if there is more than an empty folder at `target` by then, and if the disk is full or the place can't be written.  What
    is there is as before in any case.
    """
    _require_replaceable(target)
    try:
        with _beside(target) as folder:
            made = Path(folder) / "new" / target.name
            made.parent.mkdir()
            yield made
            _share(made, Path(folder))
            if fresh and (any(target.iterdir()) if target.is_dir() else os.path.lexists(target)):
                raise StorageError(f"{target}: exists by now; remove it or choose another name")
            _require_replaceable(target)
            if target.is_dir() and not made.is_dir():
                raise StorageError(f"{target}: is a folder, which a file doesn't replace; choose another name")
            _put(made, target, Path(folder))
    except BaseException as error:
        if is_storage_problem(error):
            remedy = "nothing was left behind; fix this and run again"
            raise StorageError(f"{target}: could not be written: {error}; {remedy}") from error
        raise


def _beside(target: Path) -> TemporaryDirectory[str]:
    """A temporary folder in that of the target, which is made, too; StorageError for a place that takes no folders, such as /proc."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return TemporaryDirectory(suffix=".partial", prefix=f"{target.name[:50]}.", dir=target.parent)
    except OSError as error:
        if is_storage_problem(error):
            raise
        raise StorageError(f"{target}: can't be written: {error.strerror}; choose another place") from error


def _require_replaceable(target: Path) -> None:
    """Raise StorageError for what is more than a file of somebody's own: root can replace a device of the machine."""
    try:
        found = target.lstat()
    except OSError:  # nothing there, or no place at all, which shows in writing
        return
    mode = found.st_mode
    what = "a link" if stat.S_ISLNK(mode) else "" if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else "no regular file"
    if not what and not mode & WRITABLE:
        what = "read-only"
    if not what and not os.access(target, os.W_OK):
        with contextlib.suppress(OSError):  # what another writer has moved away meanwhile is not read-only
            what = "read-only" if os.path.samestat(found, target.lstat()) else ""
    if what:
        raise StorageError(f"{target}: is {what}, and so not replaced; remove it or choose another name")


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


def is_storage_problem(error: BaseException) -> bool:
    """Say whether an error comes from a disk that is full, may not be written or fails."""
    # safetensors and tokenizers raise types of their own, with the system's error number in the message
    match = re.search(r"\(os error (\d+)\)", str(error)) if not isinstance(error, GraftError) else None
    code = int(match[1]) if match else getattr(error, "errno", None)
    return code in STORAGE_PROBLEMS


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
