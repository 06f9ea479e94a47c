"""The bottleneck adapter of Houlsby et al. 2019 and the paper's variants."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import skip_init

from adapter_probe.models.methods import Adapters
from adapter_probe.models.packed import added

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "swish": F.silu,
    "tanh": torch.tanh,
}


class TokenBatchNorm(nn.BatchNorm1d):
    """Batch normalisation of hidden states ``[..., tokens, size]``: all tokens are one batch.

    In training its statistics are those of its input tokens: every token of the batch, and in the last layer
    of an encoder only the positions that the head reads. Evaluation uses the running averages, so that tokens
    are independent of each other. A single token has no variance: it is normalised by the running averages in
    training too, without updating them.

    Attributes:
        counted: bool ``[tokens]``, which tokens are no padding, where rows are padded; None for all. Of fewer
            tokens, those that the head reads, all count.
    """

    counted: Tensor | None = None

    def __init__(self, size: int):
        super().__init__(size)
        # It only counts batches, for a mode of averaging that is not used; without it every buffer is
        # a float tensor that a checkpoint can store.
        self.num_batches_tracked = None

    def forward(self, x: Tensor) -> Tensor:
        """``[..., size]`` to ``[..., size]``."""
        rows = x.flatten(0, -2)  # [tokens, size]
        averages, affine = (self.running_mean, self.running_var), (self.weight, self.bias)
        inside = None if self.counted is None or len(self.counted) > len(rows) else self.counted
        counted = rows if inside is None else rows[inside]
        by_batch = self.training and len(counted) > 1
        found = F.batch_norm(counted, *averages, *affine, by_batch, self.momentum, self.eps)
        if inside is not None:  # what padding becomes is read nowhere
            found = torch.zeros_like(rows, dtype=found.dtype).masked_scatter(inside[:, None], found)
        return found.view_as(x)


class Bottleneck(nn.Module):
    """``x + up(activation(down(x)))``: d to m to d, with an inner skip connection.

    It holds 2md + d + m parameters, and is near the identity when its weights are near zero. The variants:

    - `norm` normalises after `down`, before the activation: 2m parameters more, and with "batchnorm" 2m
      running averages that are no parameters.
    - each hidden layer after the first is a further projection with its activation: m^2 + m more.
    - "parallel" reads the sublayer's input h and not its output x: ``x + change(h)``.
    - "multiply" scales: ``x * (1 + change)``.

    The last two add no parameters. Every variant is the identity if `up` is zero.
    Source: Houlsby et al. 2019 (arXiv 1902.00751), sections 2.1 and 3.6.

    Args:
        hidden: width d.
        method: its width m and its variant.
    """

    def __init__(self, hidden: int, method: Adapters):
        super().__init__()
        size, norms = method.size, {"layernorm": nn.LayerNorm, "batchnorm": TokenBatchNorm}
        self.down = zero_linear(hidden, size)
        self.norm = norms.get(method.norm, nn.Identity)(size)
        self.inner = nn.ModuleList(zero_linear(size, size) for _ in range(method.hidden_layers - 1))
        self.up = zero_linear(size, hidden)
        self.activation = method.activation
        self._parallel = method.placement == "parallel"
        self._multiplies = method.interaction == "multiply"

    only_adds = True
    """Whether the adapter only adds its `change` to the residual sum."""

    def change(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """The term that the adapter adds to the sublayer's output.

        Args:
            x: ``[examples, tokens, hidden]``, the sublayer's output.
            residual: shaped as `x`, the sublayer's input; only a parallel adapter reads it.

        Returns:
            ``[examples, tokens, hidden]``.
        """
        source = residual if self._parallel else x
        assert source is not None, "a parallel adapter reads the sublayer's input"
        activation = _ACTIVATIONS[self.activation]
        states = activation(self.norm(self.down(source)))
        for linear in self.inner:
            states = activation(linear(states))
        change = self.up(states)
        return change * x if self._multiplies else change

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """The sublayer's output after the change; shapes as in `change`."""
        return added(self.change(x, residual), x)

    def adapt(self, x: Tensor, residual: Tensor, norm: object = None, strength: float = 1.0) -> Tensor:
        """The output that replaces `x`, with `strength` times the change; shapes as in `change`."""
        if strength == 1:
            return self(x, residual)  # as a call, so that forward hooks see it
        return added(strength * self.change(x, residual), x)

    @torch.no_grad()
    def initialise(self, std: float, generator: torch.Generator) -> None:
        """Draw every matrix from N(0, std^2) truncated at two std; set the biases to zero."""
        for linear in (self.down, *self.inner, self.up):
            nn.init.trunc_normal_(linear.weight, std=std, a=-2 * std, b=2 * std, generator=generator)
            nn.init.zeros_(linear.bias)


def zero_linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """A linear map of zeros, built without drawing from torch's global generator."""
    linear = skip_init(nn.Linear, inputs, outputs, bias=bias)
    for parameter in linear.parameters():
        nn.init.zeros_(parameter)
    return linear
