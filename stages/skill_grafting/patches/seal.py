"""The SHA-256 that a patch carries of its own file, over all of it with 64 zeros in the place of the digest."""

import re
from hashlib import file_digest, sha256
from pathlib import Path
from typing import BinaryIO

KEY = "sha256"
# what stands in the header's JSON text until `seal` replaces it by the digest
UNSEALED = {KEY: "0" * 64}
LONGEST_HEADER = 10**8  # bytes, as safetensors has it
PLACE = re.compile(KEY.encode() + rb'\\": \\"([0-9a-f]{64})')


def seal(path: Path) -> None:
    """Write the digest of a safetensors file into the placeholder in its header."""
    with path.open("r+b") as file:
        match, digest = _digests(file)
        file.seek(match.start(1))
        file.write(digest)


def require_sealed(path: Path) -> None:
    """Raise ValueError unless a safetensors file matches its digest."""
    with path.open("rb") as file:
        match, digest = _digests(file)
    if match[1] != digest:
        raise ValueError("its content is not what was written")


def _digests(file: BinaryIO) -> tuple[re.Match, bytes]:
    """The digest in the header, and that of the file."""
    size = file.read(8)
    head = size + file.read(min(int.from_bytes(size, "little"), LONGEST_HEADER))
    match = PLACE.search(head)
    if match is None:
        raise ValueError("has no SHA-256 of its content")
    whole = head[: match.start(1)] + UNSEALED[KEY].encode() + head[match.end(1) :]
    return match, file_digest(file, lambda: sha256(whole)).hexdigest().encode()
