"""Patches with damaged bytes and changed headers: each is refused in words, or is what was written."""

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from stages.commands.graft.build_patch import KEY, VERSION, read_patch
from stages.lib.errors import GraftError
from stages.lib.graft.mask import GraftMask
from stages.lib.graft.mask_file import StoredMask, content_digest, write_mask
from stages.lib.graft.region import Region
from stages.lib.progress import progress

ODD = [None, True, -1, 2**70, 1e400, "", "\x00", "x" * 10_000, [], {}, [[1]], {"auto_map": "a.py"}]


def run(cases: int, seed: int) -> list[tuple[str, int, list[str]]]:
    """Check, cases, failures: what so many damaged patches did."""
    draw = random.Random(seed)
    counts, failures = Counter(), {}
    with TemporaryDirectory(prefix="patches") as folder, progress("patches", cases, "patch") as bar:
        path = Path(folder) / "patch.safetensors"
        whole = make_patch()
        write_mask(path, whole)
        read_patch(path)  # the control
        content = path.read_bytes()
        for _ in range(cases):
            kind = draw.choice([*KINDS])
            path.write_bytes(KINDS[kind](content, draw))
            counts[kind] += 1
            if said := problem(path, whole):
                failures.setdefault(kind, []).append(said)
            bar.update(1)
    return [(f"patches: {kind}", counts[kind], failures.get(kind, [])) for kind in KINDS]


def problem(path: Path, whole: StoredMask) -> str:
    """What went wrong in reading a patch; nothing if it was refused in words, or holds the tensors that were written."""
    try:
        stored, use = read_patch(path)
    except GraftError as error:
        return "" if str(error).startswith(str(path)) and len(str(error)) < 2_000 else f"said: {error}"
    except Exception as error:  # that is what is looked for
        return f"{type(error).__name__}: {error}"
    if content_digest(stored) != content_digest(whole):
        return "other tensors were read without a word"
    return "" if {*use.config} <= {"pad_token_id", "id2label", "label2id"} else f"config {use.config} was taken"


def make_patch() -> StoredMask:
    """A patch of a small region, as a file of it would have it."""
    generator = torch.Generator().manual_seed(0)
    region = Region({"layer.weight": (7, 5), "layer.bias": (11,)})
    mask = GraftMask.from_region_indices(region, torch.randperm(region.size, generator=generator)[:12])
    values = {name: torch.randn(len(indices), generator=generator) for name, indices in mask.indices.items()}
    stored = StoredMask(mask, values, {}, {"model": "pico", "task": "toy", "seed": 13})
    use = {
        "version": VERSION, "auto_class": "AutoModelForMaskedLM", "labels": ["bad", "good"], "config": {"pad_token_id": 0},
        "base": "pico", "source": "local", "revision": None, "fingerprint": "0" * 64, "content": content_digest(stored),
        "outside": {"embedding": [3, 4]}, "task": "toy", "title": "Toy",
        "prompt": {"template": "{sentence1} {mask}", "verbalizer": {"bad": "a", "good": "b"}}, "max_length": 64,
    }  # fmt: skip
    return replace(stored, about=stored.about | {KEY: use})


def _flipped(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    for place in draw.choices(range(len(changed)), k=draw.randint(1, 8)):
        changed[place] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _cut(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content))]


def _reheaded(content: bytes, draw: random.Random) -> bytes:
    """One value somewhere in the header, or in the part of it that is this project's, is another."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    metadata = header["__metadata__"]
    [name] = [name for name, text in metadata.items() if KEY in text]
    about = json.loads(metadata[name])
    if draw.random() < 0.7:
        _change(about, draw)
        metadata[name] = json.dumps(about)
    else:
        _change(header, draw)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def _change(table: Any, draw: random.Random) -> None:
    while True:
        key = draw.choice([*table] if isinstance(table, dict) else range(len(table)))
        if isinstance(table[key], dict | list) and table[key] and draw.random() < 0.7:
            table = table[key]
        else:
            break
    if isinstance(table, dict) and draw.random() < 0.3:
        table[draw.choice(["auto_map", "num_hidden_layers", key + "s"])] = draw.choice(ODD)
    else:
        table[key] = draw.choice(ODD)


KINDS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "bits flipped": _flipped,
    "cut": _cut,
    "header changed": _reheaded,
}
