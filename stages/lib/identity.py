"""The identity of a run of a loop: a digest of all that it depends on."""

from dataclasses import fields, is_dataclass
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from torch import Tensor

# they print themselves whole
PLAIN = (str, bytes, int, float, type(None), Path, BaseModel, torch.dtype, torch.device)


def digest_of(*values: object) -> bytes:
    """A digest of nested values: tensors to the bit, models by their `state()`, and what prints itself whole.

    Raises TypeError for anything else.  It takes about as long as reading the tensors from a disk.
    """
    digest, seen = blake2b(digest_size=32), dict[tuple, tuple[int, Tensor]]()
    for value in values:
        _add(digest, value, seen)
    return digest.digest()


def versions() -> list[Any]:
    """The versions of libraries and the traits of the machine that the last digits depend on."""
    machine = [torch.get_num_threads(), torch.backends.cpu.get_cpu_capability()]
    return [version("torch"), version("transformers"), *machine]


def _add(digest: blake2b, value: object, seen: dict[tuple, tuple[int, Tensor]]) -> None:
    """Take in a value; `seen` are the tensors so far, since models share them, kept so that no place is taken twice."""
    if isinstance(value, Tensor):
        place = (value.data_ptr(), value.dtype, value.device, *value.shape, *value.stride())
        _add(digest, ["tensor", value.dtype, *value.shape, seen.get(place, (None,))[0]], seen)
        if place not in seen:
            seen[place] = len(seen), value
            digest.update(value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy())
    elif isinstance(value, dict):
        _add(digest, [*value.items()], seen)
    elif isinstance(value, list | tuple) and not all(type(part) is int for part in value):
        digest.update(f"{len(value)} parts\n".encode())
        for part in value:
            _add(digest, part, seen)
    elif hasattr(value, "state"):
        _add(digest, value.state(), seen)
    elif is_dataclass(value):
        _add(digest, [type(value).__name__, *(getattr(value, field.name) for field in fields(value))], seen)
    elif isinstance(value, (*PLAIN, list, tuple)):
        text = repr(value).encode()
        digest.update(f"{len(text)} letters\n".encode() + text)
    else:
        raise TypeError(f"{type(value).__name__} does not print itself whole")
