"""How a patch is made: the values that it holds, and the facts by which others find its base again and use it."""

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from ..grafting.fingerprint import identify
from ..grafting.mask import GraftMask
from ..grafting.mask_files import StoredMask, require_held
from ..grafting.region import Region, Tensors, outline
from ..modules.heads import brought_along, config_of
from ..modules.pairs import Pair
from ..support.errors import MaskError, ModelError, ParamsError, plain_problem
from .patch_file import PatchContent, PatchMetadata


def patch_between(pair: Pair, mask: GraftMask, **about: Any) -> PatchContent:
    """The patch of a pair's tuned values inside a mask, with what travels whole; `about` as in `patch_of`."""
    whole = pair.travelling(mask)
    pair.require_finite(whole)
    head = {name: pair.after[name].detach().cpu().clone() for name in whole}
    return patch_of(pair, StoredMask(mask, pair.tuned_at(mask), head, {}), **about)


def patch_of(
    pair: Pair,
    stored: StoredMask,
    *,
    title: str = "",
    labels: Sequence[str] | None = None,
    notes: Mapping[str, Any] | None = None,
    makes: str | None = None,
    **origin: str | None,
) -> PatchContent:
    """The patch of these values for the base of a pair.

    labels, notes and origin as in `Patch.of`; makes: the fingerprint of the result, of an exact difference (see `diff`).
    """
    if strange := origin.keys() - {"name", "source", "revision"}:
        raise ParamsError(f"{min(strange)}: unknown; of the base a patch says name, source and revision")
    if isinstance(labels, str) or not isinstance(labels, Iterable | None):
        raise ParamsError(f"labels: {labels!r} should be a list of names, in the order of the logits")
    if pair.extra:
        raise ModelError(f"{min(pair.extra) or 'the model'} has an extra state, which a patch can't hold")
    known = pair.labels if labels is None else [str(label) for label in labels]
    facts = {**pair.origin, **origin, "title": title, "labels": known, "notes": {} if notes is None else notes}
    facts |= {"makes": makes, "generation": pair.generation, "beside": pair.beside}
    return described(stored, pair.before, pair.weights, config_of(pair.tuned_model), facts)


def described(
    stored: StoredMask, before: Tensors, weights: Sequence[str], config: Mapping[str, Any], about: Mapping[str, Any]
) -> PatchContent:
    """The patch of these values, with the facts about its base.

    before: the base's values; weights: names of its parameters; config: the tuned model's settings (see `config_of`); about: the name of
    the base, and what else `PatchMetadata` says.  Raises MaskError for values that a patch can't hold, ParamsError for such facts.
    """
    try:
        require_held(stored.values, stored.head, about.get("makes") is not None)
    except ValueError as error:  # which a reader of the file would refuse
        raise MaskError(f"{error}: graft(base, tuned, mask) takes it, or turn both models first") from None
    region = stored.mask.region.shapes
    whole = whole_region(before, weights, region, stored.head)
    known = identify(whole, before)
    facts = {name: fact for name, fact in about.items() if name != "name"} | {
        "base": about["name"],
        "title": about["title"] or about["name"],
        "fingerprint": known.fingerprint,
        "fast": known.fast,
        "outside": {name: [*shape] for name, shape in whole.shapes.items() if name not in region},
        "head": {name: [*part.shape] for name, part in sorted(stored.head.items())},
        "config": brought_along(config, about["labels"] if stored.head else []),
    }
    try:
        return PatchContent(stored, PatchMetadata(**facts))
    except ValidationError as error:
        problems = (plain_problem(problem, "", PatchMetadata) for problem in error.errors())
        raise ParamsError("; ".join(problems).removeprefix(": ")) from None


def whole_region(
    before: Tensors, weights: Iterable[str], region: Mapping[str, tuple[int, ...]], head: Container[str]
) -> Region:
    """What a fingerprint is of: all parameters of the base but what travels whole, those of the region last."""
    outside = [name for name in weights if name not in region and name not in head]
    return Region({name: tuple(outline(before, name).shape) for name in outside} | dict(region))
