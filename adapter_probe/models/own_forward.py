"""Adapters in the transformers model's own forward, by hooks.

The packed forward applies adapters itself and calls the layers' parts one by one, never a layer as a whole.
So the hooks act only while a layer's own forward runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from adapter_probe.models.bases.parts import LayerParts

if TYPE_CHECKING:
    from .layer import Site


class OwnForward:
    """The hooks of one layer module, which may serve as several layers in turn.

    Args:
        encoder: whose forward begins a pass.
        parts: of the layer module.
        pre_norm: see `Anatomy`.
        sites: the two sites of each layer that the module serves as, bottom first.
    """

    def __init__(
        self, encoder: nn.Module, parts: LayerParts, pre_norm: bool, sites: Sequence[tuple[Site, Site]]
    ):
        self._sites = sites
        self._layer = -1  # which of `sites` is running
        self._residual: Tensor | None = None  # what enters the running sublayer; None: no forward is running
        self._sublayer = 0
        encoder.register_forward_pre_hook(self._begin)
        parts.whole.register_forward_pre_hook(self._enter)
        parts.whole.register_forward_hook(self._leave, always_call=True)
        for end in dict.fromkeys(parts.ends):  # one dropout may end both sublayers
            end.register_forward_hook(self._adapt)
        if pre_norm:
            parts.ffn_norm.register_forward_pre_hook(self._before_ffn)
        else:
            parts.attention_norm.register_forward_hook(self._after_attention)

    def _begin(self, _module: nn.Module, _inputs: tuple) -> None:
        self._layer = -1

    def _enter(self, _module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._layer = (self._layer + 1) % len(self._sites)
        self._sublayer, self._residual = 0, inputs[0]

    def _before_ffn(self, _module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._between(inputs[0])

    def _after_attention(self, _module: nn.Module, _inputs: tuple, output: Tensor) -> None:
        self._between(output)

    def _between(self, residual: Tensor) -> None:
        if self._residual is not None:
            self._sublayer, self._residual = 1, residual

    def _adapt(self, _module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        if self._residual is None:
            return None
        site = self._sites[self._layer][self._sublayer]
        return site.adapt(output, self._residual)

    def _leave(self, _module: nn.Module, _inputs: tuple, _output: object) -> None:
        self._residual = None
