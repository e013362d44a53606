"""Which model some tensors are of: SHA-256 of what they hold.

It takes nearly all of the time in which a patch is put on a model, so this process remembers it.  Not by the model, whose numbers
anybody may change by hand, nor by its file: by a faster hash of all of its bytes (XXH3, 128 bits), which costs a reading of them and
is made each time.
"""

import hashlib

import torch
import xxhash

from .region import Region, Tensors

# the faster hash of a model's bytes -> its fingerprint; and of the models of a fingerprint the latest one's hashes by tensor
KNOWN: dict[bytes, str] = {}
TENSORS: dict[str, dict[str, bytes]] = {}


def fingerprint(region: Region, tensors: Tensors) -> str:
    """SHA-256 over names, shapes and exact values, those of narrow types in float32; it distinguishes models."""
    hashes = _hashes(region, tensors)
    known_by = xxhash.xxh3_128(b"".join(hashes.values())).digest()
    if known_by not in KNOWN:
        KNOWN[known_by] = _exact_hash(region, tensors)
    TENSORS[KNOWN[known_by]] = hashes
    return KNOWN[known_by]


def differing(known: str, region: Region, tensors: Tensors) -> list[str]:
    """Names of the tensors that differ from the model of a fingerprint, or come in another type; none if this process hasn't seen that model."""
    wanted = TENSORS.get(known, {})
    return [name for name, digest in _hashes(region, tensors).items() if wanted.get(name, digest) != digest]


def _exact_hash(region: Region, tensors: Tensors) -> str:
    exact = hashlib.sha256()
    for name, shape in region.shapes.items():
        values = tensors[name].detach().cpu()
        wide = values.float() if values.itemsize < 4 and values.is_floating_point() else values
        exact.update(f"{name}{list(shape)}".encode())
        exact.update(wide.contiguous().reshape(-1).numpy())
    return exact.hexdigest()


def _hashes(region: Region, tensors: Tensors) -> dict[str, bytes]:
    hashes = {}
    for name, shape in region.shapes.items():
        values = tensors[name].detach().cpu()
        fast = xxhash.xxh3_128(f"{name}{list(shape)}{values.dtype}".encode())
        fast.update(values.contiguous().reshape(-1).view(torch.uint8).numpy())
        hashes[name] = fast.digest()
    return hashes
