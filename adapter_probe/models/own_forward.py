"""Adapters in the forward of the transformers model, through hooks.

The packed forward applies adapters itself and calls the parts of layers individually, never a whole layer.
Therefore the hooks act only while the forward of a layer runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from adapter_probe.models.bases.parts import LayerParts

if TYPE_CHECKING:
    from .layer import Site


class OwnForward:
    """The hooks of one layer module, which may be used as several layers in turn.

    Args:
        encoder: the encoder, whose forward starts a pass.
        parts: parts of the layer module.
        pre_norm: see `Anatomy`.
        sites: the two sites of each layer that uses the module, bottom first.
    """

    def __init__(
        self, encoder: nn.Module, parts: LayerParts, pre_norm: bool, sites: Sequence[tuple[Site, Site]]
    ):
        self._sites = sites
        self._layer = -1  # index of the running layer in `sites`
        self._residual: Tensor | None = None  # input of the running sublayer; None if no forward is running
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
