"""Two models of one architecture, between which masks are found and grafts are made, and the region that may be grafted."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..grafting.apply import holds, values_at
from ..grafting.differences import (
    FIRST,
    is_equal,
    is_finite,
    is_plain,
    is_same,
    is_whole,
    precisions,
    rounded_to,
)
from ..grafting.mask import GraftMask, named_heads, require_mask
from ..grafting.region import Parameters, Region, Tensors, named_weights, outline, output_of, unwrapped
from ..grafting.select import Converted, of_bits, pieces_of
from ..localizers.movement import squared_movement
from ..support.errors import ModelError, ParamsError, a_kind, require_takes
from ..support.fields import GROUPS
from .heads import generation_changes

LOGGER = logging.getLogger("skill_grafting")
ALL = "all"


@dataclass(frozen=True, eq=False, repr=False)
class Pair:
    """A base and a tuned model under the same names: of two modules or of a region's tensors by `Pair.of`, of two folders by `read_pair`.

    before, after: parameters and buffers by name, in memory or read from files one at a time; what the base has no values of, such
    as a new head, is in `after` alone.  `model`: the base, or a skeleton without values, that tells the structure; None where
    tensors alone were given, all of which are the region.  `heads`: parameters that travel whole; `tuned_model`: as `model`, of the tuned;
    `own`: the tuned model's values in types of its own, if `after` has them in the base's; `extra`: the extra states of its parts;
    `beside`: files of settings that its folder has otherwise, and what is in them; `lacking`: lines on what else it has, which goes along
    with no graft.
    """

    before: Tensors
    after: Tensors
    model: nn.Module | None = None
    heads: frozenset[str] = frozenset()
    tuned_model: nn.Module | None = None
    own: Tensors | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    beside: Mapping[str, Any] = field(default_factory=dict)
    lacking: Sequence[str] = ()

    def __repr__(self) -> str:
        model = "" if self.model is None else f"{type(self.model).__name__}, "
        return f"{type(self).__name__}({model}{len(self.before):,} tensors)"

    @classmethod
    def of(cls, base: "BaseOrPair", tuned: "nn.Module | Tensors | None" = None, heads: Parameters = None) -> "Pair":
        """Two modules, or the values of a region of each; a pair is given back.

        Raises ModelError unless they differ in nothing but values, and heads in size.
        """
        if isinstance(base, Pair):
            return base
        if isinstance(base, nn.Module) and isinstance(tuned, nn.Module):
            from ..models.blocks import heads_of
            from .comparing import extra_states, tensors_of  # which files needn't load

            named = frozenset(chosen([*named_weights(base)], heads, "heads")) if heads else frozenset()
            known = named | heads_of(base)
            before, own = tensors_of(base, tuned, known)
            after = Converted(own, lambda name, values: values.to(before[name].device, before[name].dtype))
            return cls(before, after, unwrapped(base), known, unwrapped(tuned), own, extra_states(tuned))
        if isinstance(base, Mapping) and isinstance(tuned, Mapping):
            _require_same_names(base, tuned, heads)
            return cls(base, tuned)
        kinds = " and ".join(a_kind(side) for side in (base, tuned))
        raise ParamsError(
            f"base and tuned should be torch modules, both of one kind, not {kinds}; read_pair takes folders"
        )

    @classmethod
    def for_mask(
        cls, base: "BaseOrPair", tuned: "nn.Module | Tensors | None", mask: GraftMask, heads: Parameters = None
    ) -> "Pair":
        """The pair for a mask's grafts and patches, with the heads that were named when it was found; ModelError unless it is one of theirs."""
        named = named_heads(mask)
        pair = cls.of(base, tuned, heads or (named and named.__contains__))
        require_mask(mask, pair.before)
        pair.require_one_shape(mask.region.shapes)
        return pair

    def require_one_shape(self, names: Iterable[str]) -> None:
        """Raise ModelError for parameters that have other shapes in the tuned model, which heads may."""
        for name in names:
            if name not in self.before:
                raise ModelError(
                    f"{name}: the base has no values of it, so it travels whole and can't be selected from"
                )
            sizes = [[*outline(side, name).shape] for side in (self.before, self.after) if name in side]
            if sizes[0] != sizes[-1]:
                what = f"{name} is {sizes[0]} in the base and {sizes[-1]} in the tuned model"
                raise ModelError(f"{what}: it travels whole, as a head, and can't be selected from")

    @property
    def origin(self) -> dict[str, str | None]:
        """Name, source (hub, local) and revision of the base, and the class that it is an instance of, if one of transformers."""
        config, kind = getattr(self.model, "config", None), type(self.model)
        name = str(getattr(config, "_name_or_path", "") or kind.__name__)
        revision = getattr(config, "_commit_hash", None)
        return {
            "name": name if revision else Path(name).name,
            "source": "hub" if revision else "local",
            "revision": revision,
            "model_class": kind.__name__ if kind.__module__.startswith("transformers.") else None,
        }

    @property
    def kind(self) -> str | None:
        """A mode of reading labels off texts, or the name of a class of transformers; None of other modules."""
        return self.origin["model_class"]

    @cached_property
    def groups(self) -> dict[str, str]:
        """Parameter -> group, of a model of transformers; raises ModelError where its blocks can't be told."""
        from ..models.blocks import groups_in

        return groups_in(self.model, self.heads)

    @property
    def labels(self) -> list[str]:
        """The labels of a classifier, in the order of its logits; none of a model without a head."""
        names = getattr(getattr(self.tuned_model, "config", None), "id2label", None) or {}
        return [str(names[number]) for number in sorted(names)] if self.heads else []

    @property
    def generation(self) -> dict[str, Any]:
        """The settings of generation that the tuned model has otherwise, such as its end tokens."""
        return generation_changes(
            *(getattr(model, "generation_config", None) for model in (self.model, self.tuned_model))
        )

    @property
    def along(self) -> list[str]:
        """Lines on what of the tuned model goes along beside its numbers, and of a folder on what doesn't."""
        files = [*self.beside, *self.generation]
        return [*[f"Goes along: {', '.join(files)}."] * bool(files), *self.lacking]

    def live(self) -> nn.Module:
        """A new module: the base with the heads and buffers of the tuned model, a graft of nothing."""
        from .comparing import put_extra_states
        from .targets import copied_with

        self.require_finite(self.whole)
        model = copied_with(self.model, [(name, None, self.after[name].detach()) for name in self.whole])
        put_extra_states(model, self.extra)
        return model

    @cached_property
    def precisions(self) -> dict[str, torch.dtype]:
        """The type that each tensor of the tuned model has the precision of (see `grafting.differences`)."""
        return precisions(
            self.after if self.own is None else self.own, [name for name in self.weights if name not in self.heads]
        )

    @cached_property
    def compared(self) -> Tensors:
        """The values that movement starts from: the base's, rounded where the tuned ones are, since rounding is no movement."""
        return Converted(self.before, lambda name, values: rounded_to(values, self.precisions.get(name)))

    @property
    def rounding(self) -> list[str]:
        """A line on it, if movement starts from rounded values."""
        names = [name for name in self.weights if name not in self.heads and name in self.before and name in self.after]
        types = {name: outline(self.before, name).dtype for name in names}
        kinds = {self.precisions[name] for name, kind in types.items() if not holds(self.precisions[name], kind)}
        found = " and ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        return [
            f"The tuned model's numbers are of {found}; compared is the base rounded to it: rounding is no movement."
        ] * bool(kinds)

    @cached_property
    def weights(self) -> list[str]:
        """Names of the parameters, in the model's order; buffers aren't among them."""
        return [*self.before] if self.model is None else [*named_weights(self.model)]

    @cached_property
    def moved(self) -> frozenset[str]:
        """Names of the parameters and buffers that differ, or are in the tuned model alone."""
        return frozenset(filter(self._has_moved, self.after))

    @cached_property
    def squares(self) -> dict[str, float]:
        """The squared distance that each parameter moved, heads aside, of those that did and that both models have in one shape; in float64."""
        there = [name for name in self.weights if name in self.moved and name in self.before and name not in self.heads]
        alike = [name for name in there if len({outline(side, name).shape for side in (self.before, self.after)}) == 1]
        return {name: self._square(name) for name in alike}

    def ends(self) -> tuple[Tensors, Tensors]:
        """The values of both models that a mask is looked for between; the `squares` are made on the way.

        What was read of a tensor is in the system's cache then, so that each is read from the disk once.
        """

        def noted(name: str, values: torch.Tensor) -> torch.Tensor:
            if not values.is_meta:
                self._square(name)
            return values

        return self.compared, Converted(self.after, noted)

    def keep(self, region: Region, indices: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> None:
        """Remember the bits of both models' values at region indices, which rise, so that they needn't be read from files again."""
        self._kept.update(shapes=region.shapes, indices=indices, before=before, after=after)

    def base_at(self, mask: GraftMask) -> dict[str, torch.Tensor]:
        """The base's values at a mask's parameters, as movement starts from them: copies, on the processor."""
        return self._at(mask, "before", self.compared)

    def tuned_at(self, mask: GraftMask) -> dict[str, torch.Tensor]:
        """The tuned model's values at a mask's parameters: copies, on the processor."""
        return self._at(mask, "after", self.after)

    def _at(self, mask: GraftMask, side: str, tensors: Tensors) -> dict[str, torch.Tensor]:
        if self._kept.get("shapes") == mask.region.shapes:
            wanted, indices = mask.region_indices(), self._kept["indices"]
            at = torch.searchsorted(indices, wanted).clamp_(max=indices.numel() - 1)
            if torch.equal(indices[at], wanted):
                parts = [(name, mask.indices[name].numel()) for name in mask.region.shapes if name in mask.indices]
                found = self._kept[side][at].split([size for _, size in parts])
                return {
                    name: of_bits(one, outline(tensors, name).dtype)
                    for (name, _), one in zip(parts, found, strict=True)
                }
        return {name: part.cpu() for name, part in values_at(tensors, mask).items()}

    @cached_property
    def _known(self) -> dict[str, float]:
        return {}

    @cached_property
    def _kept(self) -> dict[str, Any]:
        return {}

    def _square(self, name: str) -> float:
        if name not in self._known:
            self._known.update(squared_movement(self.compared, self.after, [name]))
        return self._known[name]

    def _has_moved(self, name: str) -> bool:
        if name not in self.before or len({outline(side, name).shape for side in (self.before, self.after)}) > 1:
            return True
        return any(not _is_still(before, after) for before, after in pieces_of(name, self.compared, self.after))

    def _sides(self, name: str) -> tuple[torch.Tensor | None, torch.Tensor]:
        """A tensor of the base as movement starts from it, None where it has another shape or there is none, and of the tuned model."""
        before, after = self.compared.get(name), self.after[name]
        if before is None:
            return None, after
        return before if before.shape == after.shape else None, after.to(before.device)

    def require_finite(self, names: Iterable[str]) -> None:
        """Raise ModelError if values of these parameters or buffers are infinite or no numbers where something moved."""
        for name in names:
            before, after = self._sides(name)
            sides = {"tuned": after} | ({} if before is None else {"base": before})
            if all(map(is_plain, sides.values())):
                continue
            different = torch.ones_like(after, dtype=torch.bool) if before is None else ~is_same(before, after)
            for title, side in sides.items():
                if bool((different & ~is_finite(side)).any()):
                    raise ModelError(f"{name} of the {title} model has values that are infinite or no numbers")

    @cached_property
    def whole(self) -> list[str]:
        """What travels whole: heads, and buffers that differ, such as the running statistics of BatchNorm."""
        weights = {*self.weights}
        return [name for name in self.after if name in self.heads or (name not in weights and self._has_moved(name))]

    def travelling(self, mask: GraftMask) -> list[str]:
        """What travels whole with a mask's graft: all that does but for what it may select from."""
        return [name for name in self.whole if name not in mask.region.shapes]

    def region(self, parameters: Parameters = None) -> Region:
        """The parameters that may be grafted: all that moved but heads, tables of embeddings, output embeddings and poolers.

        Or "all" but heads, those of GROUPS, names or glob patterns of parameters or modules, or a function of the name: moved or not.
        Raises ModelError if there are none, or nothing moved in them.
        """
        if self.model is None:
            names = [*self.before] if parameters in (None, ALL) else chosen([*self.before], parameters)
            return self._region_of(names)
        body = [name for name in self.weights if name not in self.heads]
        if parameters is None:
            left = self._outer()
            names = [name for name in body if name in self.moved and name not in left]
            self._warn_of_last(names)
        elif parameters == ALL:
            names = body
        else:
            names = chosen(self.weights, self._patterns(parameters), "parameters")
            self.require_one_shape(names)
        if not self.moved & {*names}:
            if elsewhere := [name for name in self.weights if name in self.moved]:
                raise ModelError(
                    f"nothing moved in what may be grafted; {elsewhere[0]} did, and parameters= takes it in"
                )
            others = "; only buffers did, which travel whole" if self.moved else ""
            raise ModelError(
                f"the two models have the same {'parameters' if others else 'values'}: nothing moved{others}"
            )
        LOGGER.info("region: %s tensors of %s", len(names), len(self.weights))
        for line in self.rounding if self.own is not None else ():
            LOGGER.warning(line)
        return self._region_of(names)

    def _region_of(self, names: Iterable[str]) -> Region:
        return Region({name: tuple(outline(self.before, name).shape) for name in names})

    def _outer(self) -> set[str]:
        """Tables of embeddings, what computes the vocabulary's logits, and poolers."""
        outer = {id(part.weight) for part in self.model.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag)}
        output = output_of(self.model)
        outer |= set() if output is None else {id(weight) for weight in output.parameters()}
        return {
            name
            for name, weight in named_weights(self.model).items()
            if id(weight) in outer or "pooler" in name.split(".")
        } - self.heads

    def _warn_of_last(self, names: list[str]) -> None:
        """Say so if the last layer, which in many models is a new head, is part of the region."""
        last = next(reversed(self.weights), "")
        layer = last.rpartition(".")[0] or last
        its = {name for name in names if name in (last, layer) or name.rpartition(".")[0] == layer}
        speaks = output_of(self.model) is not None or getattr(self.model, "can_generate", lambda: False)()
        if its & self.moved and not self.heads and not speaks:
            LOGGER.warning(
                "the last layer, %s, moved and is grafted like all others; if it is a new head, say heads='%s', and if not, parameters='all'",
                layer, layer,
            )  # fmt: skip

    def _patterns(self, parameters: Parameters) -> Parameters:
        """Groups of the model by the names of their parameters."""
        names = [parameters] if isinstance(parameters, str) else parameters
        own = set() if self.kind else {name.partition(".")[0] for name in self.weights}  # parts of a module of no kind
        if not isinstance(names, Sequence) or not any(name in GROUPS and name not in own for name in names):
            return parameters
        try:
            groups = self.groups
        except ModelError as error:
            hint = "give names or glob patterns of parameters or modules"
            raise ModelError(f"parameters: its groups can't be told ({error}); {hint}") from None
        there = {*groups.values()}
        if not any(name in there for name in names) and all(name in GROUPS for name in names):
            known = ", ".join(group for group in dict.fromkeys(groups.values()) if group in GROUPS)
            raise ModelError(f"parameters: the model has none in {', '.join(names)}; it has {known}")
        others = [name for name in names if name not in GROUPS]
        members = {*(chosen(self.weights, others) if others else ())}
        return lambda name: groups[name] in names or name in members


