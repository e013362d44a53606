"""Patch: what fine-tuning changed inside a mask, to keep, share and put onto its base model.

patch = sg.Patch.of(base, tuned, mask, title="movies")
patch.save_pretrained("movies")
model = sg.Patch.from_pretrained("movies").apply(base)
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from numbers import Real
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, overload
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from ..grafting.differences import as_bits
from ..grafting.mask import GraftMask
from ..grafting.mask_files import StoredMask
from ..grafting.region import Parameters, named_weights, unwrapped
from ..modules.heads import put_settings, with_settings
from ..modules.pairs import BaseOrPair, Pair
from ..modules.swapping import SWAPS, swapped, unswapped
from ..modules.targets import Model, copied_with, require_plain, writes_in
from ..support.errors import MaskError, ParamsError, StorageError, one_line
from ..support.writing import replacing
from .making import patch_between, patch_of
from .patch_file import PatchContent, PatchMetadata, read_patch
from .placing import changes_of, load_base, put_on, require_fitting

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .edits import Edit
    from .updates import Update

LOGGER = logging.getLogger("skill_grafting")
# how many patches were put on a model for good: each makes it another base
STATES: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()


class Patch(PatchContent):
    """The values of a fine-tuned model inside a mask, with all that is needed to use them on the base model.

    mask: where the values go, and how it was found (`mask.record`); values: for each parameter, of shape (number selected there,); head:
    tensors that are kept whole, namely heads and buffers that differ; use: the metadata (`PatchMetadata`).
    """

    def __init__(self, stored: StoredMask, use: PatchMetadata) -> None:
        super().__init__(stored, use)
        self._base: ref[nn.Module] | None = None
        self._bases: WeakKeyDictionary[nn.Module, tuple[int, list[ref[Tensor]]]] = WeakKeyDictionary()

    @classmethod
    def of(
        cls,
        base: BaseOrPair,
        tuned: nn.Module | None = None,
        mask: GraftMask | None = None,
        *,
        title: str = "",
        labels: Sequence[str] | None = None,
        notes: Mapping[str, Any] | None = None,
        heads: Parameters = None,
        **origin: str | None,
    ) -> "Patch":
        """Make the patch of two models, or of the pair of two checkpoints (see `read_pair`).

        labels: in the order of the logits, by default those of the tuned model's config; notes: what you say about its use, as JSON, which
        the card shows; heads: names of heads beside the usual ones; origin: name, source (hub, local) and revision of the base, by default
        those of its config.
        """
        pair = Pair.for_mask(base, tuned, mask, heads)
        return cls._of_base(patch_between(pair, mask, title=title, labels=labels, notes=notes, **origin), pair)

    @classmethod
    def holding(cls, pair: Pair, stored: StoredMask, **about: Any) -> "Patch":
        """The patch of these values for the base of a pair; `about` as in `of`, and `makes` (see `diff`)."""
        return cls._of_base(patch_of(pair, stored, **about), pair)

    @classmethod
    def _of_base(cls, content: PatchContent, pair: Pair) -> "Patch":
        patch = cls(content.stored, content.use)
        patch._base = ref(pair.model) if isinstance(pair.model, nn.Module) else None
        return patch

    # --- On models -----------------------------------------------------------------------------------------------------

    @overload
    def apply(self, base: Model, revision: None = None, dtype: torch.dtype | str | None = None) -> Model: ...
    @overload
    def apply(
        self, base: str | Path, revision: str | None = None, dtype: torch.dtype | str | None = None
    ) -> "PreTrainedModel": ...
    def apply(
        self, base: nn.Module | str | Path, revision: str | None = None, dtype: torch.dtype | str | None = None
    ) -> nn.Module:
        """Make a new model, the base with the patch on it.  A folder or hub id is loaded in float32 and in eval mode.

        dtype: of the result, by default that of the base.  Raises MaskError unless the patch was made from this base.
        """
        if isinstance(base, nn.Module):
            require_fitting(self, base, f"this {type(base).__name__}")
            model = copied_with(base, changes_of(self))
            put_settings(model, self.use.config, self.use.generation)
        else:
            model = put_on(self, load_base(self, base, revision), f"the model in {base}")
        if self.use.beside:
            what = "goes with the model, which can't hold it: `graft apply` writes it, and patch.use.beside has it"
            LOGGER.warning("%s of the tuned folder %s", ", ".join(self.use.beside), what)
        kind = getattr(torch, dtype, dtype) if isinstance(dtype, str) else dtype
        if kind is not None and not (isinstance(kind, torch.dtype) and kind.is_floating_point):
            raise ParamsError(
                f"dtype: {dtype!r} should be a floating-point dtype of torch or its name, such as bfloat16"
            )
        return model if kind is None else model.to(kind)

    @contextmanager
    def on(self, base: Model) -> Iterator[Model]:
        """Put the patch onto the base inside `with`; afterwards the base is as before, bit for bit, whatever happened.

        The base is compared with what the patch was made from only the first time; afterwards it may be moved or turned into another dtype.
        Patches and grafts may be nested: where both write, the inner one counts, and where it ends, the outer one's values are back;
        `active(base)` names what is on.  Raises MaskError for another base.
        """
        given, base = base, unwrapped(base)
        if not self._is_known(base):
            self.require(base)
        settings = with_settings(base, self.use.config, self.use.generation)
        with swapped(base, writes_in(given, changes_of(self)), self), settings:
            yield given

    def put_on(self, model: Model) -> Model:
        """Put the patch onto its base for good, in place, and give the model; it is compared as by `on`, and is no base of the patch then.

        Raises MaskError for another model, also for one that a patch is on just now.
        """
        base = unwrapped(model)
        if SWAPS.get(base):
            raise MaskError(f"{self!r}: another patch is on the model; leave its `with` first")
        put_on(self, base, f"this {type(base).__name__}")
        STATES[base] = STATES.get(base, 0) + 1
        return model

    def then(self, later: "Patch") -> "Patch":
        """One patch in the place of this one and a later one; MaskError unless this one makes what the later one was made from (see `diff`)."""
        from .chains import chained

        both = chained(self, later)
        return Patch(both.stored, both.use)

    @classmethod
    def edit(cls, base: nn.Module, mask: GraftMask, to: "float | Edit" = 0.0, **about: Any) -> "Patch":
        """The patch that writes a value into a mask of the base, or what `to(values, name)` makes of its values; 0 ablates what is there."""
        from .edits import edited

        weights = named_weights(base)
        for name, weight in weights.items():
            require_plain(name, weight)
        return cls.holding(Pair(dict(weights), dict(weights), unwrapped(base)), edited(weights, mask, to), **about)

    def scaled(self, base: nn.Module, alpha: float, title: str = "") -> "Patch":
        """The patch of base + alpha * (patched - base): -1 takes a skill away, 2 doubles it; what travels whole is left out."""
        from .edits import along

        self.require(base)
        if not isinstance(alpha, Real) or not isfinite(alpha):
            raise ParamsError(f"alpha: {alpha!r} should be a finite number")
        origin = {"name": self.use.base, "source": self.use.source, "revision": self.use.revision}
        title = title or f"{alpha:g} x {self.use.title}"
        return self.edit(base, self.mask, along(self.values, alpha), title=title, **origin)

    def updates(
        self, names: 'Literal["model", "file"]' = "model", model: "PreTrainedModel | None" = None
    ) -> "Iterator[Update]":
        """What changes, as (name, shape, dtype, values, int32 indices) for each tensor, heads whole; by the names of files for a `model`."""
        from .updates import updates

        return updates(self, names, model)

    def inverse(self, base: nn.Module) -> "Patch":
        """The patch that leads from the patched base back to the base."""
        patched = self.apply(base)
        origin = {"name": self.use.base, "source": self.use.source, "revision": self.use.revision}
        return Patch.of(
            patched,
            base,
            self.mask,
            title=f"back from {self.use.title}",
            heads={*self.head}.__contains__ if {*self.head} & named_weights(patched).keys() else None,
            labels=[],
            **origin,
        )

    # --- On the disk and the hub ------------------------------------------------------------------------------------------

    def save_pretrained(self, folder: str | Path, compact: bool = False) -> None:
        """Write the patch and its card into a folder; `compact`: a third to a half of the bytes, which only this package reads."""
        from .card import write_files

        write_files(Path(folder), self, compact=compact)

    def push_to_hub(self, repo_id: str, *, private: bool | None = None, token: str | None = None, **commit: Any) -> str:
        """Upload the patch and its card to a repository on the hub, which is made if there is none; gives the commit's address.

        commit: options of `huggingface_hub.HfApi.upload_folder`, such as commit_message or revision.  Raises StorageError if it can't be.
        """
        from huggingface_hub import HfApi

        with TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            try:
                hub = HfApi(token=token)
                repository = hub.create_repo(repo_id, private=private, exist_ok=True).repo_id
                return str(hub.upload_folder(repo_id=repository, folder_path=folder, **commit))
            except Exception as error:  # a connection that breaks has no error type of its own
                raise StorageError(f"{repo_id}: could not be uploaded to the hub: {one_line(error)}") from error

    @classmethod
    def from_pretrained(cls, place: str | Path, revision: str | None = None, **hub: Any) -> "Patch":
        """Read a patch from a folder, a file, or a repository on the hub; raises MaskError if it is missing or damaged.

        hub: options of `huggingface_hub.hf_hub_download`, such as token or cache_dir.
        """
        content = read_patch(place, revision, **hub)
        return cls(content.stored, content.use)

    def to_peft(self, folder: str | Path, base: nn.Module | None = None, leave_out: bool = False) -> str:
        """Write an adapter that `PeftModel.from_pretrained(base, folder)` loads, and give a sentence about what it holds.

        base: what the patch was made from, by default the model that it was made of or was last on.  leave_out: leave what an adapter can't
        hold, biases and embeddings, as pretrained; otherwise these are an error.
        """
        from .adapter import write_adapter

        model = base if base is not None else next(iter(self._bases), self._base and self._base())
        if model is None:
            raise ParamsError("base: to_peft needs the base model, of whose values an adapter stores the differences")
        self.require(model)
        with replacing(Path(folder), fresh=True) as made:
            made.mkdir()
            return write_adapter(made, self, model, leave_out)

    # --- About it ----------------------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Patch):
            return NotImplemented
        mine, theirs = (sorted(one.updates(), key=lambda part: part.name) for one in (self, other))
        same = self.use == other.use and len(mine) == len(theirs) and self.mask.region == other.mask.region
        return same and all(
            a[:3] == b[:3] and as_bits(a.values).equal(as_bits(b.values)) and a.indices.equal(b.indices)
            for a, b in zip(mine, theirs, strict=True)
        )

    __hash__ = object.__hash__

    def require(self, base: nn.Module) -> None:
        """Raise MaskError unless the patch was made from this model; `on` asks this the first time.

        The model has to be in float32 or in another type that holds the same numbers; afterwards it may be moved or turned into another dtype.
        """
        base = unwrapped(base)
        with unswapped(base):
            require_fitting(self, base, f"this {type(base).__name__}")
        self._bases[base] = STATES.get(base, 0), [ref(weight) for weight in named_weights(base).values()]

    def _is_known(self, base: nn.Module) -> bool:
        """True if the model was compared and has the same parameters still, whatever they were turned into: loading may replace them."""
        state, known = self._bases.get(base, (0, ()))
        now = named_weights(base).values()
        return (
            state == STATES.get(base, 0)
            and len(known) == len(now)
            and all(one() is weight for one, weight in zip(known, now, strict=True))
        )
