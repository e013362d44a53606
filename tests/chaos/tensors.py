"""Masks, patches, orders and predictions with damaged bytes and changed headers: refused, or exactly what was written."""

import json
import random
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from safetensors.torch import load

from stages.lib.digest import seal
from stages.lib.grafting.mask import GraftMask
from stages.lib.grafting.mask_file import StoredMask, read_mask, read_order, write_mask, write_order
from stages.lib.grafting.region import Region
from stages.lib.metrics.predictions import Predictions, read_predictions, write_predictions
from stages.lib.patches.patch_file import KEY, VERSION
from tests.chaos.campaign import Check
from tests.sealed import read_patch

ODD = [None, True, -1, 2**70, 1e400, "", "\x00", "x" * 10_000, [], {}, [[1]], {"auto_map": "a.py"}]
ALLOWED = {"pad_token_id", "id2label", "label2id"}


def damaged(read: Callable[[Path], Any], write: Callable[[Path], None], chance: random.Random, folder: Path) -> None:
    """A file with bits or bytes that it was not written with: whatever they are, it has to be refused."""
    path, whole = folder / "file.safetensors", _content(write)
    content = chance.choice([_flipped, _cut])(whole, chance)
    path.write_bytes(content)
    read(path)
    assert content == whole, "was read as if it were whole"


def forged(read: Callable[[Path], Any], write: Callable[[Path], None], chance: random.Random, folder: Path) -> None:
    """A file with another value in its header, by somebody who knows how to seal it anew: the tensors stay the same."""
    path, whole = folder / "file.safetensors", _content(write)
    path.write_bytes(_reheaded(whole, chance))
    seal(path)
    found = read(path)
    if read is read_patch:
        assert {*found[1].config} <= ALLOWED, f"config {found[1].config} was taken"
    if read in (read_patch, read_mask):
        stored, original = found[0] if read is read_patch else found, load(whole)
        values = {f"values/{name}": values for name, values in stored.values.items()}
        assert all(torch.equal(original[name], part) for name, part in values.items()), "other values were read"


def make_patch() -> StoredMask:
    """A patch of a small region, as a file of it would have it."""
    generator = torch.Generator().manual_seed(0)
    region = Region({"layer.weight": (7, 5), "layer.bias": (11,)})
    mask = GraftMask.from_region_indices(region, torch.randperm(region.size, generator=generator)[:12])
    values = {name: torch.randn(len(indices), generator=generator) for name, indices in mask.indices.items()}
    use = {
        "version": VERSION, "auto_class": "AutoModelForMaskedLM", "labels": ["bad", "good"], "config": {"pad_token_id": 0},
        "base": "pico", "source": "local", "revision": None, "fingerprint": "0" * 64, "outside": {"embedding": [3, 4]},
        "task": "toy", "title": "Toy", "prompt": {"template": "{sentence1} {mask}", "verbalizer": {"bad": "a", "good": "b"}},
        "max_length": 64,
    }  # fmt: skip
    return StoredMask(mask, values, {}, {"model": "pico", "task": "toy", "seed": 13, KEY: use})


def _write_patch(path: Path) -> None:
    write_mask(path, make_patch())


def _write_mask(path: Path) -> None:
    patch = make_patch()
    write_mask(path, StoredMask(patch.mask, patch.values, patch.head, {"model": "pico", "task": "toy", "seed": 13}))


def _write_order(path: Path) -> None:
    write_order(path, torch.randperm(40, generator=torch.Generator().manual_seed(0)), 71, {"task": "toy", "seed": 13})


def _write_predictions(path: Path) -> None:
    logits = np.random.default_rng(0).normal(size=(9, 2)).astype(np.float32)
    labels = np.arange(9, dtype=np.int32) % 2
    write_predictions(path, Predictions(["bad", "good"], {"toy": labels}, {"toy": {"grafted": logits}}))


FILES = {
    "patches": (read_patch, _write_patch),
    "masks": (read_mask, _write_mask),
    "orders": (read_order, _write_order),
    "predictions": (read_predictions, _write_predictions),
}
CHECKS: dict[str, Check] = {
    **{f"{name}, damaged": partial(damaged, *pair) for name, pair in FILES.items()},
    **{f"{name}, forged": partial(forged, *pair) for name, pair in FILES.items()},
}


@cache
def _content(write: Callable[[Path], None]) -> bytes:
    with TemporaryDirectory(prefix="chaos") as folder:
        write(path := Path(folder) / "whole.safetensors")
        return path.read_bytes()


def _flipped(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for place in {chance.randrange(len(changed)) for _ in range(chance.randint(1, 8))}:
        changed[place] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _cut(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content))]


def _reheaded(content: bytes, chance: random.Random) -> bytes:
    """One value somewhere in the part of the header that is this project's is another."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    [(name, text)] = header["__metadata__"].items()
    about = json.loads(text)
    digest = about.pop("sha256")
    _change(about, chance)
    header["__metadata__"][name] = json.dumps(about | {"sha256": digest})
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def _change(table: Any, chance: random.Random) -> None:
    while True:
        key = chance.choice([*table] if isinstance(table, dict) else range(len(table)))
        if isinstance(table[key], dict | list) and table[key] and chance.random() < 0.7:
            table = table[key]
        else:
            break
    if isinstance(table, dict) and chance.random() < 0.3:
        table[chance.choice(["auto_map", "num_hidden_layers", key + "s"])] = chance.choice(ODD)
    else:
        table[key] = chance.choice(ODD)
