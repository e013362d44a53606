"""Several fine-tuned models or grafts of one pretrained model made into one, by a rule of stitching or a way of task arithmetic."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..grafting.differences import is_whole
from ..grafting.region import Tensors, named_weights, unwrapped
from ..grafting.select import Scratch
from ..modules.pairs import Pair
from ..modules.targets import Model, copied, require_whole
from ..support.errors import ParamsError, a_kind
from .arithmetic import moved_by
from .inputs import (
    Piece,
    TaskValues,
    changed_pieces,
    in_files,
    joint_region,
    of_patch,
    pieces_of,
    require_finite,
    warn_of_whole,
    within_mask,
)
from .stitching import RULES, stitched
from .ways import Settings, Vector, row_of, vector_of


def merge(
    base: Model | str | Path,
    tasks: Mapping[str, Any],
    how: str = "mean",
    *,
    alpha: float = 1.0,
    weights: Mapping[str, float] | None = None,
    share: float | Mapping[str, float] | None = None,
    per: Literal["region", "tensor"] | None = None,
    strictness: float = 0.4,
    seed: int = 0,
    to: str | Path | None = None,
    **settings: Any,
) -> Model | Path:
    """Merge several tasks into a new module, or, of a base's folder or hub id, into the new folder `to`, which is given back.

    tasks: task -> a patch, or (its fine-tuned model or the pair of its checkpoint, its mask); GraftMask.full merges a model whole, and
    where the base is a folder, so does the folder or hub id of a fine-tuned checkpoint.
    how: mean, sum, sequence and largest stitch the grafts, and this rule decides where masks overlap.  average, arithmetic, ties, dare,
    dare_ties, della, della_linear, breadcrumbs, breadcrumbs_ties and consensus give base + alpha * what they make of the tasks' vectors
    within their masks.  What elects signs needs peft.
    weights: task -> what its vector is multiplied by; average, ties and della divide by the weights that take part.
    share: what stays of each vector, one number or one for each task; 0.2 for ties, 0.1 for dare, 0.5 for della and 0.14 for breadcrumbs
    by default.  per: what ties (the region) and breadcrumbs (each tensor) take their share of.  strictness: the lambda of consensus.
    settings: gamma, the share of outliers that breadcrumbs leaves out (0.01); epsilon, how much likelier or less likely than its share
    della keeps the furthest and the nearest of a row (0.15); rescale=False leaves what dare and della keep as it is; normalize says whether
    vectors are divided by weights, in place of the way's own rule.  A setting that would change nothing is refused.

    Heads and buffers stay those of the base, because each task has its own.  Outside all masks, and where nothing moved, the base's
    bits stay.  Beside the new module it takes next to no memory: files are read, and written, a piece at a time.
    """
    try:
        asked = Settings(how, alpha, weights, share, per, strictness, seed=seed, **settings)
    except TypeError:
        known = "gamma, epsilon, rescale, normalize"
        raise ParamsError(f"{', '.join(sorted(settings))}: unknown, or of the wrong type; known: {known}") from None
    make = partial(_merged_pieces, asked)
    _require_tasks(tasks)
    asked.scale(tasks)
    if isinstance(base, str | Path):
        from .folders import merge_folders  # imports transformers

        return merge_folders(base, tasks, to, make)
    if to is not None:
        raise ParamsError("to: is for a base that is a folder; of a module save what merge gives")
    require_whole(base)
    own = {name: weight.detach() for name, weight in named_weights(base).items()}
    sides = {task: _side(base, own, task, entry) for task, entry in tasks.items()}
    pretrained = {name: own[name] for name in joint_region(sides)}
    model = copied(base)
    live = named_weights(model)
    for piece, made in make(pretrained, sides):
        piece.put(live[piece.name], made)
    return model


def _merged_pieces(
    settings: Settings, pretrained: Tensors, sides: Mapping[str, TaskValues]
) -> Iterator[tuple[Piece, Tensor]]:
    """Each piece of the base that a task has something of, tensor by tensor, and the merged values for its places."""
    warn_of_whole(sides)
    values: Callable[[Piece], Tensor]
    if settings.how not in RULES:
        values = partial(_moved_along, vector_of(settings, pretrained, sides), settings.scale(sides))
    else:
        values = partial(_unmoved if len(sides) > 1 else stitched, settings.how)
    scratch = Scratch()
    found = (
        piece
        for name in pretrained
        for piece in pieces_of(name, pretrained, sides, scratch, row_of(settings, pretrained, name))
    )
    for piece in changed_pieces(found, in_files(pretrained)):
        made = values(piece)
        require_finite(settings.how, piece, made)
        yield piece, made


def _moved_along(vector: Vector, scale: float, piece: Piece) -> Tensor:
    moved = vector(piece)
    still = torch.from_numpy(moved.numpy() == 0)  # numpy compares eight times as fast
    if is_whole(piece.before):
        along = moved_by(piece.before, moved, scale)
    else:  # as moved_by does, in memory that is there
        moved = (moved if scale == 1 else moved.mul_(scale)).add_(piece.wide)
        along = moved if piece.scratch is None else piece.scratch("made", piece.before, piece.before.dtype).copy_(moved)
    along = along.to(piece.before.dtype)
    return torch.where(still, piece.before, along) if still.numpy().any() else along


def _unmoved(rule: str, piece: Piece) -> Tensor:
    """Stitched values, and the base's own bits where they are equal: sums lose the sign of a zero."""
    values = stitched(rule, piece)
    return torch.where(values == piece.before, piece.before, values)


def _require_tasks(tasks: Mapping[str, Any]) -> None:
    """Raise ParamsError unless these are tasks by name."""
    if not isinstance(tasks, Mapping) or not all(isinstance(task, str) for task in tasks):
        what = "keys that are no text" if isinstance(tasks, Mapping) else a_kind(tasks)
        raise ParamsError(f'tasks: should be {{"name": patch, "other": (tuned, mask)}}, not {what}')
    if not tasks:
        raise ParamsError("tasks: there are none to merge")


def _side(base: nn.Module, weights: Tensors, task: str, entry: object) -> TaskValues:
    if not (isinstance(entry, tuple | list) and len(entry) == 2):
        side = of_patch(weights, task, entry)
        if callable(require := getattr(entry, "require", None)):
            require(base)  # the one that the patch was made from
        return side
    tuned, mask = entry
    if isinstance(tuned, Pair):
        return within_mask(weights, tuned.after, mask, tuned.travelling(mask))
    pair = Pair.for_mask(base, tuned, mask)
    return within_mask(weights, named_weights(unwrapped(tuned)), mask, pair.travelling(mask))
