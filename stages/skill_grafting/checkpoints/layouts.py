"""A checkpoint as a class of transformers has it: the model without values, and what of the files lies in which of its tensors.

A class may have other names in memory than in files, or join tensors.  transformers says so itself, by the rules with which it loads:
they are run on numbers that say from where they are.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from itertools import pairwise
from math import isfinite, prod
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..grafting.region import named_weights
from ..models.loading import CLASSES, load_config, quiet_transformers
from ..support.errors import ModelError, one_line
from .files import Checkpoint, Named, Span
from .folders import CONFIG

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.core_model_loading import WeightConverter

MOST_LABELS = 1_000_000
# settings that count layers
LAYERS = re.compile("^(num_(hidden_|encoder_|decoder_)?layers|n_layers?|(encoder|decoder)_layers)$")


def skeleton(
    checkpoint: Checkpoint, kind: str, labels: int | None = None, tied: bool | None = None
) -> "PreTrainedModel":
    """The model of a checkpoint's config without any values, of a mode's class or the class of a name, with so many labels.

    tied: whether its embeddings are, if not as the config says.  It is made once for each config.json: a base is that of many pairs.
    Raises ModelError if transformers can't make it.
    """
    try:
        require_sizes(checkpoint)
        return _made(checkpoint.folder, json.dumps(checkpoint.config), kind, labels, tied)
    except ModelError:
        raise
    except Exception as error:  # transformers checks little of config.json, and runs into the rest anyhow
        what = f"with mode {kind}" if kind in CLASSES else f"as {kind}"
        raise ModelError(f"{checkpoint.title}: can't be read {what}: {one_line(error)}") from error


def require_sizes(checkpoint: Checkpoint) -> None:
    """Raise ModelError if a config has settings that no model can have, before transformers counts to them.

    These are numbers that are none, no number of labels, and far more layers than the files have tensors.
    """
    settings = [("", checkpoint.config)]
    for prefix, part in settings:
        settings += [(f"{prefix}{name}.", value) for name, value in part.items() if isinstance(value, dict)]
        for name, value in part.items():
            if isinstance(value, float) and not isfinite(value):
                raise ModelError(
                    f"{checkpoint.folder / CONFIG}: {prefix}{name} is {value}, and should be a finite number"
                )
            if name == "num_labels" and (type(value) is not int or not 0 <= value <= MOST_LABELS):
                told = f"should be a number of labels, at most {MOST_LABELS:,}, not {value!r}"
                raise ModelError(f"{checkpoint.folder / CONFIG}: {prefix}{name} {told}")
            if (
                isinstance(value, int)
                and checkpoint.files
                and LAYERS.search(name)
                and value > 2 * len(checkpoint.files)
            ):
                there = f"its files have {len(checkpoint.files):,} tensors in all"
                raise ModelError(f"{checkpoint.folder / CONFIG}: {prefix}{name} is {value:,}, and {there}")


@lru_cache(maxsize=8)
def _made(folder: Path, _config: str, kind: str, labels: int | None, tied: bool | None) -> "PreTrainedModel":
    import transformers

    quiet_transformers()
    config = load_config(folder)
    if labels is not None:
        config.num_labels = labels
    if tied is not None:
        config.tie_word_embeddings = tied
    # the plainest ways to compute, which look at no value
    config._attn_implementation, config._experts_implementation = "eager", "batched_mm"
    with torch.device("meta"):
        if kind in CLASSES:
            return getattr(transformers, CLASSES[kind]).from_config(config, trust_remote_code=False)
        return getattr(transformers, kind)(config)


def lacking(checkpoint: Checkpoint, model: "PreTrainedModel") -> list[str]:
    """The parameters of a model that a checkpoint doesn't have, such as those of a new head."""
    there = named_as(checkpoint, model)
    return [name for name in named_weights(model) if name not in there]


def tied_names(model: "PreTrainedModel") -> dict[str, str]:
    """Each further name of a parameter that has several -> the one that it is saved under."""
    once = {id(weight): name for name, weight in named_weights(model).items()}
    every = ((name, once[id(weight)]) for name, weight in model.named_parameters(remove_duplicate=False))
    return {name: other for name, other in every if name != other}


