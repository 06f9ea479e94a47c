"""Attention in bfloat16 on a CPU, faster than PyTorch's, while a model of Transformers is evaluated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from .bases.fused import attend

_attention = F.scaled_dot_product_attention


class FasterAttention(TorchFunctionMode):
    """While this is entered, `attend` computes what a thread's models ask of PyTorch's attention.

    It does so without gradients, in bfloat16 on a CPU; anything else is left to PyTorch.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple = (), kwargs: Any = None
    ) -> Any:
        """Call a function of PyTorch."""
        if func is _attention:
            return _attend(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _attend(
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
    """Arguments and result are those of ``torch.nn.functional.scaled_dot_product_attention``."""
    states = (query, key, value)
    fits = all(own.dtype == torch.bfloat16 and own.device.type == "cpu" and own.dim() == 4 for own in states)
    if not fits or dropout_p or torch.is_grad_enabled() or query.shape[-1] != value.shape[-1]:
        how: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
        return _attention(query, key, value, attn_mask, dropout_p, is_causal, **how)
    if enable_gqa:  # several heads of queries share one of keys and values
        key, value = (own.repeat_interleave(query.shape[1] // own.shape[1], 1) for own in (key, value))
    if is_causal:
        attn_mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
    if attn_mask is not None:
        attn_mask = attn_mask[(None,) * (4 - attn_mask.dim())]
        if attn_mask.dtype != torch.bool:
            attn_mask = attn_mask.to(query.dtype)
    return attend(query, key, value, attn_mask, dropout_p=0.0, scale=scale)
