"""Gradient checkpointing: activations inside layers computed again in the backward pass instead of kept (Chen et al., 2016)."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any


@contextmanager
def recomputed(model: Any) -> Iterator[None]:
    """Let a forward pass keep of each of the model's repeated layers only what goes into it, in training mode or not.

    transformers' own switch works in training mode alone, and the gradients of masks are taken without dropout.
    """
    from torch.utils.checkpoint import checkpoint
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
