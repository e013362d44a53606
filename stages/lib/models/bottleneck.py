"""Bottleneck: the small module that adapter methods insert behind a projection of a model.

Written here because the `adapters` library (1.3.0) asks for transformers 4.57 and can't be imported beside 5.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

Activation = Callable[[Tensor], Tensor]

# Houlsby et al. (2019): normal with this deviation, cut off at twice it.
DOWN_STD = 0.01


class Bottleneck(nn.Module):
    """Gives x + up(activation(down(x))), of the shape of x, (..., width).

    Has 2 * width * size weights and width + size biases.  `down` starts at random from torch's global
    generator (seed it first) and everything else at 0, so that at first it gives x itself, bit for bit.
    """

    def __init__(self, width: int, size: int, activation: Activation) -> None:
        super().__init__()
        self.down, self.up, self.activation = nn.Linear(width, size), nn.Linear(size, width), activation
        nn.init.trunc_normal_(self.down.weight, std=DOWN_STD, a=-2 * DOWN_STD, b=2 * DOWN_STD)
        for zero in (self.down.bias, self.up.weight, self.up.bias):
            nn.init.zeros_(zero)

    def forward(self, hidden: Tensor) -> Tensor:
        """Hidden states, shape kept."""
        return hidden + self.up(self.activation(self.down(hidden)))


def insert_behind(projection: nn.Module, bottleneck: Bottleneck) -> None:
    """Let a bottleneck change what a projection gives; its parameters become `<projection>.adapter.*`.

    A hook rather than a module around the projection: every other parameter keeps its name.
    """
    projection.adapter = bottleneck.to(projection.weight.device)
    projection.register_forward_hook(_through_adapter)


def _through_adapter(projection: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
    return projection.adapter(output)
