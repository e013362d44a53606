"""A checkpoint of anybody's as it lies on the disk: one tensor at a time, in its own dtype, never all of them.

Files are mapped, so that what is read of them is no memory of this process that the system couldn't take back.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import ModelError, one_line
from ..grafting.region import LazyTensors, named_weights
from ..io import read_json
from .anatomy import CLASSES, HEAD, ModelSpec, shapes_of
from .folders import CONFIG, commit_of, find_checkpoint, weight_files
from .loading import MADE_ANEW, POOLERS, is_dropout, load_config, quiet_transformers
from .probing import most_tokens

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

# as safetensors calls what can be grafted: whole numbers and eight bits are those of quantised weights, and F64 would be rounded
FLOATS = ("F32", "BF16", "F16")
# what BERT's first checkpoints call the two parameters of a LayerNorm
OLD_NAMES = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
MOST_NAMED, MOST_LABELS = 3, 1_000_000
# problem_type of a classifier whose logits are of one label, as without any, and of one whose labels are each true or not
ONE_LABEL, MULTI_LABEL = "single_label_classification", "multi_label_classification"
# settings of a config that change nothing of what a model computes for a text, beside dropouts, labels and the like: sizes that
# tensors show, where a text begins and ends, and what training alone looks at
HARMLESS = re.compile(
    "(vocab_size|max_position_embeddings|n_positions|tie_word_embeddings|(pad|bos|eos|sep|cls|mask|unk)_(token_)?(id|index)"
    "|max_window_layers|use_cache|initializer_\\w+|init_\\w+|layerdrop|output_\\w+|router_aux_loss_coef|router_jitter_noise"
    "|gradient_checkpointing|pretraining_tp)$"
)


@dataclass(frozen=True)
class Checkpoint:
    """Config and mapped tensors of a folder; `title` is how the user called it, `source` local or hub."""

    title: str
    source: str
    folder: Path
    config: dict[str, Any]
    files: dict[str, Any]

    @classmethod
    def open(cls, title: str, revision: str | None = None, tokenizer: bool = True) -> "Checkpoint":
        """Open a folder or a hub id; raises ModelError if it isn't complete, is damaged, or holds more than data."""
        folder, source = find_checkpoint(title, revision, tokenizer)
        files: dict[str, Any] = {}
        for file in weight_files(folder):
            try:
                stored = safe_open(file, framework="pt")
                files |= dict.fromkeys(stored.keys(), stored)
            except (OSError, SafetensorError) as error:
                raise ModelError(f"{file}: damaged: {error}") from error
        return cls(title, source, folder, read_json(folder / CONFIG, ModelError), files)

    @property
    def saved_from(self) -> list[str]:
        """The classes that its config.json names; none where it names no class."""
        saved = self.config.get("architectures") or []
        return [str(name) for name in (saved if isinstance(saved, list) else [saved])]

    @property
    def commit(self) -> str | None:
        """The commit of the hub that it is; None for a folder."""
        return commit_of(self.folder) if self.source == "hub" else None

    def shape(self, stored: str) -> tuple[int, ...]:
        """Shape of a tensor, by its name in the file."""
        return tuple(self.files[stored].get_slice(stored).get_shape())

    def dtype(self, stored: str) -> str:
        """Type of a tensor, by its name in the file: F32, BF16, I8 and so on."""
        return self.files[stored].get_slice(stored).get_dtype()

    def read(self, stored: str) -> Tensor:
        """A tensor in its own dtype, mapped; not to be written to."""
        return self.files[stored].get_tensor(stored)


