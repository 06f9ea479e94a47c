"""PyTorch's fused attention, and faster equivalents for cases where it is slow."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

# In bfloat16 on a CPU, the fused attention is fastest for multiples of 16 keys; otherwise it takes
# 1.5 to 2.5 times as long. Padding by a few keys costs less, and very short texts are faster without it.
_MULTIPLE, _MOST_ADDED, _SHORT = 16, 5, 10


def attend(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, *, dropout_p: float, scale: float | None
) -> Tensor:
    """Attention of ``[rows, heads, tokens, head width]``; arguments as in torch."""
    plain = bias is None and dropout_p == 0.0 and not torch.is_grad_enabled()
    if plain and query.dtype == torch.bfloat16 and query.device.type == "cpu":
        length = key.shape[2]
        if length <= _SHORT:
            return _by_products(query, key, value, scale)
        if 0 < (added := -length % _MULTIPLE) <= _MOST_ADDED:
            key, value = (F.pad(states, (0, 0, 0, added)) for states in (key, value))
            seen = torch.arange(length + added) < length
            bias = seen.expand(1, 1, query.shape[2], -1)
    return F.scaled_dot_product_attention(query, key, value, bias, dropout_p=dropout_p, scale=scale)


def _by_products(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
    rows, heads, _, width = query.shape
    # [rows, heads, tokens, width] -> [rows * heads, tokens, width]
    query, key, value = (states.reshape(rows * heads, -1, width) for states in (query, key, value))
    scale = width**-0.5 if scale is None else scale
    weights = torch.baddbmm(query.new_empty(1), query, key.transpose(1, 2), beta=0, alpha=scale).softmax(-1)
    return torch.bmm(weights, value).view(rows, heads, -1, width)
