"""Whether a checkpoint is a fine-tuned other one, by its config and the shapes of its tensors, and how labels are read off it."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..grafting.region import named_weights
from ..models.anatomy import ModelSpec, shapes_of
from ..models.loading import MADE_ANEW, POOLERS, classes, is_dropout
from ..models.probing import most_tokens
from ..support.errors import ModelError
from ..support.fields import HEAD
from ..support.formatting import listed
from .files import Checkpoint, Named
from .layouts import named_as, require_sizes, skeleton, tied_names

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# as safetensors calls what can be grafted: whole numbers and eight bits are those of quantised weights, and F64 would be rounded
FLOATS = ("F32", "BF16", "F16")
# problem_type of a classifier whose logits are of one label, as without any, and of one whose labels are each true or not
ONE_LABEL, MULTI_LABEL = "single_label_classification", "multi_label_classification"
# settings of a config that change nothing of what a model computes for a text, beside dropouts, labels and the like: sizes that
# tensors show, where a text begins and ends, and what training alone looks at
HARMLESS = re.compile(
    "(vocab_size|max_position_embeddings|n_positions|tie_word_embeddings|(pad|bos|eos|sep|cls|mask|unk)_(token_)?(id|index)"
    "|max_window_layers|use_cache|initializer_\\w+|init_\\w+|layerdrop|output_\\w+|router_aux_loss_coef|router_jitter_noise"
    "|gradient_checkpointing|pretraining_tp)$"
)


def mode_of(checkpoint: Checkpoint) -> str | None:
    """The mode whose class a checkpoint was saved from; None if it was another class."""
    saved, kind = checkpoint.saved_from[:1], str(checkpoint.config.get("model_type"))
    return next((mode for mode, names in classes().items() if [names.get(kind)] == saved), None)


def labels_of(checkpoint: Checkpoint) -> list[str]:
    """The names of the labels that a classifier's config has, in the order of its logits; LABEL_0 and so on if it has none."""
    require_sizes(checkpoint)
    number = checkpoint.config.get("num_labels", 2)
    names = checkpoint.config.get("id2label") or {str(place): f"LABEL_{place}" for place in range(number)}
    try:
        labels = [str(names[str(place)]) for place in range(len(names))]
    except (KeyError, TypeError, AttributeError):
        raise ModelError(f"{checkpoint.title}: its id2label should name the labels 0, 1, ..., not {names}") from None
    if len({*labels}) < len(labels):
        raise ModelError(f"{checkpoint.title}: two of its labels have the same name: {', '.join(labels)}")
    return labels


def fitted(
    checkpoint: Checkpoint, labels: int | None, model: "PreTrainedModel", anatomy: ModelSpec
) -> tuple[Named, "PreTrainedModel", list[str]]:
    """A checkpoint by the names of its skeleton, that, and every reason why it can't be a fine-tuned `model`, of this anatomy."""
    other = skeleton(checkpoint, anatomy.mode, labels or None)
    title, side, ties = checkpoint.title, named_as(checkpoint, other), tied_names(model)
    loose = {name: once for name, once in ties.items() if name in named_weights(other) and {name, once} <= {*side}}
    if loose and all(same_values(side, name, once) for name, once in loose.items()):  # untied, and equal all the same
        other = skeleton(checkpoint, anatomy.mode, labels or None, tied=True)
        side = named_as(checkpoint, other)
    theirs = shapes_of(other)
    reasons = problems(side, theirs) + untied(side, other)
    differences = _differences(anatomy, theirs, tied_names(model).keys() & theirs.keys())
    reasons += [f"{title}: is no fine-tuned {anatomy.name}: {words}" for words in differences]
    if not differences and (changed := _arithmetic(model, other)):
        which = f"computes otherwise than {anatomy.name}, which no graft can carry"
        reasons.append(f"{title}: {which}: its config.json has {changed}")
    return side, other, reasons


def unread(side: Named, model: "PreTrainedModel") -> list[str]:
    """The tensors of a checkpoint's that a model computes without, but for tables that it makes itself and a pooler."""
    passed = re.compile("|".join([MADE_ANEW, POOLERS, *(model._keys_to_ignore_on_load_unexpected or ())]))
    return sorted(name for name in {*side.checkpoint.files} - side.used if not passed.search(name))


