"""The bottleneck adapter of Houlsby et al. 2019."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "swish": F.silu,
    "tanh": torch.tanh,
}


class Bottleneck(nn.Module):
    """``x + up(activation(down(x)))``: d to m to d, with an inner skip connection.

    It holds 2md + d + m parameters, and is near the identity when its weights are near zero.
    Source: Houlsby et al. 2019 (arXiv 1902.00751), section 2.1.
    """

    def __init__(self, hidden: int, size: int, activation: str):
        super().__init__()
        self.down = nn.Linear(hidden, size)
        self.up = nn.Linear(size, hidden)
        self.activation = activation

    def change(self, x: Tensor) -> Tensor:
        """What the adapter adds to its input, ``[..., hidden]``."""
        return self.up(_ACTIVATIONS[self.activation](self.down(x)))

    def forward(self, x: Tensor) -> Tensor:
        """``[..., hidden]`` to ``[..., hidden]``."""
        return x + self.change(x)

    @torch.no_grad()
    def initialise(self, std: float, generator: torch.Generator) -> None:
        """Draw both matrices from N(0, std^2) truncated at two std; set the biases to zero."""
        for linear in (self.down, self.up):
            nn.init.trunc_normal_(linear.weight, std=std, a=-2 * std, b=2 * std, generator=generator)
            nn.init.zeros_(linear.bias)
