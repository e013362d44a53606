"""The pretrained model under a graft, in a folder or live, whether it is the one that the graft was made for, and a patch made on it."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..data.tasks import TaskSpec
from ..errors import MaskError, ModelError
from ..grafting.region import Region, Tensors
from ..grafting.select import LazyTensors
from ..models.anatomy import CLASSES, FILE, ModelSpec, read_anatomy
from ..models.checkpoints import Checkpoint, Named, lacking, skeleton, untied
from ..models.structure import anatomy_of
from .patch_file import KEY, GraftFile, PatchMetadata, names_of_labels
from .paths import CONFIG

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# the types of files that are narrower than float32, in which values are compared
TORCH = {"BF16": torch.bfloat16, "F16": torch.float16}


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
    """Those of a folder, with the config that a model of it is written with, and `dtype`, which holds all that its files do."""

    folder: Path
    spec: ModelSpec
    config: dict[str, Any]
    dtype: torch.dtype

    @classmethod
    def of(
        cls, folder: Path, spec: ModelSpec, tensors: Tensors, config: dict[str, Any], dtype: torch.dtype = torch.float32
    ) -> "Base":
        """The base model of this structure in a folder."""
        shapes = {name: tuple(shape) for name, shape in spec.pretrained.items()}
        title, tokens = f"the model in {folder}", config.get("vocab_size")
        return cls(title, shapes, tensors, spec.head_shapes, tokens, "", folder, spec, config, dtype)


def open_base(folder: Path, graft: GraftFile) -> Base:
    """The base model in a folder, its tensors mapped: for a mask as the stage `model` writes it, for a patch any folder of it.

    Raises ModelError if it isn't complete, is damaged, or can't be read as the patch requires.
    """
    if not (folder / CONFIG).is_file():
        raise ModelError(f"{folder}: no model there ({CONFIG} is missing); --base names the base model's folder")
    mode, checkpoint, prefix = graft.use and graft.use.mode, Checkpoint.open(str(folder)), ""
    spec = read_anatomy(folder) if (folder / FILE).is_file() else None
    if mode is None and spec is None:
        raise ModelError(
            f"{folder}: a mask is for a model as the stage `model` writes it, and this has no {FILE}; a patch is for any"
        )
    if spec and (mode is None or CLASSES.get(spec.mode) == CLASSES[mode]):
        known = Named.of(checkpoint, spec.pretrained, "")
        config, others, problems = checkpoint.config, [*checkpoint.files], known.problems(spec.pretrained)
    else:
        model, spec, known, problems = read_as(checkpoint, mode)
        model.config.update({"architectures": [type(model).__name__], "dtype": "float32"})
        config, prefix = json.loads(model.config.to_json_string()), model.base_model_prefix
        others = model.state_dict().keys() - dict(model.named_parameters(remove_duplicate=False)).keys()
    if problems:
        raise ModelError("; ".join(problems))
    buffers = Named.of(checkpoint, [name for name in others if name not in spec.shapes], prefix)

    def read(name: str) -> Tensor:
        return known.read(name).float() if name in known.stored else buffers.read(name)

    types = [TORCH.get(name, torch.float32) for name in known.types]
    dtype = types[0] if len(types) == 1 else torch.float32
    return Base.of(folder, spec, LazyTensors([*known.stored, *buffers.stored], read), config, dtype)


def read_as(checkpoint: Checkpoint, mode: str) -> tuple["PreTrainedModel", ModelSpec, Named, list[str]]:
    """A checkpoint as the class of a mode: a model without values, its structure, the stored tensors, and all that is wrong."""
    model = skeleton(checkpoint, mode)
    name = checkpoint.title if checkpoint.source == "hub" else checkpoint.folder.resolve().name
    spec = anatomy_of(model, mode, name, checkpoint.source, checkpoint.commit, lacking(checkpoint, model))
    named = Named.of(checkpoint, spec.pretrained, model.base_model_prefix)
    return model, spec, named, named.problems(spec.pretrained) + untied(named, model)


def make_patch(graft: GraftFile, task: TaskSpec, base: Base, max_length: int, pad_token_id: int | None) -> GraftFile:
    """The patch of a mask on its base model for one task; without labels, for no task in particular.

    Raises MaskError if the mask's head doesn't fit, ModelError if the task can't be read off this model.
    """
    origin, mode, stored = base.spec, base.spec.mode, graft.stored
    if task.labels and (problems := task.prompt_problems(mode)):
        raise ModelError("; ".join(problems))
    region = stored.mask.region.shapes
    outside = {name: shape for name, shape in base.shapes.items() if name not in region}
    use = PatchMetadata(
        auto_class=CLASSES[mode],
        labels=task.labels,
        config={"pad_token_id": pad_token_id, **names_of_labels(task.labels, CLASSES[mode])},
        base=origin.name,
        source=origin.source,
        revision=origin.revision,
        fingerprint=Region(outside | region).fingerprint(base.tensors),
        outside={name: list(shape) for name, shape in outside.items()},
        task=task.name,
        title=task.title,
        prompt=task.prompt_for(mode),
        max_length=max_length,
    )
    patch = replace(
        graft, use=use, stored=replace(stored, about={**stored.about, "task": task.name, KEY: use.model_dump()})
    )
    base.require_head(patch)
    return patch
