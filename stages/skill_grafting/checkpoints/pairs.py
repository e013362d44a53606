"""Two checkpoints of anybody's as they lie on the disk, as a pair to find masks in: one tensor at a time, in their own types."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..grafting.apply import write
from ..grafting.region import Parameters, named_weights
from ..models.anatomy import ModelSpec, shapes_of
from ..models.blocks import groups_in, heads_of, new_head, outside
from ..models.loading import CLASSES, classes, load_model
from ..modules.heads import generation_changes
from ..modules.pairs import Pair, chosen
from ..support.errors import ModelError
from ..support.fields import HEAD
from ..support.formatting import listed
from .comparing import fitted, labels_of, mode_of, problems, unread, untied
from .files import Checkpoint
from .layouts import lacking, named_as, skeleton
from .settings import beside, generation_of, left
from .tokenizing import other_reading

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LOGGER = logging.getLogger("skill_grafting")
# a commit, tag or branch of each of two models
Revisions = tuple[str | None, str | None]


@dataclass(frozen=True, eq=False, repr=False)
class StoredPair(Pair):
    """A pair whose values lie in files, and what a pair of modules asks these, told by both folders, which are read as one class.

    `kind` is a mode of reading labels off texts, or the class's name.
    spec: the base's names, shapes and groups.
    """

    base: Checkpoint = field(kw_only=True)
    tuned: Checkpoint = field(kw_only=True)
    spec: ModelSpec = field(kw_only=True)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]} of {self.base.title} and {self.tuned.title})"

    @cached_property
    def groups(self) -> dict[str, str]:
        """Parameter -> group."""
        return self.spec.groups

    @property
    def kind(self) -> str:
        """A mode of reading labels, or the name of a class of transformers."""
        return self.spec.mode

    @property
    def origin(self) -> dict[str, str | None]:
        """Name, source and revision of the base, and the class that it is read as."""
        about = {"name": self.spec.name, "source": self.spec.source, "revision": self.spec.revision}
        return {**about, "model_class": type(self.model).__name__}

    @cached_property
    def generation(self) -> dict[str, Any]:
        """The settings of generation that the tuned folder has otherwise."""
        if not self.model.can_generate():
            return {}
        return generation_changes(*(generation_of(side.folder) for side in (self.base, self.tuned)))

    def live(self) -> "PreTrainedModel":
        """The tuned model, in float32, with the base's values in all but heads and buffers that differ."""
        model = load_model(self.tuned.folder, self.kind, self.labels or None)
        known, whole = {**named_weights(model), **dict(model.named_buffers())}, {*self.whole}
        write([(known[name], None, self.before[name]) for name in self.before if name in known and name not in whole])
        return model


def read_pair(
    base: str | Path,
    tuned: str | Path,
    mode: str | None = None,
    revisions: Revisions = (None, None),
    heads: Parameters = None,
) -> Pair:
    """The pair of two checkpoints, folders or hub ids, which `localize` and `Patch.of` read one tensor at a time.

    mode: how labels are read (standard, prompt, autoregressive), by default as the tuned checkpoint was saved; revisions: a
    commit, tag or branch of each; heads: names of heads beside the usual ones.  Raises ModelError with every reason why the second can't
    be a fine-tuned version of the first.  If a class names its tensors otherwise in memory than in files (ViT), both are loaded.
    What of the tuned folder goes along with no graft is logged.
    """
    pair = open_pair(base, tuned, mode, revisions, heads)
    for line in pair.lacking:
        LOGGER.warning(line)
    return pair


