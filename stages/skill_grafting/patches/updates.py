"""A patch as a list of sparse updates, under the model's names or those of its files, as trainers and servers exchange them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from ..grafting.apply import put_at
from ..support.errors import ParamsError
from .patch_file import PatchContent

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Update(NamedTuple):
    """What changes in one tensor: its name and full shape, the dtype of the values, the values, and flat indices (int32, or int64 beyond 2^31)."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    values: Tensor
    indices: Tensor


def updates(patch: PatchContent, names: Literal["model", "file"], model: "PreTrainedModel | None") -> Iterator[Update]:
    """The updates of a patch, one tensor at a time, under the names of a live model, or as `save_pretrained` writes them.

    For the names of files a model of transformers is asked, which may be on the device meta: its own conversion is turned round, one
    module's tensors at a time, so that experts which lie in one tensor come apart.
    """
    if names == "model":
        yield from (_update(*one) for one in _tensors(patch))
    elif names == "file" and model is not None:
        yield from _by_files(patch, model)
    else:
        problem = (
            "the names of files follow from the model: pass model=" if names == "file" else f"{names!r} is unknown"
        )
        raise ParamsError(f"names: {problem}; 'model' needs none")


def _tensors(patch: PatchContent) -> Iterator[tuple[str, tuple[int, ...], Tensor, Tensor]]:
    for name, at in patch.mask.indices.items():
        yield name, patch.mask.region.shapes[name], at, patch.values[name]
    for name, part in patch.head.items():
        yield name, tuple(part.shape), torch.arange(part.numel()), part.reshape(-1)


def _update(name: str, shape: tuple[int, ...], at: Tensor, values: Tensor) -> Update:
    kind = torch.int32 if torch.Size(shape).numel() < 2**31 else torch.int64
    return Update(name, shape, values.dtype, values.contiguous(), at.to(kind))


def _by_files(patch: PatchContent, model: "PreTrainedModel") -> Iterator[Update]:
    from transformers.core_model_loading import revert_weight_conversion

    modules: dict[str, list[tuple[str, tuple[int, ...], Tensor, Tensor]]] = {}
    for one in _tensors(patch):
        modules.setdefault(one[0].rpartition(".")[0], []).append(one)
    for group in modules.values():
        marks = {name: _filled(shape, at, torch.ones(len(at), dtype=values.dtype)) for name, shape, at, values in group}
        whole = {name: _filled(shape, at, values) for name, shape, at, values in group}
        marked, stored = (revert_weight_conversion(model, tensors) for tensors in (marks, whole))
        for name, mark in marked.items():
            at = mark.reshape(-1).nonzero().reshape(-1)
            if len(at):
                yield _update(name, tuple(mark.shape), at, stored[name].reshape(-1)[at])


def _filled(shape: tuple[int, ...], at: Tensor, values: Tensor) -> Tensor:
    """Zeros but for these values."""
    filled = torch.zeros(shape, dtype=values.dtype)
    put_at(filled, at, values)
    return filled
