"""A model to first order around its pretrained weights, which makes its logits linear in the task vectors.

f_lin(x; theta) = f(x; theta_0) + J(x; theta_0) (theta - theta_0)  (Ortiz-Jimenez et al., 2023: Task
arithmetic in the tangent space), by forward-mode differentiation in a single pass.
"""

import warnings
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call, jvp

from skill_grafting.grafting.region import Tensors
from stages.text.models.batching import Batch
from stages.text.models.label_model import LabelModel

_MODEL = "model."


class LinearisedModel:
    """Takes a LabelModel's place in training and prediction; `start` are the region's values that it is linear around,
    which nothing may change.

    The live weights of the LabelModel are trained, as usual.  Load it without dropout, which
    has no place in a linear map.  Attention becomes the plain one, since fused kernels know no
    forward-mode derivative.
    """

    def __init__(self, inner: LabelModel, start: Tensors) -> None:
        inner.model.set_attn_implementation("eager")
        self.model, self.task, self.mode = inner.model, inner.task, inner.mode
        # recomputing knows no forward-mode derivative either
        self.runtime = replace(inner.runtime, gradient_checkpointing=False)
        self.encode, self.batch = inner.encode, inner.batch
        self._inner, self._reader = inner, _Reader(inner)
        self._start = {f"{_MODEL}{name}": values.detach().to(inner.runtime.device) for name, values in start.items()}

    def logits(self, batch: Batch) -> Tensor:
        """Label logits of the linear model at the live weights, float32, shape (B, labels)."""
        live: dict[str, Any] = {f"{_MODEL}{name}": weight for name, weight in self._inner.parameters().items()}
        offsets = tuple(live[name] - values for name, values in self._start.items())

        def at(*values: Tensor) -> Tensor:
            return functional_call(self._reader, dict(zip(self._start, values, strict=True)), (batch,))

        with warnings.catch_warnings():
            # torch's own derivative formulas still use it
            warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", DeprecationWarning)
            value, change = jvp(at, tuple(self._start.values()), offsets)
        return value + change


class _Reader(nn.Module):
    """LabelModel.logits as a module's forward pass, so that weights can be put in its place for one call."""

    def __init__(self, inner: LabelModel) -> None:
        super().__init__()
        self.model = inner.model
        self._read = inner.logits

    def forward(self, batch: Batch) -> Tensor:
        return self._read(batch)
