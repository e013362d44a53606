"""merge: several checkpoints of one base made into one, as a recipe says, a piece at a time."""

import time
from pathlib import Path

from ..checkpoints.files import Checkpoint
from ..merging.merge import merge as merge_folders
from ..support.errors import ParamsError
from ..support.writing import require_free
from .recipe import read_recipe

# the types of numbers that a recipe can ask for, as files call them
KINDS = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def merge(recipe: Path, to: Path, seed: int) -> str:
    """Write the merged checkpoint to a new folder; gives a line about it.  Raises GraftError for recipes and models that can't be."""
    started, target, asked = time.monotonic(), require_free(to), read_recipe(recipe)
    if asked.dtype is not None:
        _require_dtype(recipe, asked.dtype, asked.base)
    tasks = {source.model: source.model for source in asked.tasks}
    merge_folders(asked.base, tasks, seed=seed, to=target, **asked.settings())
    made = f"{target}: {asked.base} merged with {', '.join(tasks)} by {asked.merge_method}"
    return f"{made}; tokenizer and settings are the base's.\n{time.monotonic() - started:.1f} seconds."


def _require_dtype(recipe: Path, asked: str, base: str) -> None:
    """Raise ParamsError for another type than the base's, which a merge keeps."""
    checkpoint = Checkpoint.open(base, tokenizer=False)
    kinds = {KINDS.get(stored.dtype) for stored in checkpoint.files.values()} - {None}
    if strange := sorted(kinds - {asked}):
        raise ParamsError(
            f"{recipe}: dtype: {asked} is asked for, and a merge has the types of its base ({', '.join(strange)}); leave it out"
        )
