"""One Transformer layer on packed hidden states, and the two places in it where an adapter may sit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .anatomy import LayerParts, split_heads
from .bottleneck import Bottleneck

if TYPE_CHECKING:
    from adapter_probe.data.packing import Group

ADAPTER = "adapter"


class Site:
    """One adapter's place: after a sublayer's projection and dropout, before residual sum and LayerNorm."""

    def __init__(self, holder: nn.Module, dropout: nn.Module, norm: nn.LayerNorm):
        self._holder = holder
        self.norm = norm
        self.pretrained_norm: nn.LayerNorm = norm
        self._residual: Tensor | None = None
        # The packed forward below calls the adapter itself; these hooks serve the model's own forward.
        holder.register_forward_pre_hook(self._enter)
        dropout.register_forward_hook(self._adapt)

    @property
    def adapter(self) -> Bottleneck | None:
        """The adapter at this site, or None where there is none."""
        return getattr(self._holder, ADAPTER, None)

    def install(self, adapter: Bottleneck) -> None:
        """Put an adapter here; it shows in the model's state dict as ``<sublayer>.adapter.*``."""
        self._holder.add_module(ADAPTER, adapter)

    def _enter(self, _module: nn.Module, inputs: tuple[Tensor, Tensor]) -> None:
        # Called with (the sublayer's inner states, its input), before projection and dropout.
        self._residual = inputs[1]

    def _adapt(self, _module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        residual, self._residual = self._residual, None
        return None if self.adapter is None else self.adapter(output, residual)

    def finish(self, x: Tensor, residual: Tensor) -> Tensor:
        """The sublayer's output with the adapter on: LayerNorm(adapter(x) + residual)."""
        return self.norm((x if self.adapter is None else self.adapter(x, residual)) + residual)


class Layer:
    """One Transformer layer on packed hidden states ``[nodes, tokens, hidden]``.

    `nodes` are row groups that all hold the same examples (variants of the model); plain evaluation and
    training have one.
    """

    def __init__(self, parts: LayerParts, head_dim: int):
        self.parts = parts
        self._head_dim = head_dim
        self.sites = (
            Site(parts.attention_site, parts.attention_out_dropout, parts.attention_norm),
            Site(parts.ffn_site, parts.ffn_out_dropout, parts.ffn_norm),
        )

    def attention(
        self, hidden: Tensor, groups: tuple[Group, ...], first: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The attention sublayer up to its site: (projected output, residual).

        Args:
            hidden: ``[nodes, tokens, hidden]``.
            groups: the exact-length groups along the token axis.
            first: positions ``[examples]`` that alone are wanted (each example's first token); None for all.

        Returns:
            Two tensors ``[nodes, tokens or examples, hidden]``.
        """
        parts = self.parts
        wanted = hidden if first is None else hidden[:, first]
        query, key, value = parts.query(wanted), parts.key(hidden), parts.value(hidden)
        context, done = [], 0
        for group in groups:
            rows = group.n if first is not None else group.n * group.length
            span = slice(group.start, group.stop)
            context.append(
                self._attend(query[:, done : done + rows], key[:, span], value[:, span], group.length)
            )
            done += rows
        joined = context[0] if len(context) == 1 else torch.cat(context, dim=1)
        return _drop(parts.attention_out(joined), parts.attention_out_dropout), wanted

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, length: int) -> Tensor:
        """Attention inside one group; ``[nodes, n * positions, width]`` in and out."""
        nodes, total, width = query.shape
        rows = nodes * key.shape[1] // length
        # [nodes, n * length, width] -> [nodes * n, heads, length, head_dim]
        q, k, v = (split_heads(t.reshape(rows, -1, width), self._head_dim) for t in (query, key, value))
        dropout = self.parts.attention_dropout
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout.p if dropout.training else 0.0)
        return out.transpose(1, 2).reshape(nodes, total, width)

    def ffn(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The feed-forward sublayer up to its site: (projected output, residual), shaped as `hidden`."""
        parts = self.parts
        inner = parts.activation(parts.ffn_in(hidden))
        return _drop(parts.ffn_out(inner), parts.ffn_out_dropout), hidden


def _drop(x: Tensor, dropout: nn.Dropout) -> Tensor:
    """`dropout` without its forward hook, which would apply the adapter a second time."""
    return F.dropout(x, dropout.p, dropout.training)
