"""The pretrained model that a graft is put onto, in a folder or live, and whether it is the one that the graft was made for."""

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from ..errors import MaskError, ModelError
from ..grafting.region import Tensors
from ..io import read_json
from ..models.anatomy import CLASSES, FILE, ModelSpec, read_anatomy
from ..models.loading import read_tensors
from ..settings import ModelParams
from .patch_file import GraftFile
from .paths import CONFIG


@dataclass(frozen=True)
class Weights:
    """Pretrained parameters by name: shapes, values, and the shapes of a new head for a number of labels.

    `title` is what messages call the model, `tokens` the size of its vocabulary if known, `hint` goes with another fingerprint.
    """

    title: str
    shapes: dict[str, tuple[int, ...]]
    tensors: Tensors
    head_shapes: Callable[[int], dict[str, tuple[int, ...]]]
    tokens: int | None
    hint: str

    def require(self, graft: GraftFile) -> None:
        """Raise MaskError unless these are what a mask's region, or all that a patch was made from, and its head fits."""
        use, about, region = graft.use, graft.stored.about, graft.region
        name, wanted = (use.base, use.fingerprint) if use else (about.get("model"), about.get("fingerprint"))
        made_for = f"{graft.path}: was made for {name} (fingerprint {str(wanted)[:12]}), not for {self.title}"
        there = self.shapes if use else {name: self.shapes[name] for name in region.shapes if name in self.shapes}
        if there != region.shapes:
            name = min(name for name in {*there, *region.shapes} if there.get(name) != region.shapes.get(name))
            sizes = [list(shapes[name]) if name in shapes else "none" for shapes in (region.shapes, there)]
            raise MaskError(f"{made_for}: {name} is {sizes[0]} there and {sizes[1]} here")
        if (found := region.fingerprint(self.tensors)) != wanted:
            raise MaskError(f"{made_for} ({found[:12]}){self.hint}")
        if use:
            self.require_head(graft)

    def require_head(self, patch: GraftFile) -> None:
        """Raise MaskError unless the head of a patch fits the model and its labels, and its padding the vocabulary."""
        use, head = patch.use, patch.stored.head
        padding, wanted = use.config["pad_token_id"], self.head_shapes(len(use.labels))
        if padding is not None and self.tokens is not None and padding >= self.tokens:
            problem = f"patch.config.pad_token_id is {padding}, and the model has {self.tokens} tokens"
            raise MaskError(f"{patch.path}: damaged: {problem}")
        if {name: tuple(part.shape) for name, part in head.items()} != wanted:
            found = ", ".join(f"{name} {list(part.shape)}" for name, part in sorted(head.items())) or "none"
            needed = ", ".join(f"{name} {list(shape)}" for name, shape in sorted(wanted.items())) or "none"
            labels = f"of {use.auto_class} for {len(use.labels)} labels"
            raise MaskError(f"{patch.path}: its head {labels} is {found}, and that of {self.title} is {needed}")


@dataclass(frozen=True)
class Base(Weights):
    """Those of a folder."""

    folder: Path
    anatomy: ModelSpec

    @classmethod
    def read(cls, folder: Path, title: object = None) -> "Base":
        """The base model in a folder that the stage `model` wrote; raises ModelError if it is damaged."""
        anatomy = read_anatomy(folder)
        return cls.of(folder, anatomy, read_tensors(folder, anatomy.pretrained, others=True), title)

    @classmethod
    def of(cls, folder: Path, anatomy: ModelSpec, tensors: Tensors, title: object = None) -> "Base":
        """The base model of this anatomy in a folder, which messages call by another `title` if there is one."""
        shapes = {name: tuple(shape) for name, shape in anatomy.pretrained.items()}
        tokens = read_json(folder / CONFIG, ModelError).get("vocab_size")
        return cls(f"the model in {title or folder}", shapes, tensors, anatomy.head_shapes, tokens, "", folder, anatomy)

    @property
    def pad_token_id(self) -> int | None:
        """Number of the tokenizer's padding token; models that have none of their own must be told."""
        token = read_json(self.folder / "tokenizer_config.json", ModelError).get("pad_token")
        word = token["content"] if isinstance(token, dict) else token
        added = read_json(self.folder / "tokenizer.json", ModelError)["added_tokens"]
        known = {entry["content"]: entry["id"] for entry in added}
        return known.get(word, read_json(self.folder / CONFIG, ModelError).get("pad_token_id"))


@contextmanager
def open_base(folder: Path, graft: GraftFile) -> Iterator[Base]:
    """The base model in a folder, for use inside `with`: for a mask as the stage `model` writes it, for a patch any folder.

    Of one that the stage didn't write a copy is made, with the names that a patch knows.  Raises ModelError if it can't be loaded.
    """
    if not (folder / CONFIG).is_file():
        raise ModelError(f"{folder}: no model there ({CONFIG} is missing)")
    ours, mode = (folder / FILE).is_file(), graft.use and graft.use.mode
    if mode is None and not ours:
        raise ModelError(
            f"{folder}: a mask is for a model as the stage `model` writes it, and this has no {FILE}; a patch is for any"
        )
    if ours and (mode is None or CLASSES.get(read_anatomy(folder).mode) == CLASSES[mode]):
        yield Base.read(folder)
        return
    # takes seconds, which the other way needn't
    from ..models.importing import import_model
    from ..models.sources import find_checkpoint, wanted_links

    settings = ModelParams.model_construct(name=str(folder), source="local", root=str(folder), revision=None, mode=mode)
    with tempfile.TemporaryDirectory(prefix="graft-base-") as scratch:
        source, _ = find_checkpoint(str(folder))
        with redirect_stdout(sys.stderr):  # what it says of the folder is no part of a command's answer
            import_model(wanted_links(source, source, Path(scratch)), settings, Path(scratch) / "base")
        yield Base.read(Path(scratch) / "base", folder)
