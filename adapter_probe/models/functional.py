"""Attention, dropout and linear maps in bfloat16 on a CPU, faster than those of PyTorch; sums in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from transformers.activations import GELUActivation, GELUTanh, NewGELUActivation, SiLUActivation

_NOTHING = -1e30  # added to what is masked: a row without keys gets equal weights, not NaN
# In bfloat16 on a CPU, the fused attention is fastest for multiples of 16 keys; otherwise it takes
# 1.5 to 2.5 times as long. Padding by some keys costs less. Short texts are faster without it, at 11 keys
# and more if there are enough of them.
_MULTIPLE, _MOST_ADDED = 16, 10
_SHORTEST, _SHORT, _ENOUGH = 10, 26, 96  # keys, keys, and texts times heads
# Up to so many keys, PyTorch's softmax and its gradient are slower over rows of bfloat16 than over columns.
_SHORT_ROW, _SHORT_ROW_BACK = 63, 31
_WEIGHTS_AT_ONCE = 1 << 19  # attention weights that stay in a core's cache between two steps
_LONGEST_KEPT = 256  # keys; more attention weights are computed again for the gradient, if none are dropped


class FasterFunctions(TorchFunctionMode):
    """While this is entered, a thread's calls of PyTorch's attention and dropout get the faster ones.

    Those are in bfloat16 on a CPU. Everything else is computed by PyTorch.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple = (), kwargs: Any = None
    ) -> Any:
        """Call a function of PyTorch."""
        instead = _INSTEAD.get(func, func)
        return instead(*args, **(kwargs or {}))