def open_pair(
    base: str | Path, tuned: str | Path, mode: str | None, revisions: Revisions, heads: Parameters = None
) -> Pair:
    """`read_pair`, of which whoever asks says himself what goes along and what doesn't."""
    before = Checkpoint.open(str(base), revisions[0], tokenizer=False)
    after = Checkpoint.open(str(tuned), revisions[1], tokenizer=False)
    kind = _common_kind(before, after, mode)
    labels = len(labels_of(after)) if kind == "standard" or after.config.get("id2label") else None
    model = skeleton(before, kind, labels)
    absent, differs = lacking(before, model), other_reading(before.folder, after.folder)
    if kind not in CLASSES and len(absent) > len(outside(model)):
        models = [load_model(side.folder, kind, dtype="auto") for side in (before, after)]
        if missing := [*{*models[1].missing_tensors} | ({*models[0].missing_tensors} - outside(model))]:
            raise ModelError(
                f"{before.title} and {after.title}: not all of {kind} is there ({listed(sorted(missing))})"
            )
        return replace(
            Pair.of(*models, heads),
            beside=beside(before.folder, after.folder),
            lacking=_lacking(before, after, differs),
        )
    # as live models have it: what is outside the backbone of a classifier of texts travels whole, whether the base has it or not
    head = (
        new_head(model, absent) | outside(model) if kind == "standard" else heads_of(model) | {*absent} & outside(model)
    )
    head |= {*(chosen([*named_weights(model)], heads, "heads") if heads else ())}
    spec = _spec_of(before, model, kind, head)
    named = named_as(before, model)
    other, other_model, misfits = fitted(after, labels or 0, model, spec)
    reasons = problems(named, spec.pretrained) + untied(named, model) + misfits
    if kind == "standard" and labels < 2:
        reason = f"its head has {labels} output, a number and no label, and a graft is for labels"
        reasons.append(f"{after.title}: {reason}")
    if kind == "standard" and differs:
        reasons.append(f"{after.title}: {differs}")
    if reasons:
        raise ModelError("; ".join(reasons))
    return StoredPair(
        named.only([*spec.pretrained, *_buffers(model)]),
        other.only([*shapes_of(other_model), *_buffers(other_model)]),
        model,
        frozenset(head),
        other_model,
        beside=beside(before.folder, after.folder),
        lacking=_lacking(before, after, differs, unread(other, other_model)),
        base=before,
        tuned=after,
        spec=spec,
    )


def _lacking(base: Checkpoint, tuned: Checkpoint, differs: str, unused: Sequence[str] = ()) -> list[str]:
    """Lines on what of the tuned folder goes along with no graft: files that may change what its model does, tensors that it computes without."""
    files = left(base.folder, tuned.folder)
    return [
        *[f"Doesn't go along: {', '.join(files)} of {tuned.title}; copy it yourself."] * bool(files),
        *[f"{tuned.title}: {differs}."] * bool(differs),
        *[f"Not read, as no model of its class computes with it: {listed(unused)} of {tuned.title}."] * bool(unused),
    ]


def _buffers(model: "PreTrainedModel") -> list[str]:
    """Names of the buffers that a checkpoint holds, such as the running statistics of BatchNorm."""
    weights = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return [name for name in model.state_dict() if name not in weights]


def _spec_of(checkpoint: Checkpoint, model: "PreTrainedModel", kind: str, head: set[str]) -> ModelSpec:
    """Names, shapes and groups of the base; of what can't be run, all that isn't head counts as layers."""
    name = checkpoint.title if checkpoint.source == "hub" else checkpoint.folder.resolve().name
    try:
        groups = groups_in(model, head)
    except ModelError as error:
        if kind in CLASSES:
            raise ModelError(f"{name}: {error}") from error
        groups = {one: HEAD if one in head else "layers" for one in named_weights(model)}
    return ModelSpec(name, checkpoint.source, checkpoint.commit, kind, groups, shapes_of(model))


def _fitting_class(checkpoint: Checkpoint) -> str:
    """The class whose tensors are those of a checkpoint that names none; empty if there is no such class."""
    from transformers.models.auto import modeling_auto as auto

    kind = str(checkpoint.config.get("model_type"))
    for mapping in (*classes().values(), auto.MODEL_MAPPING_NAMES):
        name = mapping.get(kind)
        if isinstance(name, str):
            with suppress(ModelError):
                model = skeleton(checkpoint, name)
                if not lacking(checkpoint, model) and not unread(named_as(checkpoint, model), model):
                    return name
    return ""


def _common_kind(before: Checkpoint, after: Checkpoint, mode: str | None) -> str:
    """This mode, or the class of the tuned checkpoint; raises ModelError if the two are not of one kind."""
    import transformers

    if before.folder.resolve() == after.folder.resolve():
        raise ModelError(f"{after.title}: is the base model itself; take what was fine-tuned from it")
    kinds = [str(one.config.get("model_type")) for one in (before, after)]
    if kinds[0] != kinds[1]:
        raise ModelError(f"{after.title}: is a model of the kind {kinds[1]}, and {before.title} of the kind {kinds[0]}")
    if mode := mode or mode_of(after) or (None if after.saved_from else mode_of(before)):
        return mode
    saved = next((side.saved_from[0] for side in (after, before) if side.saved_from), "") or _fitting_class(after)
    known = getattr(transformers, saved, None) if saved.isidentifier() else None
    if isinstance(known, type) and issubclass(known, transformers.PreTrainedModel):
        return saved
    named = saved or "no class"
    choices = (f"{name.removeprefix('AutoModelFor')} of {kinds[0]}" for name in dict.fromkeys(CLASSES.values()))
    reason = f"its config.json says {named}, which transformers doesn't have; known, for instance: {', '.join(choices)}"
    raise ModelError(f"{after.title}: {reason}; choose --mode, one of {', '.join(CLASSES)}")
