"""One Transformer layer on packed hidden states, with a site for an adapter at the end of each sublayer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import Tensor, nn

from adapter_probe.models.adapters.bottleneck import Bottleneck
from adapter_probe.models.adapters.configured import ConfiguredBottleneck
from adapter_probe.models.adapters.in_place import activated, mapped, multiplied
from adapter_probe.models.bases.attention import Attention
from adapter_probe.models.bases.dropout import apply_dropout
from adapter_probe.models.bases.parts import Dropout, LayerParts

if TYPE_CHECKING:
    from adapter_probe.data.packing import Group
    from adapter_probe.settings import NormChoice

ADAPTER = "adapter"


class Site:
    """The place of one adapter: after a sublayer's projection and dropout, before its residual sum.

    Args:
        holder: the module that holds the adapter.
        norm: module after the residual sum: the sublayer's LayerNorm, or `nn.Identity` in a model
            that normalises the input of sublayers.
        number: number of the layer if other layers share the holder, which then has one adapter for each.

    Attributes:
        strength: what the adapter's change is multiplied by while the site is off.
    """

    def __init__(self, holder: nn.Module, norm: nn.Module, number: int | None = None):
        self._holder, self._name = holder, ADAPTER
        if number is not None:
            if not hasattr(holder, ADAPTER):
                holder.add_module(ADAPTER, nn.Module())
            self._holder, self._name = holder.get_submodule(ADAPTER), str(number)
        self.norm = norm
        self.pretrained_norm = norm
        self._on = True
        self.strength = 0.0

    @property
    def adapter(self) -> Bottleneck | ConfiguredBottleneck | None:
        """The adapter at this site, or None."""
        return getattr(self._holder, self._name, None)

    @property
    def modules(self) -> list[nn.Module]:
        """The adapter that this site switches; empty if there is none."""
        return [] if self.adapter is None else [self.adapter]

    @property
    def shares_sum(self) -> bool:
        """Whether on and off differ only by a term added to the same residual sum."""
        return self.adapter is not None and self.adapter.only_adds

    def install(self, adapter: Bottleneck | ConfiguredBottleneck) -> None:
        """Install an adapter here; in the model's state dict it is ``<sublayer>.adapter.*``."""
        self._holder.add_module(self._name, adapter)

    @contextmanager
    def switched(self, on: bool) -> Iterator[None]:
        """Context manager that switches the site on or off."""
        self._on = on
        try:
            yield
        finally:
            self._on = True

    @property
    def _factor(self) -> float:
        return 1.0 if self._on else self.strength

    def norm_off(self, norms: NormChoice) -> Callable[[Tensor], Tensor]:
        """The norm while the site is off: between the base's and the tuned one if its adapter is scaled."""
        if norms == "trained":
            return self.norm
        return self._between if self.strength else self.pretrained_norm

    def _between(self, x: Tensor) -> Tensor:
        # Equal to a norm with interpolated factors and biases, in which its output is linear.
        off = self.pretrained_norm(x)
        return off + self.strength * (self.norm(x) - off)

    def adapt(self, x: Tensor, residual: Tensor) -> Tensor:
        """The sublayer's output after the adapter's change; `x` itself without an adapter."""
        if self.adapter is None or not self._factor:
            return x
        return self.adapter.adapt(x, residual, self.norm, self._factor)

    def finish(
        self,
        x: Tensor,
        residual: Tensor,
        groups: tuple[Group, ...] | None = None,
        norm: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """The states after the site: the norm of adapter(x) + residual.

        Args:
            x: ``[nodes, tokens, hidden]``, the sublayer's output.
            residual: the sublayer's input, of the same shape.
            groups: the examples along the token axis, for adapters that use all tokens of an example.
            norm: norm to use instead of the site's.
        """
        norm = norm or self.norm
        if self.adapter is None or not self._factor:
            return norm(x + residual)
        return self.adapter.finish(x, residual, norm, groups, self._factor)


class Layer:
    """One Transformer layer on packed hidden states ``[nodes, tokens, hidden]``.

    `nodes` are row groups with the same examples (variants of the model); plain evaluation and
    training have one.

    Args:
        parts: the layer's modules.
        attention: the attention of the layer.
        pre_norm: see `Anatomy`.
        number: number of the layer if other layers share its modules; its adapters are then separate, named
            ``<sublayer>.adapter.<number>.*``. None if the modules are not shared.
    """

    def __init__(
        self,
        parts: LayerParts,
        attention: Attention,
        pre_norm: bool,
        number: int | None = None,
    ):
        self.parts = parts
        self._attention, self._pre_norm = attention, pre_norm
        norms = (parts.attention_norm, parts.ffn_norm)
        attention_norm, ffn_norm = (nn.Identity() if pre_norm else norm for norm in norms)
        self.sites = (
            Site(parts.attention_site, attention_norm, number),
            Site(parts.ffn_site, ffn_norm, number),
        )

    def parameters(self) -> Iterator[nn.Parameter]:
        """The parameters that the layer uses: of its parts, and those that its attention reads directly."""
        containers = {"whole", "attention", "attention_site", "ffn_site"}
        for part, module in vars(self.parts).items():
            if isinstance(module, nn.Module) and part not in containers:
                yield from module.parameters()
        for name in self._attention.reads:
            found = getattr(self.parts.attention, name, None)
            if isinstance(found, nn.Module):
                yield from found.parameters()
            elif found is not None:
                yield found

    def run(self, hidden: Tensor, groups: tuple[Group, ...], wanted: Tensor | None = None) -> Tensor:
        """The states after both sublayers; arguments as in `attention`."""
        hidden = self.sites[0].finish(*self.attention(hidden, groups, wanted), groups)
        return self.sites[1].finish(*self.ffn(hidden), groups)

    def attention(
        self, hidden: Tensor, groups: tuple[Group, ...], wanted: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The attention sublayer up to its site: (projected output, residual).

        Args:
            hidden: ``[nodes, tokens, hidden]``.
            groups: the exact-length groups along the token axis.
            wanted: positions ``[examples]`` to compute, one per example; None for all.

        Returns:
            Two tensors ``[nodes, tokens or examples, hidden]``.
        """
        parts = self.parts
        entering = parts.attention_norm(hidden) if self._pre_norm else hidden
        context = self._attention(parts, entering, groups, wanted)
        out = _drop(parts.attention_out(context), parts.attention_out_dropout)
        return out, hidden if wanted is None else hidden[:, wanted]

    def ffn(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The feed-forward sublayer up to its site: (projected output, residual).

        Args:
            hidden: ``[nodes, tokens, hidden]``.

        Returns:
            Two tensors ``[nodes, tokens, hidden]``.
        """
        parts = self.parts
        entering = parts.ffn_norm(hidden) if self._pre_norm else hidden
        if parts.ffn_in_gated:
            gate, inner = parts.ffn_in(entering).chunk(2, dim=-1)
            inner = multiplied(activated(parts.activation, gate), inner)
        else:
            inner = mapped(parts.ffn_in, parts.activation, entering)
        return _drop(parts.ffn_out(_drop(inner, parts.ffn_inner_dropout)), parts.ffn_out_dropout), hidden


def _drop(x: Tensor, dropout: Dropout | None) -> Tensor:
    """Apply `dropout` without calling the module."""
    return x if dropout is None else apply_dropout(x, dropout.p, dropout.training)
