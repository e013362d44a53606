"""A patch on a model: whether it is the one that the patch was made from, where the values go, and how its config changes."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import torch
from torch import Tensor, nn

from ..checkpoints.files import Checkpoint, Named, require_as_stored
from ..checkpoints.layouts import named_as, require_sizes, skeleton
from ..checkpoints.writing import TensorFiles
from ..grafting.apply import holds, put_at, write
from ..grafting.fingerprint import differing, identify
from ..grafting.region import Tensors, named_weights, outline
from ..grafting.select import pieces_of
from ..models.loading import load_model
from ..modules.heads import put_settings
from ..modules.targets import Changes, require_plain, require_whole, tensors_in, writes_in
from ..support.errors import MaskError, ModelError
from ..support.formatting import listed
from .patch_file import PatchContent, PatchMetadata


def put_on(patch: PatchContent, model: nn.Module, title: str) -> nn.Module:
    """The model, which messages call by this title, with the patch on it for good; MaskError unless it is what the patch was made from."""
    require_fitting(patch, model, title)
    write(writes_in(model, changes_of(patch)))
    put_settings(model, patch.use.config, patch.use.generation)
    return model


def load_base(patch: PatchContent, base: str | Path, revision: str | None = None) -> nn.Module:
    """The base of a folder or hub id, in float32 and eval mode, with a head of the patch's size, and without the patch."""
    if patch.use.model_class is None:
        raise MaskError(f"{patch!r}: is for no model of transformers; make the base module and apply the patch to it")
    checkpoint = Checkpoint.open(str(base), revision, tokenizer=False)
    require_sizes(checkpoint)
    return load_model(checkpoint.folder, patch.use.model_class, patch.use.labels if patch.head else None, new_head=True)


def require_fitting(patch: PatchContent, model: nn.Module, title: str) -> None:
    """Raise MaskError unless the model, which messages call by this title, is the patch's base."""
    require_whole(model)
    weights = tensors_in(model)
    parameters = {name: weight for name, weight in named_weights(model).items() if name not in patch.head}
    for name, weight in parameters.items():
        require_plain(name, weight)
    try:
        require_base(patch, parameters, title)
    except MaskError:
        require_as_stored(model)  # a better reason
        raise
    if strange := [name for name in patch.head if name not in weights]:
        raise MaskError(f"{patch!r}: its head has {strange[0]}, and {title} has not")
    require_padding(patch.use, getattr(getattr(model, "config", None), "vocab_size", None))
    for theirs, ours in sorted({(part.dtype, weights[name].dtype) for name, part in patch.values.items()}, key=str):
        if torch.promote_types(theirs, ours) != ours:
            warnings.warn(f"{patch!r}: its values are rounded from {theirs} to the model's {ours}", stacklevel=3)


def changes_of(patch: PatchContent) -> Changes:
    """What a patch changes."""
    changes: Changes = [(name, at, patch.values[name]) for name, at in patch.mask.indices.items()]
    return changes + [(name, None, part) for name, part in patch.head.items()]


@dataclass(frozen=True)
class PatchedTensors:
    """What a patch makes of the tensors of a base, read a piece at a time: `changes` are flat indices, rising, and the values there.

    whole: those that the patch has whole; all floating-point numbers are of the type `dtype`.
    """

    base: Named
    changes: dict[str, tuple[Tensor, Tensor]]
    whole: dict[str, Tensor]
    dtype: torch.dtype

    @property
    def files(self) -> dict[str, list[str]]:
        """The base's files, and the names of the tensors that are in each; what the base doesn't have is in the last one."""
        files: dict[str, list[str]] = {}
        for name in self.base:
            files.setdefault(self.base.file_of(name), []).append(name)
        files[[*files][-1]] += [name for name in self.whole if name not in self.base]
        return files

    def write(self, files: TensorFiles, name: str) -> None:
        """Write the tensor of a name: the bytes of the base's file with other values in some places, where the type stays."""
        stored = None if name in self.whole else self.base.whole(name)
        if stored is None or self.outline(name).dtype != self.base.outline(name).dtype:
            return files.copy(name, self)
        files.copy_bytes(name, stored)
        if name in self.changes:
            files.put_at(name, *self.changes[name])

    def outline(self, name: str) -> Tensor:
        """A tensor of the type and shape of that of a name."""
        return self._widened(self.whole[name] if name in self.whole else self.base.outline(name))

    def pieces(self, name: str) -> Iterator[Tensor]:
        """The tensor of a name laid end to end, a piece at a time, in order."""
        source = self.whole if name in self.whole else self.base
        at, values = self.changes.get(name, (torch.empty(0, dtype=torch.int64), None))
        start = 0
        for (piece,) in pieces_of(name, source):
            low, high = torch.searchsorted(at, torch.tensor([start, start + piece.numel()])).tolist()
            made = self._widened(piece)
            if high > low:
                made = made.clone() if made is piece else made
                put_at(made, at[low:high] - start, values[low:high])
            yield made
            start += piece.numel()

    def _widened(self, values: Tensor) -> Tensor:
        return values.to(self.dtype) if values.is_floating_point() else values


def base_of(patch: PatchContent, checkpoint: Checkpoint) -> Named | None:
    """A checkpoint under the names that a patch has; None if not all of them can be had from its files, such as tables that a class makes itself.

    What the class has under other names in memory than in files, as ViT has, transformers tells.
    """
    wanted, named = patch.region.shapes, _plainly_named(patch, checkpoint)
    if len(named) < len(wanted):
        with suppress(ModelError):  # of a model of another kind
            named = named_as(checkpoint, _skeleton(patch, checkpoint))
    return named if wanted.keys() <= named.spans.keys() else None


