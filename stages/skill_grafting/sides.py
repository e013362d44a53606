"""The two sides of a graft as a caller may give them: models, folders of checkpoints, or tensors by name."""

from collections.abc import Mapping
from pathlib import Path

from torch import nn

from .errors import ParamsError
from .grafting.modules import Parameters
from .grafting.region import Tensors
from .models.pairs import Pair

# a model, the folder or hub id of a checkpoint, or a region's values by name
Side = nn.Module | Tensors | str | Path


def pair_of(base: Side, tuned: Side, heads: Parameters = None) -> Pair:
    """Both sides under the same names; raises ModelError unless they differ in nothing but values, and heads in size."""
    if isinstance(base, nn.Module) and isinstance(tuned, nn.Module):
        return Pair.of(base, tuned, heads)
    if isinstance(base, str | Path) and isinstance(tuned, str | Path):
        from .models.stored_pairs import read_pair  # which knows files

        return read_pair(base, tuned, heads=heads)
    if isinstance(base, Mapping) and isinstance(tuned, Mapping):
        return Pair(base, tuned)
    kinds = " and ".join(f"a {type(side).__name__}" for side in (base, tuned))
    raise ParamsError(
        f"base and tuned should be torch modules, or folders of checkpoints, both of one kind, not {kinds}"
    )
