"""Attention of the model families on packed states: groups of examples of equal length, without padding.

Projections, relative positions and rotations are taken from the families' modules. The rest is computed here,
because variants are stacked and outputs may be needed only at some positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .angles import Angles
from .fused import attend, attend_padded, in_parts, joined_groups

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from adapter_probe.data.packing import Group

    from .parts import LayerParts


class Attention:
    """Every position attends to all positions of its example; families with more are subclasses.

    Attributes:
        reads: modules that a subclass reads in addition to the layer's named parts.

    Args:
        encoder: the encoder, whose configuration gives the number of heads.
        module: the layer's attention module, from which special settings are read: the factor `scaling`
            instead of 1 / sqrt(head width), and a `sliding_window` of visible tokens.
        angles: angles of the rotary positions, shared by the model's layers.
    """

    reads: tuple[str, ...] = ()

    def __init__(self, encoder: PreTrainedModel, module: nn.Module, angles: Angles | None = None):
        config = encoder.config
        self.encoder, self.module, self.angles = encoder, module, angles or Angles(encoder)
        self.n_heads = int(config.num_attention_heads)
        self.scale: float | None = getattr(module, "scaling", None)
        self._window: int | None = getattr(module, "sliding_window", getattr(config, "sliding_window", None))

    def __call__(
        self, parts: LayerParts, states: Tensor, groups: tuple[Group, ...], wanted: Tensor | None
    ) -> Tensor:
        """The output of attention before the output projection.

        Args:
            parts: parts of the layer.
            states: ``[nodes, tokens, hidden]``, input of the projections.
            groups: the exact-length groups along the token axis.
            wanted: positions ``[wanted]`` to compute outputs for, one of each example; None for all.

        Returns:
            ``[nodes, tokens or wanted, heads * head width]``.
        """
        if wanted is not None and self._can_fold(parts):
            return self._folded(parts, states, groups, wanted)
        query, key, value = self.project(parts, states, wanted)
        shared = self.prepare(parts, max(group.length for group in groups))
        runs: list[Sequence[Group]] = [(group,) for group in groups]
        if wanted is None and len(states) == 1 and self._is_plain and in_parts(query, key, value):
            runs = [*joined_groups(groups, self.n_heads)]
        tokens = [sum(group.n * group.length for group in run) for run in runs]
        asked = tokens if wanted is None else [group.n for group in groups]
        places = [None] * len(runs) if wanted is None else wanted.split(asked)
        # The gradient of a split is one concatenation; each slice would add zeros of the whole size.
        split = (_split(query, asked), _split(key, tokens), _split(value, tokens))
        context = []
        for run, at, *mine in zip(runs, places, *split):
            if len(run) > 1:
                width = query.shape[-1] // self.n_heads
                out = attend_padded(mine, run, width, dropout_p=_rate(parts), scale=self.scale)
            else:
                at = None if at is None else _within(run[0], at)
                out = self._group(parts, mine, run[0], at, shared)
            context.append(out)
        if wanted is None and (added := states.shape[1] - sum(tokens)):
            context.append(context[0].new_zeros(len(states), added, context[0].shape[-1]))
        return context[0] if len(context) == 1 else torch.cat(context, dim=1)

    @property
    def _is_plain(self) -> bool:
        """Whether every token attends to all of its example, without further terms."""
        return type(self) is Attention and self._window is None

    def _can_fold(self, parts: LayerParts) -> bool:
        """Whether keys and values are plain linear maps of the states without further terms."""
        if not self._is_plain or _rate(parts) > 0 or parts.key is None:
            return False
        # If keys train, their bias needs its gradient, although it is zero.
        trains = torch.is_grad_enabled() and any(p.requires_grad for p in parts.key.parameters())
        plain = all(type(m) is nn.Linear and not any(m.children()) for m in (parts.key, parts.value))
        return plain and not trains

    def _folded(self, parts: LayerParts, states: Tensor, groups: tuple[Group, ...], wanted: Tensor) -> Tensor:
        """The same for one query per example, without computing keys and values of all positions.

        With h the states, ``q . (K h + b) = (K' q) . h + constant``, and the softmax is invariant to the
        constant. Its weights p sum to 1, so ``sum p (V h + c) = V (sum p h) + c``. The two large products
        with K and V are therefore computed once per example instead of once per token.
        """
        assert isinstance(parts.key, nn.Linear)
        assert isinstance(parts.value, nn.Linear)
        heads, (width, inputs) = self.n_heads, parts.key.weight.shape
        scale = (width // heads) ** -0.5 if self.scale is None else self.scale
        nodes, examples = len(states), len(wanted)
        query = parts.query(states[:, wanted]).view(nodes * examples, heads, -1)
        # [heads, rows, head_dim] x [heads, head_dim, inputs] -> [rows, heads, inputs]
        looks_for = torch.bmm(query.transpose(0, 1) * scale, parts.key.weight.view(heads, -1, inputs))
        looks_for = looks_for.transpose(0, 1).reshape(nodes, examples, heads, inputs)
        found, done = [], 0
        for group in groups:
            own = states[:, group.start : group.stop].reshape(-1, group.length, inputs)
            wants = looks_for[:, done : done + group.n].reshape(-1, heads, inputs)
            weights = torch.bmm(wants, own.transpose(1, 2)).softmax(dim=-1)  # [rows, heads, length]
            found.append(torch.bmm(weights, own).view(nodes, group.n, heads, inputs))
            done += group.n
        read = torch.cat(found, dim=1).view(nodes * examples, heads, inputs).transpose(0, 1)
        # [heads, rows, inputs] x [heads, inputs, head_dim] -> [nodes, examples, width]
        context = torch.bmm(read, parts.value.weight.view(heads, -1, inputs).transpose(1, 2))
        context = context.transpose(0, 1).reshape(nodes, examples, width)
        return context if parts.value.bias is None else context + parts.value.bias

    def project(
        self, parts: LayerParts, states: Tensor, wanted: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (of the wanted positions), keys, values: ``[nodes, tokens, heads * head width]`` each."""
        if parts.qkv is None:
            query, key, value = parts.query(_pick(states, wanted)), parts.key(states), parts.value(states)
        else:
            query, key, value = self._split(parts.qkv(states), parts.qkv_by_head)
            query = _pick(query, wanted)
        return query, key, value

    def _split(self, joined: Tensor, by_head: bool) -> tuple[Tensor, ...]:
        """One projection's output ``[nodes, tokens, width]`` as queries, keys and values."""
        if by_head:
            # [nodes, tokens, heads * 3 * width] -> three of [nodes, tokens, heads * width]
            return tuple(t.flatten(-2) for t in joined.unflatten(-1, (self.n_heads, 3, -1)).unbind(-2))
        return joined.chunk(3, dim=-1)

    def prepare(self, parts: LayerParts, longest: int) -> Any:
        """Data shared by all groups of a batch, for the `longest` group; passed to `rotate` and `bias`."""
        return None

    def rotate(self, query: Tensor, key: Tensor, at: Tensor | None, group: Group) -> tuple[Tensor, Tensor]:
        """Apply positions to queries and keys; arguments as in `bias`."""
        return query, key

    def bias(self, query: Tensor, key: Tensor, at: Tensor | None, group: Group, shared: Any) -> Tensor | None:
        """The term added to the scaled products before the softmax, or a bool mask of them.

        Args:
            query: ``[rows, heads, queries, head width]``: all tokens of each row's example, or some.
            key: ``[rows, heads, length, head width]``.
            at: int64 ``[rows, queries]``, positions of the queries in their example; None if all tokens are
                queries.
            group: the examples.
            shared: result of `prepare`.

        Returns:
            broadcastable to ``[rows, heads, queries, length]``, or None without a term.
        """
        return self.allowed(key, at, group)

    def allowed(self, key: Tensor, at: Tensor | None, group: Group) -> Tensor | None:
        """The attention mask, None without one; arguments as in `bias`.

        Returns:
            bool ``[1 or rows, 1, length, length]`` or, for some queries, ``[rows, 1, queries, length]``.
        """
        if self._window is None or group.length <= self._window:
            return None
        tokens = torch.arange(group.length, device=key.device)
        here = tokens[None] if at is None else at  # [1, queries] or [rows, queries]
        return ((here[..., None] - tokens).abs() < self._window)[:, None]

    def _group(
        self, parts: LayerParts, projected: Sequence[Tensor], group: Group, at: Tensor | None, shared: Any
    ) -> Tensor:
        """Attention inside one group; ``[nodes, n * positions, width]`` in and out."""
        nodes, total, width = projected[0].shape
        rows = nodes * group.n
        head_dim = width // self.n_heads
        # [nodes, n * positions, width] -> [nodes * n, heads, positions, head_dim]
        query, key, value = (split_heads(t.reshape(rows, -1, t.shape[-1]), head_dim) for t in projected)
        if at is not None:
            at = at.repeat(nodes, 1)
        query, key = self.rotate(query, key, at, group)
        bias = self.bias(query, key, at, group, shared)
        if bias is not None and bias.dtype != torch.bool:
            bias = bias.to(query.dtype)
        out = attend(query, key, value, bias, dropout_p=_rate(parts), scale=self.scale)
        return out.transpose(1, 2).reshape(nodes, total, width)


def _rate(parts: LayerParts) -> float:
    """The current dropout rate of the attention weights."""
    dropout = parts.attention_dropout
    return dropout.p if dropout is not None and dropout.training else 0.0


def split_heads(states: Tensor, head_dim: int, n_heads: int = -1) -> Tensor:
    """``[rows, tokens, heads * head_dim]`` to ``[rows, heads, tokens, head_dim]``; either may be -1."""
    return torch.unflatten(states, -1, (n_heads, head_dim)).transpose(1, 2)


def _split(states: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    """The rows of each group; rows after the last group belong to no example."""
    return states.split([*sizes, states.shape[1] - sum(sizes)], dim=1)[: len(sizes)]


def _pick(states: Tensor, wanted: Tensor | None) -> Tensor:
    return states if wanted is None else states[:, wanted]


def _within(group: Group, wanted: Tensor) -> Tensor:
    """Positions in the batch ``[n]`` as positions in a group's examples ``[n, 1]``."""
    starts = group.start + group.length * torch.arange(group.n, device=wanted.device)
    return (wanted - starts)[:, None]