def patched_tensors(patch: PatchContent, named: Named) -> PatchedTensors:
    """The tensors of a base with a patch on them, in the widest type of both.

    They have the names of the patch's class, or those of the base's files where the class has others in memory.
    """
    names = _names_in_files(patch, named)
    base = Named.renamed(named.checkpoint, names)
    whole = {_name_in_files(named, name, names): part for name, part in patch.head.items()}
    kinds = [base.outline(name).dtype for name in base if name not in whole]
    kinds += [values.dtype for values in (*patch.values.values(), *whole.values())]
    widest = reduce(torch.promote_types, (kind for kind in kinds if kind.is_floating_point))
    new = {stored: name for name, stored in names.items()}
    changes = {new[stored]: part for stored, part in _changes_in_files(patch, named).items()}
    return PatchedTensors(base, changes, whole, widest)


def _skeleton(patch: PatchContent, checkpoint: Checkpoint) -> nn.Module:
    """The class that a patch is for, without values; raises ModelError if it can't be made of this checkpoint's config."""
    labels = len(patch.use.labels) if patch.head and patch.use.labels else None
    return skeleton(checkpoint, patch.use.model_class, labels)


def _names_in_files(patch: PatchContent, named: Named) -> dict[str, str]:
    """The name of each tensor that is written -> that in the base's files."""
    files, plain = named.checkpoint.files, _plainly_named(patch, named.checkpoint)
    names = {name: plain.stored(name)[0] for name in plain}
    if names.keys() != patch.region.shapes.keys():
        return {stored: stored for stored in files}
    first, parts = next(iter(names)).partition(".")[0], {name.rpartition(".")[0] for name in names}
    head = Named.of(named.checkpoint, patch.head, first)
    names |= {name: head.stored(name)[0] for name in head}
    # what is of no part, such as BART's final_logits_bias, the class knows
    if alone := {name for name in files.keys() - {*names.values()} if "." not in name}:
        with suppress(ModelError):  # of a model of another kind
            alone &= _skeleton(patch, named.checkpoint).state_dict().keys()
            names |= {name: name for name in sorted(alone)}
    # such as the statistics of a BatchNorm: what lies beside a parameter in the module that it is of
    left = {name: name for name in files.keys() - {*names.values()}}
    beside = {name if name.rpartition(".")[0] in parts else f"{first}.{name}": name for name in left}
    return names | {name: stored for name, stored in sorted(beside.items()) if name.rpartition(".")[0] in parts}


def _plainly_named(patch: PatchContent, checkpoint: Checkpoint) -> Named:
    """What of the patch's names is in the files as it is, but for the prefix of the backbone."""
    wanted = patch.region.shapes
    return Named.of(checkpoint, wanted, next(iter(wanted)).partition(".")[0])


def _name_in_files(named: Named, name: str, names: Mapping[str, str]) -> str:
    stored = named.stored(name) if name in named else []
    return stored[0] if name not in names and len(stored) == 1 and stored[0] in names else name


def _changes_in_files(patch: PatchContent, named: Named) -> dict[str, tuple[Tensor, Tensor]]:
    """The values of a patch by the names in the base's files: flat indices there, rising, and the values at them."""
    parts: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for name, indices in patch.mask.indices.items():
        for stored, at, which in named.places(name, indices):
            parts.setdefault(stored, []).append((at, patch.values[name][which]))
    joined = {stored: [torch.cat(column) for column in zip(*found, strict=True)] for stored, found in parts.items()}
    # what lies in one piece has its indices in order
    orders = {stored: joined[stored][0].argsort() for stored, found in parts.items() if len(found) > 1}
    return joined | {stored: tuple(column[order] for column in joined[stored]) for stored, order in orders.items()}


def require_base(patch: PatchContent, known: Tensors, title: str) -> None:
    """Raise MaskError unless these weights are what a patch was made from."""
    use, wanted = patch.use, patch.region.shapes
    kinds = {name: outline(known, name) for name in known}
    made_for = f"the patch was made for {use.base} (fingerprint {use.fingerprint[:12]}), not for {title}"
    there = {name: tuple(kind.shape) for name, kind in kinds.items()}
    if there != wanted:
        name = min(name for name in {*there, *wanted} if there.get(name) != wanted.get(name))
        sizes = [[*shapes[name]] if name in shapes else "none" for shapes in (wanted, there)]
        raise MaskError(f"{made_for}: {name} is {sizes[0]} there and {sizes[1]} here")
    if (found := identify(patch.region, known, patch.known).fingerprint) != use.fingerprint:
        raise MaskError(f"{made_for} ({found[:12]}): {_why_another(patch, known)}")


def _why_another(patch: PatchContent, known: Tensors) -> str:
    """How a model of the right shapes is not the one that a patch was made from."""
    kinds = {(part.dtype, known[name].dtype) for name, part in patch.values.items() if name in known}
    if any(ours != theirs and holds(theirs, ours) for theirs, ours in kinds):
        return "its numbers are rounded: load it in float32, put the patch on, then turn it into another dtype"
    names = differing(patch.use.fingerprint, patch.region, known)
    others = (
        f"; {len(names)} of its {len(known)} tensors differ{'s' * (len(names) == 1)} ({listed(names)})" if names else ""
    )
    return f"it was made for another state{others}"


def require_padding(use: PatchMetadata, tokens: int | None) -> None:
    """Raise MaskError if the model that a patch is for has fewer tokens than the number of its padding."""
    padding = use.config.get("pad_token_id")
    if padding is not None and tokens is not None and padding >= tokens:
        raise MaskError(f"damaged: patch.config.pad_token_id is {padding}, and the model has {tokens} tokens")
