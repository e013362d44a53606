"""Files that carry their own SHA-256, so that a damaged one is not read as if it were whole.

A tensor file has it in its header, over the whole file with 64 zeros in its place; a JSON file has it as a key (io.py); a folder of a
model or of rows has a list of its files, which `sha256sum -c SHA256SUMS` reads too.
"""

import re
import time
from functools import cache
from hashlib import file_digest, sha256
from pathlib import Path
from typing import BinaryIO

from .errors import GraftError, ModelError

KEY = "sha256"
# placeholder in a header's JSON text, which `seal` replaces by the digest
UNSEALED = {KEY: "0" * 64}
LIST = "SHA256SUMS"
# digests of what this process has read; tensor files and model folders carry theirs
SEEN: list[str] = []
# nanoseconds after a change; another one before them may have the same time
SETTLED = 10**9
LONGEST_HEADER = 10**8  # bytes, as safetensors has it
PLACE = re.compile(KEY.encode() + rb'\\": \\"([0-9a-f]{64})')


def seal(path: Path) -> None:
    """Write the digest of a safetensors file into the placeholder in its header."""
    with path.open("r+b") as file:
        match, digest = _digests(file)
        file.seek(match.start(1))
        file.write(digest)


def require_sealed(path: Path, seen: bool = True) -> None:
    """Raise ValueError unless a safetensors file matches its digest; with `seen` it is noted as an input."""
    with path.open("rb") as file:
        match, digest = _digests(file)
    if match[1] != digest:
        raise ValueError("its content is not what was written")
    SEEN.extend([digest.decode()] * seen)


def _digests(file: BinaryIO) -> tuple[re.Match, bytes]:
    """The digest in the header, and that of the file."""
    size = file.read(8)
    head = size + file.read(min(int.from_bytes(size, "little"), LONGEST_HEADER))
    match = PLACE.search(head)
    if match is None:
        raise ValueError("has no SHA-256 of its content")
    whole = head[: match.start(1)] + UNSEALED[KEY].encode() + head[match.end(1) :]
    return match, file_digest(file, lambda: sha256(whole)).hexdigest().encode()


def list_files(folder: Path) -> None:
    """Write the digests of all files directly in a folder into its list."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and path.name != LIST)
    (folder / LIST).write_text("".join(f"{sha256_of(folder / name)}  {name}\n" for name in names), encoding="utf-8")


def require_listed(folder: Path, *names: str, error: type[GraftError] = ModelError) -> None:
    """Raise `error` if one of these files doesn't match the folder's list; a user's own folder need not have one.

    A file that is loaded again, for another point of a grid or another task, is hashed once.
    """
    if not (folder / LIST).is_file():
        return
    listed = (folder / LIST).read_bytes().decode(errors="replace").splitlines()
    for path in filter(Path.is_file, (folder / name for name in names)):
        about = path.stat()
        settled = time.time_ns() - about.st_ctime_ns > SETTLED
        digest = _known(path, about.st_ino, about.st_size, about.st_ctime_ns) if settled else sha256_of(path)
        SEEN.append(f"{digest}  {path.name}")
        if SEEN[-1] not in listed:
            raise error(f"{path}: damaged: its content is not what {LIST} says was written")


@cache
def _known(path: Path, *_state: int) -> str:
    """The digest of a file in a state: inode, size, and the time of the last change, which nobody but the system sets."""
    return sha256_of(path)


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
