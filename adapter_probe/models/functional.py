"""Attention and dropout in bfloat16 on a CPU, faster than those that modules of Transformers call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from .dropout import apply_dropout
from .fused import attend

_NOTHING = -1e30  # added to what is masked: a row without keys gets equal weights, not NaN


class FasterFunctions(TorchFunctionMode):
    """While this is entered, a thread's calls of PyTorch's attention and dropout get the faster ones.

    Those are `attend` and `apply_dropout`, in bfloat16 on a CPU. Everything else is computed by PyTorch.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple = (), kwargs: Any = None
    ) -> Any:
        """Call a function of PyTorch."""
        instead = _INSTEAD.get(func, func)
        return instead(*args, **(kwargs or {}))


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
    states = [query, key, value]
    if torch.is_autocast_enabled("cpu"):
        states = [own.bfloat16() for own in states]
    half = all(own.dtype == torch.bfloat16 and own.device.type == "cpu" for own in states)
    alike = query.dim() == 4 and len(query) == len(key) and query.shape[-1] == value.shape[-1]
    learns_mask = attn_mask is not None and attn_mask.requires_grad
    if not (half and alike) or learns_mask or (dropout_p and not torch.is_grad_enabled()):
        how: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
        return F.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, **how)
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


def _drop(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if training and p > 0 and not inplace and x.dtype == torch.bfloat16 and x.device.type == "cpu":
        return apply_dropout(x, p, training)
    return F.dropout(x, p, training, inplace)


_INSTEAD: dict[Callable[..., Any], Callable[..., Any]] = {
    F.scaled_dot_product_attention: _attend,
    F.dropout: _drop,
}
