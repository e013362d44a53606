"""Checkpoints merged as they lie on the disk, into a copy of the base's files: of all of them a piece is in memory at a time."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..checkpoints.files import Checkpoint, Named
from ..checkpoints.pairs import StoredPair, read_pair
from ..checkpoints.writing import TensorFiles, copy_beside
from ..grafting.differences import as_bits
from ..grafting.fingerprint import identify
from ..grafting.region import outline
from ..grafting.select import Scratch
from ..modules.comparing import require_fit
from ..support.errors import MaskError, ParamsError
from ..support.writing import replacing, require_free
from .inputs import Piece, TaskValues, joint_region, of_patch, within_mask

Make = Callable[[Named, Mapping[str, TaskValues]], Iterator[tuple[Piece, Tensor]]]


def merge_folders(base: str | Path, tasks: Mapping[str, Any], to: str | Path | None, make: Make) -> Path:
    """Write what `make` makes of a base and its tasks into a new folder, which is given back; ParamsError if none is named."""
    if to is None:
        raise ParamsError("to: name the new folder for what is merged of a base that is a folder")
    target = require_free(Path(to))
    named, sides = _opened(str(base), tasks)
    merged = named.only(joint_region(sides) or _common(named, sides))
    with replacing(target, fresh=True) as folder:
        folder.mkdir()
        _write(folder, named.checkpoint, merged, sides, make)
        copy_beside(named.checkpoint, folder)
    return target


def _opened(base: str, tasks: Mapping[str, Any]) -> tuple[Named, dict[str, TaskValues]]:
    """The base under the names that the tasks have it by, and what they have."""
    pairs = {task: read_pair(base, entry) for task, entry in tasks.items() if isinstance(entry, str | Path)}
    pairs |= {task: entry[0] for task, entry in tasks.items() if isinstance(entry, tuple | list) and len(entry) == 2}
    stored = [pair for pair in pairs.values() if isinstance(pair, StoredPair)]
    if not stored or len(stored) < len(pairs):
        which = next((task for task, pair in pairs.items() if not isinstance(pair, StoredPair)), "one at least")
        hint = "should be the folder of a checkpoint, or (read_pair(base, folder), mask), since the base is a folder"
        raise ParamsError(f"tasks: {which} {hint}")
    named, sides = stored[0].before, {}
    for task, entry in tasks.items():
        if task not in pairs:
            sides[task] = of_patch(named, task, entry)
            if identify(entry.region, named, entry.known).fingerprint != entry.use.fingerprint:
                raise MaskError(f"tasks.{task}: the patch was made for {entry.use.base}, not for the model in {base}")
        elif isinstance(entry, str | Path):
            after = pairs[task].after
            sides[task] = TaskValues(after, cast=True, whole=[name for name in after if name not in named])
        else:
            sides[task] = within_mask(named, pairs[task].after, entry[1], pairs[task].travelling(entry[1]))
    return named, sides


def _common(named: Named, sides: Mapping[str, TaskValues]) -> list[str]:
    """The parameters that all whole tasks have; raises an error unless they fit the base's."""
    names = [name for name in named if all(name in side.values for side in sides.values())]
    for name in names:
        for side in sides.values():
            require_fit(name, outline(named, name), outline(side.values, name))
    return names


def _write(folder: Path, base: Checkpoint, merged: Named, sides: Mapping[str, TaskValues], make: Make) -> None:
    """The base's files, with merged values in place of the base's."""
    every = Named.renamed(base, {stored: stored for stored in base.files})
    files: dict[str, list[str]] = {}
    for name in every:
        files.setdefault(every.file_of(name), []).append(name)
    with TensorFiles(folder, files, every) as written:
        whole = {name for side in sides.values() for name in (merged if side.mask is None else side.mask.indices)}
        covered: dict[str, int] = {}
        for span in (span for name in whole for span in merged.spans[name]):
            covered[span.name] = covered.get(span.name, 0) + span.stop - span.start
        for name in every:
            if covered.get(name) != every.outline(name).numel():
                written.copy(name, every)
        scratch = Scratch()
        for piece, made in make(merged, sides):
            values = made
            if piece.at is not None:
                before = merged.between(piece.name, piece.start, piece.stop)
                values = scratch("written", before, before.dtype)
                # by numpy, in one thread: the others read
                bits = as_bits(values).numpy()
                np.copyto(bits, as_bits(before).numpy())
                bits[piece.at.numpy()] = as_bits(made.to(values.dtype)).numpy()
            for span, part in merged.split(piece.name, piece.start, values):
                written.put(span.name, span.start, part)