@dataclass(frozen=True)
class Named:
    """A checkpoint under the names of the class that it is loaded as; `stored` leads from these to those in its files.

    Its values are rounded to the types of `rounded_as`, if there is one: one saved in a narrower type was rounded so.
    """

    checkpoint: Checkpoint
    stored: dict[str, str]
    rounded_as: "Named | None" = None

    @classmethod
    def of(cls, checkpoint: Checkpoint, names: Iterable[str], prefix: str) -> "Named":
        """Find each of the names, with or without the prefix of the backbone; those that aren't there are left out."""
        found = {name: _stored_name(checkpoint, name, prefix) for name in names}
        return cls(checkpoint, {name: stored for name, stored in found.items() if stored})

    def read(self, name: str) -> Tensor:
        """A tensor in its own dtype, mapped, or rounded."""
        values, other = self.checkpoint.read(self.stored[name]), self.rounded_as
        return values.to(other.read(name).dtype) if other and name in other.stored else values

    def values(
        self, look: Callable[[str], object] = lambda _: None, device: "torch.device | str" = "cpu"
    ) -> LazyTensors:
        """All of them in float32, which holds each value exactly, on a device; one at a time, whose name `look` hears."""

        def read(name: str) -> Tensor:
            values = self.read(name).to(device).float()
            look(name)
            return values

        return LazyTensors(self.stored, read)

    @property
    def types(self) -> set[str]:
        """The types that its tensors have."""
        return {self.checkpoint.dtype(stored) for stored in self.stored.values()}

    def packed(self) -> list[str]:
        """Names of the tensors in a type that can't be grafted."""
        return [name for name, stored in self.stored.items() if self.checkpoint.dtype(stored) not in FLOATS]

    def not_finite(self, values: Mapping[str, Tensor]) -> list[str]:
        """A line on the tensors, if any, that have NaN or infinite values."""
        bad = [name for name, tensor in values.items() if not bool(tensor.isfinite().all())]
        return [f"{self.checkpoint.folder}: values that are no numbers: NaN or infinite ({listed(bad)})"] * bool(bad)

    def problems(self, shapes: dict[str, Sequence[int]]) -> list[str]:
        """Why it can't be grafted: tensors of these shapes that are missing, have another one, or are quantised."""
        packed, types = self.packed(), ", ".join(sorted(self.types - {*FLOATS}))
        found = {name: self.checkpoint.shape(stored) for name, stored in self.stored.items() if name not in packed}
        reasons = {
            "missing": [name for name in shapes if name not in self.stored],
            f"in {types}; only weights in {', '.join(FLOATS)} can be grafted": packed,
            "of another shape than its config.json says": [
                f"{name} is {list(shape)} and not {list(shapes[name])}"
                for name, shape in found.items()
                if shape != tuple(shapes[name])
            ],
        }
        lines = [
            f"{self.checkpoint.title}: {len(names)} tensor{'s'[: len(names) > 1]} {words} ({listed(names)})"
            for words, names in reasons.items()
            if names
        ]
        if reasons["missing"] and (unused := sorted(self.checkpoint.files.keys() - {*self.stored.values()})):
            lines.append(
                f"it has {listed(unused)} besides; are these the missing ones, load it with transformers and save it anew by "
                "save_pretrained(..., save_original_format=False)"
            )
        return lines


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    return ", ".join([*names[:MOST_NAMED], *[f"{len(names) - MOST_NAMED:,} more"] * (len(names) > MOST_NAMED)])


def _stored_name(checkpoint: Checkpoint, name: str, prefix: str) -> str | None:
    names = (name, name.removeprefix(f"{prefix}."), f"{prefix}.{name}")
    return next((old for new in names for old in (new, _old_name(new)) if old in checkpoint.files), None)


def _old_name(name: str) -> str:
    for new, old in OLD_NAMES.items():
        name = name.removesuffix(new) + old if name.endswith(new) else name
    return name


def _classes() -> dict[str, dict[str, str]]:
    """Mode of reading labels -> kind of model -> its class."""
    from transformers.models.auto import modeling_auto

    return {
        "standard": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
        "prompt": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        "autoregressive": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    }


def class_name(kind: str, mode: str) -> str:
    """The class of transformers by which a mode reads labels off a kind of model."""
    return _classes()["autoregressive" if mode == "generative" else mode][kind]


def mode_of_class(name: str | None) -> str | None:
    """The `model.mode` whose class this is; None if it is another class."""
    return next((mode for mode, names in _classes().items() if name in names.values()), None)


def mode_of(checkpoint: Checkpoint) -> str | None:
    """The `model.mode` whose class a checkpoint was saved from; None if it was another class."""
    saved, kind = checkpoint.saved_from[:1], str(checkpoint.config.get("model_type"))
    return next((mode for mode, names in _classes().items() if [names.get(kind)] == saved), None)


def labels_of(checkpoint: Checkpoint) -> list[str]:
    """The names of the labels that a classifier's config has, in the order of its logits; LABEL_0 and so on if it has none."""
    number = checkpoint.config.get("num_labels", 2)
    if type(number) is not int or not 0 <= number <= MOST_LABELS:
        raise ModelError(f"{checkpoint.title}: its num_labels should be a number of labels, not {number!r}")
    names = checkpoint.config.get("id2label") or {str(place): f"LABEL_{place}" for place in range(number)}
    try:
        labels = [str(names[str(place)]) for place in range(len(names))]
    except (KeyError, TypeError, AttributeError):
        raise ModelError(f"{checkpoint.title}: its id2label should name the labels 0, 1, ..., not {names}") from None
    if len({*labels}) < len(labels):
        raise ModelError(f"{checkpoint.title}: two of its labels have the same name: {', '.join(labels)}")
    return labels


def skeleton(checkpoint: Checkpoint, kind: str, labels: int | None = None) -> "PreTrainedModel":
    """The model of a checkpoint's config without any values, of a mode's class or the class of a name, with so many labels.

    Raises ModelError if transformers can't make it.
    """
    import torch
    import transformers

    quiet_transformers()
    config = load_config(checkpoint.folder)
    if labels is not None:
        config.num_labels = labels
    try:
        with torch.device("meta"):
            if kind in CLASSES:
                return getattr(transformers, CLASSES[kind]).from_config(config, trust_remote_code=False)
            return getattr(transformers, kind)(config)
    except Exception as error:  # transformers checks little of config.json, and runs into the rest anyhow
        what = f"with mode {kind}" if kind in CLASSES else f"as {kind}"
        raise ModelError(f"{checkpoint.title}: can't be read {what}: {one_line(error)}") from error


