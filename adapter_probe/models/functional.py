"""The faster attention and dropout of this folder in place of those that modules of Transformers call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .dropout import apply_dropout
from .fused import attend, in_parts

_NOTHING = -1e30  # added to what is masked: a row without keys gets equal weights, not NaN


@contextmanager
def faster_functional() -> Iterator[None]:
    """While this is entered, modules that call PyTorch's attention or dropout by name get the faster ones.

    That is where `attend` and `apply_dropout` are: in bfloat16 on a CPU, the attention with gradients only.
    Everything else is computed by PyTorch's functions.
    """
    attention, dropout = F.scaled_dot_product_attention, F.dropout

    def attend_faster(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        states = [query, key, value]
        if torch.is_autocast_enabled("cpu"):
            states = [own.bfloat16() for own in states]
        alike = query.dim() == 4 and len(query) == len(key)
        if not alike or not in_parts(*states) or (attn_mask is not None and attn_mask.requires_grad):
            how: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
            return attention(query, key, value, attn_mask, dropout_p, is_causal, **how)
        if enable_gqa:  # several heads of queries share one of keys and values
            states[1:] = [own.repeat_interleave(query.shape[1] // own.shape[1], 1) for own in states[1:]]
        if is_causal:
            attn_mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                attn_mask = torch.where(attn_mask, 0.0, _NOTHING)
            attn_mask = attn_mask.bfloat16().clamp(min=_NOTHING)
            attn_mask = attn_mask[(None,) * (4 - attn_mask.dim())]
        return attend(*states, attn_mask, dropout_p=dropout_p, scale=scale)

    def drop_faster(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if training and p > 0 and not inplace and x.dtype == torch.bfloat16 and x.device.type == "cpu":
            return apply_dropout(x, p, training)
        return dropout(x, p, training, inplace)

    F.scaled_dot_product_attention, F.dropout = attend_faster, drop_faster  # type: ignore[assignment]
    try:
        yield
    finally:
        F.scaled_dot_product_attention, F.dropout = attention, dropout
