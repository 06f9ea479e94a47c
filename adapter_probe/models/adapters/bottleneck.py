"""The bottleneck of Houlsby et al. 2019 with the paper's variants, and those of the `adapters` library."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import skip_init
from transformers.activations import ACT2FN

from adapter_probe.errors import ModelError
from adapter_probe.models.functional import added
from adapter_probe.models.methods import Adapters

from .imported import BottleneckSpec, HeadSpec

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
        self.parallel = method.placement == "parallel"
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
        source = residual if self.parallel else x
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


Norm = Callable[[Tensor], Tensor]


def activation_named(name: str) -> Callable[[Tensor], Tensor]:
    """An activation by its name in transformers, ``leakyrelu``, or ``linear`` for none."""
    if name.lower() == "leakyrelu":
        return F.leaky_relu
    if name.lower() not in ACT2FN:
        raise ModelError(f"activation {name!r} is not one of {', '.join(sorted(ACT2FN))}, leakyrelu")
    activation: Callable[[Tensor], Tensor] = ACT2FN[name.lower()].forward  # so no child module
    return activation


class ConfiguredBottleneck(nn.Module):
    """The bottleneck that a `BottleneckSpec` describes, with the notation used there.

    Its parameters start at zero (factors and LayerNorms at one) and have to be loaded.

    Args:
        hidden: width d.
        spec: description of the adapter.
    """

    def __init__(self, hidden: int, spec: BottleneckSpec):
        super().__init__()
        self.spec, self.parallel = spec, spec.parallel
        self.ln_before = nn.LayerNorm(hidden) if spec.ln_before else None
        self.down = zero_linear(hidden, spec.size)
        self.up = zero_linear(spec.size, hidden)
        self.ln_after = nn.LayerNorm(hidden) if spec.ln_after else None
        n_factors = {"none": 0, "one": 1, "channel": hidden}[spec.learned_scale]
        self.factor = nn.Parameter(torch.ones(n_factors)) if n_factors else None
        self.gate = zero_linear(hidden, 1) if spec.gate else None
        self._activation = activation_named(spec.activation)

    @property
    def only_adds(self) -> bool:
        """Whether it just adds its `change` to the residual sum."""
        spec = self.spec
        whole_sum = spec.parallel or (spec.skip == "output" and not (spec.ln_after and spec.ln_after_skip))
        return spec.norm_after and not spec.norm_before and not spec.gate and whole_sum

    def change(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """The term added to the sublayer's output if `only_adds`; only a parallel adapter reads its input."""
        source = residual if self.parallel else x
        assert source is not None
        return self._branch(source, None)

    def finish(self, x: Tensor, residual: Tensor, norm: Norm, strength: float = 1.0) -> Tensor:
        """Without `norm_after`: the states after the site ``[examples, tokens, hidden]``.

        Args:
            x: the sublayer's output, of the same shape.
            residual: the sublayer's input, of the same shape.
            norm: module after the residual sum.
            strength: what the difference that the adapter makes in the states is multiplied by.
        """
        out = self._replaced(x, residual, norm)
        return out if strength == 1 else torch.lerp(norm(x + residual), out, strength)

    def adapt(self, x: Tensor, residual: Tensor, norm: Norm, strength: float = 1.0) -> Tensor:
        """With `norm_after`: the output y of which ``norm(y + residual)`` are the states after the site.

        The arguments are those of `finish`; `strength` multiplies the difference in the sublayer's output.
        """
        if strength != 1 and self.only_adds:
            return added(strength * self.change(x, residual), x)
        out = self._replaced(x, residual, norm)
        return out if strength == 1 else x + strength * (out - x)

    def _replaced(self, x: Tensor, residual: Tensor, norm: Norm) -> Tensor:
        """The replacement of the sublayer's output; without `norm_after`, also of the steps after it."""
        spec = self.spec
        if spec.parallel:
            return added(self._branch(residual, None), x)
        read = norm(x + residual) if spec.norm_before else x
        skip = {"output": x, "normed": read}.get(spec.skip)
        return self._branch(read, x + residual if skip is None else skip)

    def _branch(self, read: Tensor, skip: Tensor | None) -> Tensor:
        """The change, and `skip` added to it."""
        states = read if self.ln_before is None else self.ln_before(read)
        change = self.up(self._activation(self.down(states)))
        if self.spec.scale != 1.0:
            change = change * self.spec.scale
        if self.factor is not None:
            change = change * self.factor
        if self.gate is not None:
            change = change * torch.sigmoid(self.gate(read)).mean(dim=1, keepdim=True)
        if skip is None:
            return change if self.ln_after is None else self.ln_after(change)
        if self.ln_after is None:
            return added(change, skip)
        if self.spec.ln_after_skip:
            return self.ln_after(added(change, skip))
        return added(self.ln_after(change), skip)


class StackedHead(nn.Sequential):
    """A head of the `adapters` library, without dropout; see `HeadSpec`.

    Args:
        hidden: width d.
        outputs: number of logits.
        spec: description of the head.
        reads_sequence: whether it receives ``[rows, positions, hidden]`` and selects position 0 itself.
    """

    def __init__(self, hidden: int, outputs: int, spec: HeadSpec, reads_sequence: bool):
        linears = [zero_linear(hidden, hidden) for _ in range(spec.layers - 1)]
        last = zero_linear(hidden, outputs, spec.bias)
        super().__init__(*linears, last)
        self._activation = activation_named(spec.activation or "linear")
        self._reads_sequence = reads_sequence

    def forward(self, states: Tensor) -> Tensor:
        """``[rows, hidden]``, or the sequence, to ``[rows, outputs]``."""
        states = states[:, 0] if self._reads_sequence else states
        *inner, last = self
        for linear in inner:
            states = self._activation(linear(states))
        return last(states)


class FirstToken(nn.Module):
    """Replaces a pooler that a head does not use."""

    def forward(self, states: Tensor) -> Tensor:
        """``[rows, positions, hidden]`` to ``[rows, hidden]``."""
        return states[:, 0]
