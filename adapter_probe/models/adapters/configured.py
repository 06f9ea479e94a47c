"""Bottlenecks of the `adapters` library, with all options of its configurations."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import ACT2FN

from adapter_probe.errors import ModelError
from adapter_probe.models.packed import added

from .bottleneck import zero_linear
from .imported import BottleneckSpec, HeadSpec

Norm = Callable[[Tensor], Tensor]


def activation_named(name: str) -> Callable[[Tensor], Tensor]:
    """An activation by its name in transformers, ``leakyrelu``, or ``linear`` for none.

    Raises:
        ModelError: the name is unknown.
    """
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
        self.spec = spec
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

    def change(self, x: Tensor, residual: Tensor) -> Tensor:
        """The term added to the sublayer's output if `only_adds`."""
        return self._branch(residual if self.spec.parallel else x, None)

    def finish(self, x: Tensor, residual: Tensor, norm: Norm, strength: float = 1.0) -> Tensor:
        """The states after the site.

        Args:
            x: ``[examples, tokens, hidden]``, the sublayer's output.
            residual: the sublayer's input, of the same shape.
            norm: module after the residual sum.
            strength: what the difference that the adapter makes is multiplied by: in the sublayer's output,
                or without `norm_after` in the states.

        Returns:
            ``[examples, tokens, hidden]``.
        """
        if self.spec.norm_after:
            return norm(added(self.adapt(x, residual, norm, strength), residual))
        out = self._replaced(x, residual, norm)
        return out if strength == 1 else torch.lerp(norm(x + residual), out, strength)

    def adapt(self, x: Tensor, residual: Tensor, norm: Norm, strength: float = 1.0) -> Tensor:
        """With `norm_after`: the output y of which ``norm(y + residual)`` is what `finish` returns."""
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