def lacking(checkpoint: Checkpoint, model: "PreTrainedModel") -> list[str]:
    """The parameters of a model that a checkpoint doesn't have, such as those of a new head."""
    names = named_weights(model)
    return [name for name in names if name not in Named.of(checkpoint, names, model.base_model_prefix).stored]


def fitted(
    checkpoint: Checkpoint, labels: int | None, model: "PreTrainedModel", anatomy: ModelSpec
) -> tuple[Named, "PreTrainedModel", list[str]]:
    """A checkpoint by the names of its skeleton, that, and every reason why it can't be a fine-tuned `model`, of this anatomy."""
    other = skeleton(checkpoint, anatomy.mode, labels or None)
    title, theirs = checkpoint.title, shapes_of(other)
    side = Named.of(checkpoint, theirs, other.base_model_prefix)
    problems = side.problems(theirs) + untied(side, other)
    differences = _differences(anatomy, theirs)
    problems += [f"{title}: is no fine-tuned {anatomy.name}: {words}" for words in differences]
    if not differences and (changed := _arithmetic(model, other)):
        which = f"computes otherwise than {anatomy.name}, which no graft can carry"
        problems.append(f"{title}: {which}: its config.json has {changed}")
    return side, other, problems


def unread(side: Named, model: "PreTrainedModel") -> list[str]:
    """The tensors of a checkpoint's that a model computes without, but for tables that it makes itself and a pooler."""
    read = {*Named.of(side.checkpoint, model.state_dict(), model.base_model_prefix).stored.values()}
    passed = re.compile("|".join([MADE_ANEW, POOLERS, *(model._keys_to_ignore_on_load_unexpected or ())]))
    return sorted(name for name in {*side.checkpoint.files} - read if not passed.search(name))


def _arithmetic(ours: "PreTrainedModel", theirs: "PreTrainedModel") -> str:
    """Settings by which two models of the same shapes may compute otherwise: "rope_theta 5000 and not 10000"."""
    changes = _changes(*(model.config.to_dict() for model in (ours, theirs)), {*type(ours.config)().to_dict()})
    # RoBERTa and its kin count positions from it
    if most_tokens(ours) != most_tokens(theirs):
        changes.append(f"pad_token_id {theirs.config.pad_token_id} and not {ours.config.pad_token_id}")
    return listed(changes)


def _changes(before: dict[str, Any], after: dict[str, Any], known: Collection[str]) -> list[str]:
    """All known settings that differ and aren't known to be harmless, those of a config inside the config too."""
    from transformers import PreTrainedConfig

    changes, passed = [], PreTrainedConfig().to_dict().keys()
    for name in sorted(before.keys() & after.keys() & {*known}):
        one, other = before[name], after[name]
        if one == other or name in passed or HARMLESS.match(name) or is_dropout(name, one):
            continue
        if isinstance(one, dict) and isinstance(other, dict) and "model_type" in one:
            changes += [f"{name}.{line}" for line in _changes(one, other, one)]
        else:
            changes.append(f"{name} {other} and not {one}")
    return changes


def untied(side: Named, model: "PreTrainedModel") -> list[str]:
    """Lines on tensors that the config ties to others and that the file has with other values: transformers leaves such a pair untied."""
    once, problems = {id(weight): name for name, weight in named_weights(model).items()}, []
    for name, weight in model.named_parameters(remove_duplicate=False):
        stored = side.stored.get(once[id(weight)])
        if once[id(weight)] != name and stored and name in side.checkpoint.files and name != stored:
            values = [side.checkpoint.read(one) for one in (stored, name)]
            if values[0].shape != values[1].shape or not bool((values[0] == values[1]).all()):
                problems.append(
                    f"{side.checkpoint.title}: its config.json ties {name} to {stored}, and the file has other values for it"
                )
    return problems


def _differences(anatomy: ModelSpec, theirs: dict[str, list[int]]) -> list[str]:
    """Differences of a model's parameters from those of this anatomy, outside a head."""
    ours = anatomy.pretrained
    others = {name: shape for name, shape in theirs.items() if anatomy.groups.get(name) != HEAD}
    words = [name for name in ours if name in others and ours[name] != others[name]]
    embeddings = [name for name in words if anatomy.groups[name] == "embeddings"]
    rest = [name for name in words if name not in embeddings] + [*(ours.keys() ^ others.keys())]
    sizes = [f"{name} {ours[name]} and {others[name]}" for name in embeddings]
    return [f"the two have other vocabularies or lengths ({listed(sizes)})"] * bool(sizes) + [
        f"the two have other layers or shapes ({listed(sorted(rest))})"
    ] * bool(rest)