def named_as(checkpoint: Checkpoint, model: "PreTrainedModel") -> Named:
    """A checkpoint under the names of a model, which may have no values: parameters and buffers that the files have.

    Left out is what can't be had by laying parts of the files end to end, such as what is transposed in loading.
    """
    state = model.state_dict(keep_vars=True)
    named = Named.of(checkpoint, state, model.base_model_prefix)
    if len(named) < len(state) and {*checkpoint.files} - named.used:
        spans, shapes = dict(named.spans), dict(named.shapes)
        for name, found in _converted(checkpoint, model, state):
            if name not in spans:
                spans[name], shapes[name] = found, tuple(state[name].shape)
        named = Named(checkpoint, spans, shapes).only(state)
    return _with_ties(named, state)


def _with_ties(named: Named, state: Mapping[str, Tensor]) -> Named:
    """The same, with what the files have under another name of the same parameter: a table under that of the head."""
    names: dict[Tensor, list[str]] = defaultdict(list)
    for name, values in dict(state).items():
        names[values].append(name)
    spans, shapes = dict(named.spans), dict(named.shapes)
    for several in names.values():
        if there := [name for name in several if name in named]:
            for name in several:
                spans.setdefault(name, named.spans[there[0]]), shapes.setdefault(name, named.shapes[there[0]])
    return Named(named.checkpoint, spans, shapes).only(state)


def _converted(
    checkpoint: Checkpoint, model: "PreTrainedModel", state: Mapping[str, Tensor]
) -> Iterator[tuple[str, tuple[Span, ...]]]:
    """Names of a model's tensors, and the spans that transformers' own rules make each of."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

    rules = get_model_conversion_mapping(model)
    kinds = [[rule for rule in rules if isinstance(rule, kind)] for kind in (WeightRenaming, WeightConverter)]
    joined: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for stored in sorted(checkpoint.files, key=dot_natural_key):
        name, pattern = rename_source_key(stored, *kinds, model.base_model_prefix, state)
        if name not in state:
            continue
        if pattern is None:
            shape = checkpoint.files[stored].shape
            yield name, (Span(stored, 0, prod(shape)),)
        else:
            joined[name].append((pattern, stored))
    converters = {pattern: rule for rule in kinds[1] for pattern in rule.source_patterns}
    for name, sources in joined.items():
        yield from _joined(checkpoint, model, name, deepcopy(converters[sources[0][0]]), sources)


def _joined(
    checkpoint: Checkpoint,
    model: "PreTrainedModel",
    first: str,
    rule: "WeightConverter",
    sources: list[tuple[str, str]],
) -> Iterator[tuple[str, tuple[Span, ...]]]:
    """What a rule makes of some tensors, told by rows that are numbered through all of them, of which it gets the numbers."""
    state, starts, total = model.state_dict(), {}, 0
    widths = {_width(checkpoint.files[stored].shape) for _, stored in sources}
    for pattern, stored in sources:
        rows = _rows(checkpoint.files[stored].shape)
        starts[stored] = total
        rule.add_tensor(first, stored, pattern, torch.arange(total, total + prod(rows)).view(rows))
        total += prod(rows)
    try:
        made = rule.convert(first, model=model, config=model.config)
    except Exception:  # of tensors that don't fit: they are missing
        return
    for name, numbers in made.items():
        numbers = numbers[0] if isinstance(numbers, list) else numbers
        shape = state[name].shape if name in state else ()
        if widths == {_width(shape)} and [*numbers.shape] == _rows(shape):
            yield name, tuple(_spans(numbers.reshape(-1), starts, _width(shape)))


def _width(shape: Sequence[int]) -> int:
    """Numbers of a row, which lies in one tensor: the last dimension of several."""
    return shape[-1] if len(shape) > 1 else 1


def _rows(shape: Sequence[int]) -> list[int]:
    return [*shape[:-1], 1] if len(shape) > 1 else [*shape]


def _spans(rows: Tensor, starts: Mapping[str, int], width: int) -> Iterator[Span]:
    """The spans of which numbered rows of this width are: each is of rows that follow each other in one tensor."""
    names, firsts = [*starts], torch.tensor([*starts.values()])
    owner = torch.searchsorted(firsts, rows, right=True) - 1
    cuts = ((rows.diff() != 1) | (owner.diff() != 0)).nonzero().reshape(-1) + 1
    bounds = [0, *cuts.tolist(), len(rows)]
    for begin, end in pairwise(bounds):
        name = names[int(owner[begin])]
        start = int(rows[begin]) - starts[name]
        yield Span(name, start * width, (start + end - begin) * width)
