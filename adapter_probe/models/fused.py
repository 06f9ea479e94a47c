"""PyTorch's fused attention, and faster equivalents for cases where it is slow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .dropout import dropout_mask

# In bfloat16 on a CPU, the fused attention is fastest for multiples of 16 keys; otherwise it takes
# 1.5 to 2.5 times as long. Padding by some keys costs less. Short texts are faster without it, at 11 keys
# and more if there are enough of them.
_MULTIPLE, _MOST_ADDED = 16, 10
_SHORTEST, _SHORT, _ENOUGH = 10, 26, 96  # keys, keys, and texts times heads
# Up to so many keys, PyTorch's softmax and its gradient are slower over rows of bfloat16 than over columns.
_SHORT_ROW, _SHORT_ROW_BACK = 63, 31
_WEIGHTS_AT_ONCE = 1 << 19  # attention weights that stay in a core's cache between two steps
_LONGEST_KEPT = 256  # keys; more attention weights are computed again for the gradient, if none are dropped


def attend(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, *, dropout_p: float, scale: float | None
) -> Tensor:
    """Attention of ``[rows, heads, tokens, head width]``; arguments as in torch."""
    if in_parts(query, key, value) and not (bias is not None and bias.requires_grad):
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        trained: Tensor = _TrainedAttention.apply(query, key, value, bias, dropout_p, scale)
        return trained
    evaluated = dropout_p == 0.0 and not torch.is_grad_enabled()
    if evaluated and query.dtype == torch.bfloat16 and query.device.type == "cpu":
        (rows, heads), length = key.shape[:2], key.shape[2]
        if length <= _SHORTEST or (length <= _SHORT and rows * heads >= _ENOUGH):
            return _by_products(query, key, value, bias, scale)
        if 0 < (added := -length % _MULTIPLE) <= _MOST_ADDED:
            key, value = (F.pad(states, (0, 0, 0, added)) for states in (key, value))
            bias = _for_added_keys(bias, query.shape[2], length, added)
    return F.scaled_dot_product_attention(query, key, value, bias, dropout_p=dropout_p, scale=scale)


def in_parts(*states: Tensor) -> bool:
    """Whether `attend` in training computes a few examples at a time."""
    fits = all(own.dtype == torch.bfloat16 and own.device.type == "cpu" for own in states)
    return fits and torch.is_grad_enabled()


def _by_products(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float | None
) -> Tensor:
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    added = None if bias is None else _added(bias, query)
    weights = _weights(query, key, added, slice(None), scale)
    return torch.bmm(weights, _stacked(value)).unflatten(0, query.shape[:2])


def _for_added_keys(bias: Tensor | None, queries: int, length: int, added: int) -> Tensor:
    """A bias or a mask of `attend` for `added` more keys, which nothing attends to."""
    if bias is None:
        return (torch.arange(length + added) < length).expand(1, 1, queries, -1)
    bias = bias.expand(*bias.shape[:-1], length)
    return F.pad(bias, (0, added), value=False if bias.dtype == torch.bool else -torch.inf)


def _softmax(products: Tensor) -> Tensor:
    """Softmax over the keys of ``[rows * heads, queries, keys]``."""
    if products.shape[-1] > _SHORT_ROW:
        return products.softmax(-1)
    return products.flatten(0, 1).t().softmax(0).t().reshape(products.shape)


def _softmax_gradient(above: Tensor, weights: Tensor) -> Tensor:
    """The gradient of `_softmax` from that of its result."""
    if weights.shape[-1] > _SHORT_ROW_BACK:
        return torch._softmax_backward_data(above, weights, -1, weights.dtype)
    columns = (states.flatten(0, 1).t() for states in (above, weights))
    return torch._softmax_backward_data(*columns, 0, weights.dtype).t().reshape(weights.shape)


class _TrainedAttention(torch.autograd.Function):
    """Attention in training, in bfloat16 on a CPU, by batched products.

    With dropout of its weights, PyTorch computes attention in float32, in many passes over memory. Without,
    the backward pass of its fused attention takes six times as long on short texts. Here a few examples at a
    time are computed, so that their weights stay in the cache.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        dropout_p: float,
        scale: float,
    ) -> Tensor:
        """Arguments and result as in `attend`."""
        rows, heads, tokens, _ = query.shape
        out = value.new_empty(rows, tokens, heads, value.shape[-1]).transpose(1, 2)
        added = None if bias is None else _added(bias, query)
        ctx.scale, ctx.drops = scale, dropout_p > 0
        ctx.keeps = ctx.drops or key.shape[2] <= _LONGEST_KEPT
        kept: list[Tensor] = []
        for part in _parts(query, key):
            weights = _weights(query, key, added, part, scale)
            if ctx.keeps:
                kept.append(weights)
            if ctx.drops:
                kept.append(dropout_mask(weights, dropout_p))
                weights = weights * kept[-1]
            out[part] = torch.bmm(weights, _stacked(value[part])).unflatten(0, (-1, heads))
        ctx.save_for_backward(query, key, value, None if ctx.keeps else added, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of queries, keys and values."""
        query, key, value, added, *kept = ctx.saved_tensors
        found = [torch.empty_like(states) for states in (query, key, value)]
        remaining = iter(kept)
        for part in _parts(query, key):
            q, k, v, above = (_stacked(states[part]) for states in (query, key, value, gradient))
            weights = next(remaining) if ctx.keeps else _weights(query, key, added, part, ctx.scale)
            below = torch.bmm(above, v.transpose(1, 2))
            dropped = weights
            if ctx.drops:
                mask = next(remaining)
                dropped = weights * mask
                below *= mask
            below = _softmax_gradient(below, weights)
            nothing = q.new_empty(1)
            gradients = (
                torch.baddbmm(nothing, below, k, beta=0, alpha=ctx.scale),
                torch.baddbmm(nothing, below.transpose(1, 2), q, beta=0, alpha=ctx.scale),
                torch.bmm(dropped.transpose(1, 2), above),
            )
            for whole, own in zip(found, gradients):
                whole[part] = own.unflatten(0, (-1, query.shape[1]))
        return (*found, None, None, None)


def _weights(query: Tensor, key: Tensor, added: Tensor | None, part: slice, scale: float) -> Tensor:
    """Attention weights ``[rows * heads, tokens, keys]`` of some rows."""
    q, k = _stacked(query[part]), _stacked(key[part])
    if added is None:
        return _softmax(torch.baddbmm(q.new_empty(1), q, k.transpose(1, 2), beta=0, alpha=scale))
    heads, tokens = query.shape[1:3]
    own = added[part if len(added) > 1 else slice(None)]
    own = own.expand(len(q) // heads, heads, tokens, -1).reshape(len(q), tokens, -1)
    return _softmax(torch.baddbmm(own, q, k.transpose(1, 2), alpha=scale))


def _parts(query: Tensor, key: Tensor) -> list[slice]:
    """The rows, a few at a time."""
    rows, heads, tokens, _ = query.shape
    size = max(1, _WEIGHTS_AT_ONCE // (heads * tokens * key.shape[2]))
    return [slice(start, start + size) for start in range(0, rows, size)]


def _stacked(states: Tensor) -> Tensor:
    """``[rows, heads, tokens, width]`` to ``[rows * heads, tokens, width]``."""
    return states.flatten(0, 1)


def _added(bias: Tensor, query: Tensor) -> Tensor:
    """A bias or a mask of `attend` as numbers to add."""
    if bias.dtype != torch.bool:
        return bias
    return query.new_zeros(bias.shape).masked_fill_(~bias, -torch.inf)