def attend(
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
    """PyTorch's attention; in bfloat16 on a CPU a faster one, with the same arguments.

    Axes before the heads become one axis of rows in the result. The states need not lie together in memory.
    """
    states = [query, key, value]
    if torch.is_autocast_enabled("cpu"):
        states = [own.bfloat16() for own in states]
    half = all(own.dtype == torch.bfloat16 and own.device.type == "cpu" for own in states)
    alike = query.dim() >= 4 and query.shape[:-3] == key.shape[:-3] and query.shape[-1] == value.shape[-1]
    learns_mask = attn_mask is not None and attn_mask.requires_grad
    is_plain = attn_mask is None and not (dropout_p or is_causal or enable_gqa)
    if half and alike and is_plain and not torch.is_grad_enabled():
        return _evaluate(*states, None, query.shape[-1] ** -0.5 if scale is None else scale)
    query, key, value = states = [_in_rows(own) for own in states]
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
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if torch.is_grad_enabled():
        trained: Tensor = _TrainedAttention.apply(*states, attn_mask, dropout_p, scale)
        return trained
    return _evaluate(*states, attn_mask, scale)


def _evaluate(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Attention of ``[..., heads, tokens, head width]`` without gradients, with a bias or none."""
    rows, (heads, length) = key.shape[:-3].numel(), key.shape[-3:-1]
    # A product over an odd number of keys hands NaN of one query on to others, so that the last layer could
    # not leave queries out. With a bias, as for padded texts, PyTorch's attention is taken.
    if bias is None and (length <= _SHORTEST or (length <= _SHORT and rows * heads >= _ENOUGH)):
        query, key, value = (states.flatten(0, -3) for states in (query, key, value))
        products = torch.baddbmm(query.new_empty(1), query, key.transpose(1, 2), beta=0, alpha=scale)
        return torch.bmm(_softmax(products), value).unflatten(0, (rows, heads))
    added = -length % _MULTIPLE
    if 0 < added <= _MOST_ADDED:  # keys that nothing attends to
        key, value = (_in_rows(states, added) for states in (key, value))
        if bias is None:
            bias = _bias_of_added(length, added).expand(1, 1, query.shape[-2], -1)
        else:
            bias = F.pad(bias.expand(*bias.shape[:-1], length), (0, added), value=-torch.inf)
    query, key, value = (_in_rows(states) for states in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, bias, scale=scale)


def _in_rows(states: Tensor, added: int = 0) -> Tensor:
    """``[..., heads, tokens, width]`` to ``[rows, heads, tokens + added, width]``, with zeros added."""
    if not added:
        return states if states.dim() <= 4 else states.transpose(-3, -2).flatten(0, -4).transpose(1, 2)
    *rows, heads, tokens, width = states.shape
    out = states.new_empty(*rows, tokens + added, heads, width)
    out[..., tokens:, :, :] = 0
    out[..., :tokens, :, :] = states.transpose(-3, -2)
    return out.flatten(0, -4).transpose(1, 2)


@lru_cache(maxsize=1024)
def _bias_of_added(length: int, added: int) -> Tensor:
    """What keeps attention from keys after the first `length`, bfloat16 ``[1, 1, 1, keys]``."""
    return F.pad(torch.zeros(1, 1, 1, length, dtype=torch.bfloat16), (0, added), value=-torch.inf)


def _softmax(products: Tensor) -> Tensor:
    """Softmax over the keys of ``[rows * heads, queries, keys]``."""
    if products.shape[-1] > _SHORT_ROW:
        return products.softmax(-1)
    return products.flatten(0, 1).t().softmax(0).t().reshape(products.shape)


def _softmax_gradient(above: Tensor, weights: Tensor) -> Tensor:
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
        """Arguments and result as in PyTorch's attention, with a bias and a scale."""
        rows, heads, tokens, _ = query.shape
        out = value.new_empty(rows, tokens, heads, value.shape[-1]).transpose(1, 2)
        ctx.scale, ctx.drops = scale, dropout_p > 0
        ctx.keeps = ctx.drops or key.shape[2] <= _LONGEST_KEPT
        kept: list[Tensor] = []
        for part in _parts(query, key):
            weights = _weights(query, key, bias, part, scale)
            if ctx.keeps:
                kept.append(weights)
            if ctx.drops:
                kept.append(dropout_mask(weights, dropout_p))
                weights = weights * kept[-1]
            out[part] = torch.bmm(weights, _stacked(value[part])).unflatten(0, (-1, heads))
        ctx.save_for_backward(query, key, value, None if ctx.keeps else bias, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of queries, keys and values."""
        query, key, value, bias, *kept = ctx.saved_tensors
        found = [torch.empty_like(states) for states in (query, key, value)]
        remaining = iter(kept)
        for part in _parts(query, key):
            q, k, v, above = (_stacked(states[part]) for states in (query, key, value, gradient))
            weights = next(remaining) if ctx.keeps else _weights(query, key, bias, part, ctx.scale)
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


def _weights(query: Tensor, key: Tensor, bias: Tensor | None, part: slice, scale: float) -> Tensor:
    """Attention weights ``[rows * heads, tokens, keys]`` of some rows."""
    q, k = _stacked(query[part]), _stacked(key[part])
    if bias is None:
        return _softmax(torch.baddbmm(q.new_empty(1), q, k.transpose(1, 2), beta=0, alpha=scale))
    heads, tokens = query.shape[1:3]
    own = bias[part if len(bias) > 1 else slice(None)]
    own = own.expand(len(q) // heads, heads, tokens, -1).reshape(len(q), tokens, -1)
    return _softmax(torch.baddbmm(own, q, k.transpose(1, 2), alpha=scale))


def _parts(query: Tensor, key: Tensor) -> list[slice]:
    rows, heads, tokens, _ = query.shape
    size = max(1, _WEIGHTS_AT_ONCE // (heads * tokens * key.shape[2]))
    return [slice(start, start + size) for start in range(0, rows, size)]


def _stacked(states: Tensor) -> Tensor:
    """``[rows, heads, tokens, width]`` to ``[rows * heads, tokens, width]``."""
    return states.flatten(0, 1)


def _drop(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if training and p > 0 and not inplace and x.dtype == torch.bfloat16 and x.device.type == "cpu":
        return x * dropout_mask(x, p)
    return F.dropout(x, p, training, inplace)


def dropout_mask(like: Tensor, p: float) -> Tensor:
    """The factors of a dropout: 0 with probability `p`, otherwise 1 / (1 - `p`).

    PyTorch draws 32 random bits for each number, one number after the other, which takes as long as a matrix
    product. Here 16 bits decide, so that `p` is rounded to a multiple of 1 / 65,536, from a faster generator,
    whose seed is drawn from PyTorch's.

    Args:
        like: a tensor on the CPU, whose shape and dtype the factors get.
        p: probability, from 0 to 1.
    """
    seed = int(torch.randint(2**63 - 1, ()).item())
    bits = np.random.SFC64(seed).random_raw(-(-like.numel() // 4)).view(np.uint16)[: like.numel()]
    kept = (bits >= round(p * 65536)).view(np.uint8)
    return torch.from_numpy(kept).view(like.shape).to(like.dtype).mul_(1 / (1 - p) if p < 1 else 0.0)


_INSTEAD: dict[Callable[..., Any], Callable[..., Any]] = {
    F.scaled_dot_product_attention: attend,
    F.dropout: _drop,
}


_gelu_: Callable[..., Tensor] = torch.ops.aten.gelu_.default
_tanh_gelu_ = partial(_gelu_, approximate="tanh")
_silu_ = partial(F.silu, inplace=True)
_IN_PLACE: dict[type[nn.Module], Callable[[Tensor], Tensor]] = {
    GELUActivation: _gelu_,
    NewGELUActivation: _tanh_gelu_,  # eight steps in transformers
    GELUTanh: _tanh_gelu_,
    nn.ReLU: torch.relu_,
    nn.SiLU: _silu_,
    SiLUActivation: _silu_,
}
# By oneDNN's names: kind and formula.
_IN_PRODUCT = {
    _gelu_: ("gelu", "none"),
    _tanh_gelu_: ("gelu", "tanh"),
    _silu_: ("swish", ""),
    torch.relu_: ("relu", ""),
}


_ROUND = 16  # positions of a row, or rows, which are few different numbers if they are multiples of this


class PackedMap:
    """Replacement of the `forward` of a linear map in bfloat16 on a CPU.

    PyTorch repacks the weights and writes the biases before every product, which is significant next to a
    product on a matrix unit. Here the weights are packed once, and an activation is applied to the sums
    before they are rounded. Copies of a model share it, because it is immutable.

    oneDNN generates code for every number of rows that it has not seen, which takes as long as the product of
    a thousand rows. Zeros are added so that few numbers occur, unless the rows of texts are round already.

    Args:
        linear: the map.
    """

    def __init__(self, linear: nn.Linear):
        self._weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        self._bias = linear.bias
        self._kind, self._formula = "none", ""

    def followed_by(self, activation: nn.Module) -> PackedMap:
        """The same weights with an activation after them, of those that `activated_in_place` knows."""
        other = copy(self)
        other._kind, other._formula = _IN_PRODUCT[_IN_PLACE[type(activation)]]
        return other

    def __deepcopy__(self, memo: object) -> PackedMap:
        return self

    def __call__(self, x: Tensor) -> Tensor:
        """``[..., inputs]`` to ``[..., outputs]``."""
        n = x.shape[:-1].numel()
        rows = n if x.dim() > 2 and x.shape[-2] % _ROUND == 0 else few_numbers(n)
        given = x if rows == n else x.new_empty(rows, x.shape[-1])
        if given is not x:
            given[:n] = x.reshape(n, -1)
            given[n:] = 0
        out: Tensor = torch.ops.mkldnn._linear_pointwise(
            given, self._weight, self._bias, self._kind, [], self._formula
        )
        return out if given is x else out[:n].view(*x.shape[:-1], -1)


def few_numbers(n: int) -> int:
    """`n` rounded up: to a multiple of 16, and from 256 on to one of 16 numbers in every doubling."""
    step = max(_ROUND, 1 << max(0, (n - 1).bit_length() - 5))
    return -(-n // step) * step


def activated_in_place(activation: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """The forward of an activation that overwrites its argument and returns another view of it."""
    in_place = _IN_PLACE.get(type(activation))
    if in_place is None or "forward" in vars(activation):
        return None
    return lambda x: in_place(x).view_as(x)


def unchanged(x: Tensor) -> Tensor:
    """In place of the forward of an activation that is a part of the product before it."""
    return x.view_as(x)


def added(fresh: Tensor, other: Tensor) -> Tensor:
    """``fresh + other``; without gradients, `fresh` may be overwritten."""
    # With autocast, `other` can be in a higher precision; in training, `fresh` may be of fewer positions.
    fits = torch.result_type(fresh, other) == fresh.dtype and fresh.shape == other.shape
    return fresh.add_(other) if fits and not torch.is_grad_enabled() else fresh + other


def can_pack_weight(weight: Tensor) -> bool:
    """Whether a weight is in bfloat16 on a CPU that oneDNN supports, and none of torchao in fewer bits."""
    plain = type(weight) in (Tensor, nn.Parameter)
    if not plain or weight.dtype != torch.bfloat16 or weight.device.type != "cpu":
        return False
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


@contextmanager
def packed_frozen_maps(layers: Iterable[nn.Module]) -> Iterator[None]:
    """Pack the frozen linear maps of layers as long as the context lasts, for training.

    The results are the same up to rounding; the packed weights take as much memory as those maps in bfloat16.
    """
    modules = dict.fromkeys(module for layer in layers for module in layer.modules())
    frozen = [module for module in modules if _is_frozen(module)]
    for linear in frozen:
        linear.forward = partial(_through, linear, PackedMap(linear))  # type: ignore[method-assign]
    try:
        yield
    finally:
        for linear in frozen:
            del linear.forward


def _is_frozen(module: nn.Module) -> bool:
    """Whether the module is a plain linear map that does not train, and that oneDNN can pack."""
    if type(module) is not nn.Linear or any(p.requires_grad for p in module.parameters(recurse=False)):
        return False
    return can_pack_weight(module.weight) and "forward" not in vars(module)


def _through(linear: nn.Linear, packed: PackedMap, x: Tensor) -> Tensor:
    out: Tensor = _Through.apply(x.to(linear.weight.dtype), linear.weight, packed)
    return out


class _Through(torch.autograd.Function):
    """A packed map; its gradient reads the plain weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, packed: PackedMap) -> Tensor:
        ctx.weight = weight
        return packed(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient @ ctx.weight, None, None
