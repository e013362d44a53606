"""Values of a live model's parameters, put in place and back."""

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

# a parameter, places in it laid flat, and values for these
Places = list[tuple[Tensor, Tensor | slice, Tensor]]
# what is to be put back into a model, for each patch that is on it, the latest last
ON: WeakKeyDictionary[nn.Module, list[Places]] = WeakKeyDictionary()


@contextmanager
def bare(model: nn.Module) -> Iterator[None]:
    """The model without the patches that are on it."""
    taken_off: list[Places] = []
    try:
        for before in reversed(ON.get(model, [])):
            taken_off.append(read(before))
            write(before)
        yield
    finally:
        for places in reversed(taken_off):
            write(places)


def read(places: Places) -> Places:
    """The same places with what is there now."""
    return [(weight, at, (flat := weight.detach().view(-1))[_on(flat, at)].clone()) for weight, at, _ in places]


def write(places: Places) -> None:
    """Put values in place, on the device and in the dtype that each parameter has by now."""
    with torch.no_grad():
        for weight, at, values in places:
            flat = weight.detach().view(-1)
            flat[_on(flat, at)] = values.to(flat)


def _on(flat: Tensor, at: Tensor | slice) -> Tensor | slice:
    """Places on the device that a tensor is on by now."""
    return at.to(flat.device) if isinstance(at, Tensor) else at
