"""Which model some tensors are of: SHA-256 of what they hold.

It takes longer than to copy the model, so what it was of a model is kept: by this process, and by a patch for its base.  Not by the
model, whose numbers anybody may change by hand, nor by its file: by a faster hash of all of its bytes (XXH3, 128 bits), which costs a
reading of them and is made each time.
"""

import hashlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

import torch
import xxhash
from torch import Tensor

from .region import Region, Tensors, outline
from .select import Scratch, pieces_of

# the faster hash of a model -> its fingerprint; and of the models of a fingerprint the latest one's hashes by tensor
KNOWN: dict[str, str] = {}
TENSORS: dict[str, dict[str, bytes]] = {}
LOCK = Lock()


@dataclass(frozen=True)
class Known:
    """A model's fingerprint, and the faster hash of its bytes in the types that it was read in."""

    fingerprint: str
    fast: str | None


def fingerprint(region: Region, tensors: Tensors) -> str:
    """SHA-256 over names, shapes and exact values, those of narrow types in float32; it distinguishes models."""
    return identify(region, tensors).fingerprint


def identify(region: Region, tensors: Tensors, expected: Known | None = None) -> Known:
    """The fingerprint of a model, with its faster hash; where that is the expected one, the fingerprint isn't made anew.

    Of files it is made once, and may be made ahead in another thread: who asks meanwhile waits for it.
    """
    if (made := getattr(tensors, "fingerprints", None)) is None:
        return _identify(region, tensors, expected)
    with LOCK:
        key = tuple(region.shapes)
        made[key] = made.get(key) or _identify(region, tensors, expected)
        return made[key]


def _identify(region: Region, tensors: Tensors, expected: Known | None) -> Known:
    likely = {} if expected is None or expected.fast is None else {expected.fast: expected.fingerprint}
    exact = None if KNOWN or likely else hashlib.sha256()  # of the first model one reading will do
    hashes = _hashes(region, tensors, exact)
    fast = xxhash.xxh3_128(b"".join(hashes.values())).hexdigest()
    if fast not in KNOWN and fast not in likely:
        if exact is None:
            _hashes(region, tensors, exact := hashlib.sha256())
        KNOWN[fast] = exact.hexdigest()
    found = KNOWN.get(fast) or likely[fast]  # which is believed of this patch's base alone
    TENSORS[found] = hashes
    return Known(found, fast)


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