def chosen(names: Sequence[str], parameters: Parameters, setting: str = "parameters") -> list[str]:
    """The names that match, or are in a module that does; ModelError if there are none, with the nearest name for a pattern that matches none."""
    if callable(parameters) and not hasattr(parameters, "named_parameters"):  # which is a module itself
        require_takes(parameters, setting, "name")
        found = [name for name in names if parameters(name)]
    else:
        patterns = "*" if parameters is None else parameters
        patterns = [patterns] if isinstance(patterns, str) else patterns
        if not isinstance(patterns, Sequence) or not all(isinstance(pattern, str) for pattern in patterns):
            raise ParamsError(f"{setting}: {parameters!r} should be names, glob patterns or a function of the name")
        for pattern in patterns:
            if not any(_is_of(name, pattern) for name in names):
                nearest = "".join(
                    f"; the nearest is {name!r}" for name in get_close_matches(pattern, names, n=1, cutoff=0)
                )
                raise ModelError(f"{setting}: no parameter or module is called {pattern!r}{nearest}")
        found = [name for name in names if any(_is_of(name, pattern) for pattern in patterns)]
    if not found:
        raise ModelError(f"{setting}: matches none of the model's {len(names)} parameters")
    return found


def _is_still(before: torch.Tensor, after: torch.Tensor) -> bool:
    """True if nothing moved; the first values are looked at before all are."""
    after = after.to(before.device)
    if is_equal(before, after):
        return True
    parts = (before[:FIRST], after[:FIRST]), (before, after)
    return not is_whole(before) and all(bool(is_same(*part).all()) for part in parts)


def _is_of(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def _require_same_names(base: Tensors, tuned: Tensors, heads: Parameters) -> None:
    """Raise an error unless the values of a region have the same names, and those in memory the same shapes."""
    if heads:
        raise ParamsError("heads: are parts of modules, and these are tensors by name; pass the two modules")
    if not base or base.keys() - tuned.keys():
        lacks = f"tuned lacks {min({*base} - {*tuned})}" if base else "base has none"
        raise ModelError(f"base and tuned should have tensors of the same names, and {lacks}")
    for name in base if isinstance(base, dict) and isinstance(tuned, dict) else ():
        shapes = [[*getattr(side[name], "shape", ())] for side in (base, tuned)]
        if shapes[0] != shapes[1] or not all(isinstance(side[name], torch.Tensor) for side in (base, tuned)):
            kinds = " and ".join(
                f"{a_kind(side[name])} of {shape}" for side, shape in zip((base, tuned), shapes, strict=True)
            )
            raise ModelError(f"{name}: should be a tensor of one shape in both, not {kinds}")


# what a caller may give as the base: a model, a region's values by name, or both sides at once
BaseOrPair = nn.Module | Tensors | Pair