def _arithmetic(ours: "PreTrainedModel", theirs: "PreTrainedModel") -> str:
    """Settings by which two models of the same shapes may compute otherwise: "rope_theta 5000 and not 10000"."""
    changes = _changes(*(model.config.to_dict() for model in (ours, theirs)), {*type(ours.config)().to_dict()})
    # RoBERTa and its kin count positions from it
    paddings = [getattr(model.config, "pad_token_id", None) for model in (theirs, ours)]
    if paddings[0] != paddings[1] and _positions(ours) != _positions(theirs):
        changes.append(f"pad_token_id {paddings[0]} and not {paddings[1]}")
    return listed(changes)


def _positions(model: "PreTrainedModel") -> int | None:
    """`most_tokens`, None of what no short input can be run through."""
    try:
        return most_tokens(model)
    except ModelError:
        return None


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
    title, remedy = (
        side.checkpoint.title,
        "pass one that is saved as what it is, with tie_word_embeddings false in config.json",
    )
    return [
        f"{title}: its config.json ties {name} to {other}, and the file has other values for it; {remedy}"
        for name, other in tied_names(model).items()
        if name in side
        and other in side
        and side.spans[name] != side.spans[other]
        and not same_values(side, name, other)
    ]


def same_values(side: Named, name: str, other: str) -> bool:
    """True if two tensors of a checkpoint are equal."""
    if side.shapes[name] != side.shapes[other]:
        return False
    return all(torch.equal(*parts) for parts in zip(side.pieces(name), side.pieces(other), strict=True))


def _differences(anatomy: ModelSpec, theirs: dict[str, list[int]], untied: Collection[str]) -> list[str]:
    """Differences of a model's parameters from those of this anatomy, outside a head; untied: names that are another's in the base."""
    ours = anatomy.pretrained
    others = {name: shape for name, shape in theirs.items() if anatomy.groups.get(name) != HEAD}
    words = [name for name in ours if name in others and ours[name] != others[name]]
    embeddings = [name for name in words if anatomy.groups[name] == "embeddings"]
    rest = [name for name in words if name not in embeddings] + [*(ours.keys() ^ others.keys())]
    sizes = [f"{name} {ours[name]} and {others[name]}" for name in embeddings]
    resized = "; resize_token_embeddings makes those of a copy of the base, or of the fine-tuned model, alike"
    untied_too = f"{listed(sorted(untied))} is its own, and the base's is tied"
    remedy = "; pass a base that is saved with tie_word_embeddings false, and that tensor of its own"
    return [
        *[f"the two have other vocabularies or lengths ({listed(sizes)}){resized}"] * bool(sizes),
        *([f"{untied_too}{remedy}"] * bool(untied)),
        *[f"the two have other layers or shapes ({listed(sorted({*rest} - {*untied}))})"] * bool({*rest} - {*untied}),
    ]


def problems(named: Named, shapes: dict[str, Sequence[int]]) -> list[str]:
    """Why it can't be grafted: tensors of these shapes that are missing, have another one, or are quantised."""
    known = named.only(shapes)
    narrow, types = packed(known), ", ".join(sorted(known.types - {*FLOATS}))
    found = {name: shape for name, shape in known.shapes.items() if name not in narrow}
    reasons = {
        "missing": [name for name in shapes if name not in named],
        f"in {types}; only weights in {', '.join(FLOATS)} can be grafted": narrow,
        "of another shape than its config.json says": [
            f"{name} is {list(shape)} and not {list(shapes[name])}"
            for name, shape in found.items()
            if shape != tuple(shapes[name])
        ],
    }
    lines = [
        f"{named.checkpoint.title}: {len(names)} tensor{'s'[: len(names) > 1]} {words} ({listed(names)})"
        for words, names in reasons.items()
        if names
    ]
    if reasons["missing"] and (unused := sorted(named.checkpoint.files.keys() - named.used)):
        lines.append(
            f"it has {listed(unused)} besides; are these the missing ones, load it with transformers and save it anew by "
            "save_pretrained(..., save_original_format=False)"
        )
    return lines


def packed(named: Named) -> list[str]:
    """Names of the tensors in a type that can't be grafted."""
    return [name for name in named if not named.dtypes(name) <= {*FLOATS}]


def not_finite(named: Named, values: Mapping[str, Tensor]) -> list[str]:
    """A line on the tensors, if any, that have NaN or infinite values."""
    bad = [name for name, tensor in values.items() if not bool(tensor.isfinite().all())]
    return [f"{named.checkpoint.folder}: values that are no numbers: NaN or infinite ({listed(bad)})"] * bool(bad)
