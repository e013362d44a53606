"""Grafts of two torch modules of one architecture: a pretrained `base`, and `tuned`, which was fine-tuned from it.

Heads are copied whole, since a new one has no pretrained values (see `heads_of`), unless they are in the region.  So are buffers that
differ, such as the running statistics of BatchNorm.  All other parameters outside the mask are the base's.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from ..grafting.apply import taken
from ..grafting.mask import GraftMask
from ..grafting.region import unwrapped
from .comparing import extra_states, put_extra_states
from .heads import brought_along, config_of, put_settings, with_settings
from .pairs import Pair
from .swapping import swapped
from .targets import Changes, Model, copied_with, writes_in


def graft(base: Model, tuned: nn.Module, mask: GraftMask) -> Model:
    """Make a new module with fine-tuned values inside the mask and pretrained values outside (equation 1), bit for bit.

    Heads, with the settings of `tuned` by which their logits are read (labels, padding), buffers that differ (such as the running
    statistics of BatchNorm) and extra states are taken from `tuned` whole.  Raises ModelError if the models or the mask don't fit each
    other.
    """
    pair = Pair.for_mask(base, tuned, mask)
    model = copied_with(base, changes_of(pair, mask))
    put_extra_states(model, pair.extra)
    put_settings(model, *_settings_of(pair, mask))
    return model


@contextmanager
def grafted(base: Model, tuned: nn.Module, mask: GraftMask) -> Iterator[Model]:
    """Turn the base itself into the graft inside `with`; afterwards it is as before, bit for bit, whatever happened.

    Grafts and patches may be nested: where both write, the inner one counts, and where it ends, the outer one's values are back.
    """
    pair = Pair.for_mask(base, tuned, mask)
    writes, extra, inner = writes_in(base, changes_of(pair, mask)), extra_states(base), unwrapped(base)
    with swapped(inner, writes, mask), with_settings(inner, *_settings_of(pair, mask)):
        try:
            put_extra_states(base, pair.extra)
            yield base
        finally:
            put_extra_states(base, extra)


def changes_of(pair: Pair, mask: GraftMask) -> Changes:
    """What makes the base the graft of a mask."""
    changes: Changes = [(name, at, taken(pair.after, name, at)) for name, at in mask.indices.items() if len(at)]
    return changes + [(name, None, pair.after[name].detach().clone()) for name in pair.travelling(mask)]


def _settings_of(pair: Pair, mask: GraftMask) -> tuple[dict[str, object], dict[str, object]]:
    """What the heads that travel bring along, and how the tuned model generates otherwise."""
    return brought_along(config_of(pair.tuned_model), pair.labels if pair.travelling(mask) else []), pair.generation
