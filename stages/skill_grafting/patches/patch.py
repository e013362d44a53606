"""Patch: what fine-tuning changed inside a mask, to keep, share and put onto its base model.

patch = sg.Patch.of(base, tuned, mask, title="movies")
patch.save_pretrained("movies")
model = sg.Patch.from_pretrained("movies").apply(base)
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from ..grafting.apply import take_at
from ..grafting.mask import GraftMask
from ..grafting.mask_files import StoredMask
from ..grafting.region import Parameters, named_weights, unwrapped
from ..modules.heads import config_of, put_settings, with_settings
from ..modules.pairs import BaseOrPair, Pair
from ..modules.swapping import copied_with, swapped, unswapped
from ..modules.targets import writes_in
from ..support.errors import ModelError, ParamsError, StorageError, one_line
from ..support.writing import replacing
from .patch_file import PatchContent, PatchMetadata, describe, read_patch
from .placing import changes_of, load_base, put_on, require_fitting


class Patch(PatchContent):
    """The values of a fine-tuned model inside a mask, with all that is needed to use them on the base model.

    mask: where the values go, and how it was found (`mask.record`); values: for each parameter, of shape (number selected there,); head:
    tensors that are kept whole, namely heads and buffers that differ; use: the metadata (`PatchMetadata`).
    """

    def __init__(self, stored: StoredMask, use: PatchMetadata) -> None:
        super().__init__(stored, use)
        self._base: ref[nn.Module] | None = None
        self._bases: WeakKeyDictionary[nn.Module, list[ref[Tensor]]] = WeakKeyDictionary()

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
        if strange := origin.keys() - {"name", "source", "revision"}:
            raise ParamsError(f"{min(strange)}: unknown; of the base a patch says name, source and revision")
        if isinstance(labels, str) or not isinstance(labels, Iterable | None):
            raise ParamsError(f"labels: {labels!r} should be a list of names, in the order of the logits")
        if pair.extra:
            raise ModelError(f"{min(pair.extra) or 'the model'} has an extra state, which a patch can't hold")
        whole = pair.travelling(mask)
        pair.require_finite(whole)
        head = {name: pair.after[name].detach().cpu().clone() for name in whole}
        values = {name: take_at(pair.after[name], at).cpu() for name, at in mask.indices.items()}
        known = pair.labels if labels is None else [str(label) for label in labels]
        about = {"title": title, "labels": known, "notes": dict(notes or {})}
        stored = StoredMask(mask, values, head, {})
        patch = cls(
            stored,
            describe(
                stored, pair.before, pair.weights, {**pair.origin, **origin, **about}, config_of(pair.tuned_model)
            ),
        )
        patch._base = ref(pair.model) if isinstance(pair.model, nn.Module) else None
        return patch

    # --- On models -----------------------------------------------------------------------------------------------------

    def apply(
        self, base: nn.Module | str | Path, revision: str | None = None, dtype: torch.dtype | str | None = None
    ) -> nn.Module:
        """Make a new model, the base with the patch on it.  A folder or hub id is loaded in float32 and in eval mode.

        dtype: of the result, by default that of the base.  Raises MaskError unless the patch was made from this base.
        """
        if isinstance(base, nn.Module):
            require_fitting(self, base, f"this {type(base).__name__}")
            model = copied_with(base, changes_of(self))
            put_settings(model, self.use.config)
        else:
            model = put_on(self, load_base(self, base, revision), f"the model in {base}")
        kind = getattr(torch, dtype, dtype) if isinstance(dtype, str) else dtype
        if kind is not None and not (isinstance(kind, torch.dtype) and kind.is_floating_point):
            raise ParamsError(
                f"dtype: {dtype!r} should be a floating-point dtype of torch or its name, such as bfloat16"
            )
        return model if kind is None else model.to(kind)

    @contextmanager
    def on(self, base: nn.Module) -> Iterator[nn.Module]:
        """Put the patch onto the base inside `with`; afterwards the base is as before, bit for bit, whatever happened.

        The base is compared with what the patch was made from only the first time; afterwards it may be moved or turned into another dtype.
        Swaps may be nested.  Raises MaskError for another base.
        """
        given, base = base, unwrapped(base)
        if not self._is_known(base):
            self.require(base)
        with swapped(base, writes_in(given, changes_of(self))), with_settings(base, self.use.config):
            yield given

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...], Tensor, Tensor]]:
        """For each tensor its name, full shape, flat indices (int64) and the values to assign there; for heads all of them."""
        for name, at in self.mask.indices.items():
            yield name, self.mask.region.shapes[name], at, self.values[name]
        for name, part in self.head.items():
            yield name, tuple(part.shape), torch.arange(part.numel()), part.reshape(-1)

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

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the patch and its card into a folder."""
        from .card import write_files

        write_files(Path(folder), self)

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
        mine, theirs = (sorted(one.tensors(), key=lambda part: part[0]) for one in (self, other))
        same = self.use == other.use and len(mine) == len(theirs) and self.mask.region == other.mask.region
        return same and all(
            a[:2] == b[:2] and a[2].equal(b[2]) and a[3].equal(b[3]) for a, b in zip(mine, theirs, strict=True)
        )

    __hash__ = object.__hash__

    def require(self, base: nn.Module) -> None:
        """Raise MaskError unless the patch was made from this model; `on` asks this the first time.

        The model has to be in float32 or in another type that holds the same numbers; afterwards it may be moved or turned into another dtype.
        """
        base = unwrapped(base)
        with unswapped(base):
            require_fitting(self, base, f"this {type(base).__name__}")
        self._bases[base] = [ref(weight) for weight in named_weights(base).values()]

    def _is_known(self, base: nn.Module) -> bool:
        """True if the model was compared and has the same parameters still, whatever they were turned into: loading may replace them."""
        known = self._bases.get(base, ())
        now = named_weights(base).values()
        return len(known) == len(now) and all(one() is weight for one, weight in zip(known, now, strict=True))
