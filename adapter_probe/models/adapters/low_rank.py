"""Adapters inside a sublayer: changes to one module of the base, such as LoRA on a linear map.

They are children of the module that they change, so that the state dict names them ``<module>.adapter.*``,
and act through hooks: the change applies wherever the module is called, in the packed forward or in the
forward of the transformers model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adapter_probe.errors import ModelError

from .bottleneck import zero_linear
from .imported import InnerSpec


class Inner(nn.Module):
    """A change to one module, with one subclass per kind. Its parameters have to be loaded.

    Attributes:
        on: whether the change is applied.
    """

    on: bool = True

    def attach(self, module: nn.Module, name: str) -> None:
        """Register in `module` as its child `name`, and act whenever it is called."""
        module.add_module(name, self)
        module.register_forward_pre_hook(self._before)
        module.register_forward_hook(self._after)

    def before(self, read: Tensor) -> Tensor:
        """The replacement of the module's input `read` ``[..., inputs]``."""
        return read

    def after(self, read: Tensor, out: Tensor) -> Tensor:
        """The replacement of the module's output `out` ``[..., outputs]``."""
        return out

    def _before(self, _module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        return (self.before(inputs[0]), *inputs[1:]) if self.on else None

    def _after(self, _module: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> Tensor | None:
        return self.after(inputs[0], out) if self.on else None


class LowRank(Inner):
    """``W r + b + scale * B A r``, with A ``[rank, inputs]`` and B ``[outputs, rank]``.

    Source: Hu et al. 2022 (arXiv 2106.09685), section 4.1.
    """

    def __init__(self, inputs: int, outputs: int, spec: InnerSpec):
        super().__init__()
        self.down = zero_linear(inputs, spec.rank, bias=False)
        self.up = zero_linear(spec.rank, outputs, bias=spec.bias)
        self._scale = spec.scale

    @property
    def reads(self) -> tuple[nn.Module, ...]:
        """The maps whose weights it reads directly."""
        return (self.up,)

    def after(self, read: Tensor, out: Tensor) -> Tensor:
        """See `Inner.after`; without gradients, the change is added to `out` in place."""
        if torch.is_grad_enabled() or out.dtype != self.up.weight.dtype:
            return out + self._scale * self.up(self.down(read))
        out = out if self.up.bias is None else out.add_(self.up.bias, alpha=self._scale)
        narrow = self.down(read).flatten(0, -2)  # [rows, rank]
        out.view(-1, out.shape[-1]).addmm_(narrow, self.up.weight.T, alpha=self._scale)
        return out


class Decomposed(LowRank):
    """``m / |V| * V r + b`` by rows, with ``V = W + scale * B A`` and a trained length m for each row of V.

    Source: Liu et al. 2024 (arXiv 2402.09353), section 4.

    Args:
        module: the linear map that it changes, whose weights it reads on every call.
    """

    def __init__(self, module: nn.Module, inputs: int, outputs: int, spec: InnerSpec):
        super().__init__(inputs, outputs, spec)
        self.magnitude = nn.Parameter(torch.ones(outputs))
        self._changed = (module,)  # in a tuple, so that the module is not registered below itself

    @property
    def reads(self) -> tuple[nn.Module, ...]:
        """See `LowRank`."""
        return (*self._changed, self.up, self.down)

    def after(self, read: Tensor, out: Tensor) -> Tensor:
        """See `Inner.after`."""
        (module,) = self._changed
        weight = module.weight if isinstance(module, nn.Linear) else module.weight.T  # [outputs, inputs]
        rows = weight + self._scale * (self.up.weight @ self.down.weight)
        factor = self.magnitude / torch.linalg.vector_norm(rows, dim=1)
        bias = 0.0 if module.bias is None else module.bias
        return factor * (super().after(read, out) - bias) + bias


class Rescale(Inner):
    """The input of a map, or its output with bias, times scale and a vector with one factor per channel.

    Source: Liu et al. 2022 (arXiv 2205.05638), section 3.3.
    """

    def __init__(self, channels: int, spec: InnerSpec):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(channels))
        self._reads, self._scale = spec.kind == "scale_input", spec.scale

    def before(self, read: Tensor) -> Tensor:
        """See `Inner.before`."""
        return read * (self.factor * self._scale) if self._reads else read

    def after(self, read: Tensor, out: Tensor) -> Tensor:
        """See `Inner.after`."""
        return out if self._reads else out * (self.factor * self._scale)


class OwnNorm(Inner):
    """A normalisation of the base with different weights.

    Raises:
        ModelError: the module is neither a LayerNorm nor an RMSNorm.
    """

    def __init__(self, norm: nn.Module, spec: InnerSpec):
        super().__init__()
        self._centred = isinstance(norm, nn.LayerNorm)
        eps = getattr(norm, "eps", None) if self._centred else getattr(norm, "variance_epsilon", None)
        if eps is None or (spec.bias and not self._centred):
            raise ModelError(f"{spec.module} is a {type(norm).__name__}, not a supported normalisation")
        self._eps = float(eps)
        self.weight = nn.Parameter(torch.ones_like(norm.weight))
        self.bias = nn.Parameter(torch.zeros_like(norm.weight)) if spec.bias else None

    def after(self, read: Tensor, out: Tensor) -> Tensor:
        """See `Inner.after`."""
        if self._centred:
            return F.layer_norm(read, self.weight.shape, self.weight, self.bias, self._eps)
        mean_square = read.float().pow(2).mean(-1, keepdim=True)
        return self.weight * (read.float() * torch.rsqrt(mean_square + self._eps)).to(read.dtype)


def make_inner(module: nn.Module, spec: InnerSpec) -> Inner:
    """The change that a spec describes, built for its module.

    Raises:
        ModelError: the kind of module does not support the change.
    """
    if spec.kind == "norm":
        return OwnNorm(module, spec)
    inputs, outputs = linear_shape(module, spec.module)
    if spec.kind == "low_rank":
        return LowRank(inputs, outputs, spec)
    if spec.kind == "decomposed":
        return Decomposed(module, inputs, outputs, spec)
    return Rescale(inputs if spec.kind == "scale_input" else outputs, spec)


def linear_shape(module: nn.Module, name: str) -> tuple[int, int]:
    """Numbers of inputs and outputs of a linear map, for either orientation of its weights.

    Raises:
        ModelError: the module is not a linear map.
    """
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    if type(module).__name__ == "Conv1D":
        return tuple(module.weight.shape)
    raise ModelError(
        f"{name} is a {type(module).__name__}; adapters inside modules are supported only in linear maps"
    )
