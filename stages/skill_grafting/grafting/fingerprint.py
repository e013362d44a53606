"""Which model some tensors are of: SHA-256 of what they hold.

It takes nearly all of the time in which a patch is put on a model, so this process remembers it.  Not by the model, whose numbers
anybody may change by hand, nor by its file: by a faster hash of all of its bytes (XXH3, 128 bits), which costs a reading of them and
is made each time.
"""

import hashlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock

import torch
import xxhash
from torch import Tensor

from .region import Region, Tensors, outline
from .select import Scratch, pieces_of

# the faster hash of a model's bytes -> its fingerprint; and of the models of a fingerprint the latest one's hashes by tensor
KNOWN: dict[bytes, str] = {}
TENSORS: dict[str, dict[str, bytes]] = {}
LOCK = Lock()


def fingerprint(region: Region, tensors: Tensors) -> str:
    """SHA-256 over names, shapes and exact values, those of narrow types in float32; it distinguishes models.

    Of files it is made once, and may be made ahead in another thread: who asks meanwhile waits for it.
    """
    if (made := getattr(tensors, "fingerprints", None)) is None:
        return _fingerprint(region, tensors)
    with LOCK:
        key = tuple(region.shapes)
        made[key] = made.get(key) or _fingerprint(region, tensors)
        return made[key]


def _fingerprint(region: Region, tensors: Tensors) -> str:
    exact = None if KNOWN else hashlib.sha256()  # of the first model one reading will do
    hashes = _hashes(region, tensors, exact)
    known_by = xxhash.xxh3_128(b"".join(hashes.values())).digest()
    if known_by not in KNOWN:
        if exact is None:
            _hashes(region, tensors, exact := hashlib.sha256())
        KNOWN[known_by] = exact.hexdigest()
    TENSORS[KNOWN[known_by]] = hashes
    return KNOWN[known_by]


def differing(known: str, region: Region, tensors: Tensors) -> list[str]:
    """Names of the tensors that differ from the model of a fingerprint, or come in another type; none if this process hasn't seen that model."""
    wanted = TENSORS.get(known, {})
    return [name for name, digest in _hashes(region, tensors).items() if wanted.get(name, digest) != digest]


def _hashes(region: Region, tensors: Tensors, exact: "hashlib._Hash | None" = None) -> dict[str, bytes]:
    """The faster hash of each tensor; the exact one of all is updated on the way, which takes as long as reading and is done beside it."""
    hashes, spare, given = {}, [Scratch(), Scratch()], deque[Future](maxlen=2)
    with ThreadPoolExecutor(1) as beside:

        def update(values: Tensor) -> None:
            if len(given) == 2:  # what lies in the older of both scratches is taken
                given[0].result()
            if values.itemsize < 4 and values.is_floating_point():
                spare[0], spare[1] = spare[1], spare[0]
                values = spare[0]("wide", values, torch.float32).copy_(values)
            given.append(beside.submit(exact.update, values.numpy()))

        for name, shape in region.shapes.items():
            title = f"{name}{list(shape)}"
            fast = xxhash.xxh3_128(f"{title}{outline(tensors, name).dtype}".encode())
            if exact is not None:
                given.append(beside.submit(exact.update, title.encode()))
            for (piece,) in pieces_of(name, tensors):
                values = piece.detach().cpu().contiguous().reshape(-1)
                fast.update(values.view(torch.uint8).numpy())
                if exact is not None:
                    update(values)
            hashes[name] = fast.digest()
    return hashes
