"""The pretrained model that a graft is put onto: its tensors, whatever folder it lies in."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..errors import ModelError
from ..grafting.mask_file import StoredMask, require_model
from ..grafting.region import Region
from ..models.anatomy import CLASSES, FILE, ModelSpec, read_anatomy
from ..models.loading import read_tensors
from ..settings import ModelParams
from .locations import CONFIG


@dataclass(frozen=True)
class Base:
    """A folder as the stage `model` writes it, with every tensor of its checkpoint."""

    folder: Path
    anatomy: ModelSpec
    tensors: dict[str, Tensor]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the pretrained parameters, without a new head."""
        return {name: tuple(shape) for name, shape in self.anatomy.pretrained.items()}

    def fingerprint(self, region: Region) -> str:
        """Fingerprint of some of its parameters; an empty text if it doesn't have them in these shapes."""
        known = self.shapes
        same = all(known.get(name) == shape for name, shape in region.shapes.items())
        return region.fingerprint(self.tensors) if same else ""


def read_base(folder: Path) -> Base:
    """Read a folder that the stage `model` wrote; raises ModelError if it isn't one or is damaged."""
    if (folder / CONFIG).is_file() and not (folder / FILE).is_file():
        raise ModelError(
            f"{folder}: a mask is for a model as the stage `model` writes it, and this has no {FILE}; a patch is for any"
        )
    base = Base(folder, read_anatomy(folder), {})
    base.tensors.update(read_tensors(folder, base.shapes, others=True))
    return base


@contextmanager
def open_base(folder: Path, mode: str) -> Iterator[Base]:
    """The base model of any Hugging Face folder, for use inside `with`.

    One that the stage `model` wrote is read as it is; of any other a copy is made that has the names
    which a patch knows.  Raises ModelError if the folder can't be loaded for this `model.mode`.
    """
    if not (folder / CONFIG).is_file():
        raise ModelError(f"{folder}: no model there ({CONFIG} is missing)")
    if (folder / FILE).is_file() and CLASSES.get(read_anatomy(folder).mode) == CLASSES[mode]:
        yield read_base(folder)
        return
    # takes seconds, which the other way needn't
    from ..models.importing import import_model
    from ..models.sources import find_checkpoint, wanted_links

    name = str(folder)
    settings = ModelParams.model_construct(name=name, source="local", root=name, revision=None, mode=mode)
    with tempfile.TemporaryDirectory(prefix="graft-base-") as scratch:
        source, _ = find_checkpoint(name)
        with redirect_stdout(sys.stderr):  # what it says of the folder is no part of a command's answer
            import_model(wanted_links(source, source, Path(scratch)), settings, Path(scratch) / "base")
        yield read_base(Path(scratch) / "base")


def require_base(path: Path, stored: StoredMask, base: Base) -> None:
    """Raise MaskError unless a mask was made for the region of this base model."""
    region = stored.mask.region
    require_model(path, stored.about, region, base.fingerprint(region) or "other shapes", base.anatomy.name)
