"""How the families attend, on packed states: examples of one exact length at a time, so without padding.

The families' own modules give what differs (projections, relative positions, rotations); the arithmetic that
joins them is here, because only some positions' outputs may be wanted and variants stand side by side.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from adapter_probe.data.packing import Group

    from .parts import LayerParts


class Attention:
    """Every position attends to every other of its example; families that do more are subclasses.

    Attributes:
        causal: whether a position sees only itself and what came before it.

    Args:
        encoder: the encoder, whose configuration tells the number of heads.
        module: the layer's attention module; a `scaling` of its own replaces 1 / sqrt(head width).
    """

    causal = False

    def __init__(self, encoder: PreTrainedModel, module: nn.Module):
        self.encoder, self.module = encoder, module
        self.n_heads = int(encoder.config.num_attention_heads)
        self.scale: float | None = getattr(module, "scaling", None)

    def __call__(
        self, parts: LayerParts, states: Tensor, groups: tuple[Group, ...], wanted: Tensor | None
    ) -> Tensor:
        """What the positions read from their examples, before the output projection.

        Args:
            parts: of the layer.
            states: ``[nodes, tokens, hidden]``, what enters the projections.
            groups: the exact-length groups along the token axis.
            wanted: positions ``[wanted]`` whose output alone is wanted, `Group.n_read` of each example; None
                for all.

        Returns:
            ``[nodes, tokens or wanted, heads * head width]``.
        """
        if wanted is not None and self._can_fold(parts):
            return self._folded(parts, states, groups, wanted)
        query, key, value = self.project(parts, states, wanted)
        shared = self.prepare(parts, max(group.length for group in groups))
        context, done = [], 0
        for group in groups:
            rows = group.n * (group.length if wanted is None else group.n_read)
            at = None if wanted is None else _within(group, wanted[done : done + rows])
            span = slice(group.start, group.stop)
            mine = query[:, done : done + rows], key[:, span], value[:, span]
            context.append(self._group(parts, mine, group, at, shared))
            done += rows
        return context[0] if len(context) == 1 else torch.cat(context, dim=1)

    def _can_fold(self, parts: LayerParts) -> bool:
        """Whether keys and values are plain linear maps of the states, and nothing else comes in."""
        if type(self) is not Attention or _rate(parts) > 0:
            return False
        # Where keys train, their bias is to have its gradient, zero as it is.
        trains = torch.is_grad_enabled() and any(p.requires_grad for p in parts.key.parameters())
        plain = all(type(m) is nn.Linear and not any(m.children()) for m in (parts.key, parts.value))
        return plain and not trains

    def _folded(self, parts: LayerParts, states: Tensor, groups: tuple[Group, ...], wanted: Tensor) -> Tensor:
        """The same for one query an example, without making a key and a value of every position.

        With h the states, ``q . (K h + b) = (K' q) . h + constant``, and a softmax does not see the constant;
        and as its weights p sum to 1, ``sum p (V h + c) = V (sum p h) + c``. So the two big products with
        K and V are made once an example, not once a token.
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
        return parts.query(_pick(states, wanted)), parts.key(states), parts.value(states)

    def prepare(self, parts: LayerParts, longest: int) -> Any:
        """What all groups of a batch share, made for the `longest`; handed to `rotate` and `bias`."""
        return None

    def rotate(self, query: Tensor, key: Tensor, at: Tensor | None, group: Group) -> tuple[Tensor, Tensor]:
        """Put positions into queries and keys; arguments as in `bias`."""
        return query, key

    def bias(self, query: Tensor, key: Tensor, at: Tensor | None, group: Group, shared: Any) -> Tensor | None:
        """What is added to the scaled products (or, as bool, which of them count) before the softmax.

        Args:
            query: ``[rows, heads, queries, head width]``: all tokens of each row's example, or some.
            key: ``[rows, heads, length, head width]``.
            at: int64 ``[rows, queries]``, which tokens of their example the queries are; None where all are
                there.
            group: the examples.
            shared: of `prepare`.

        Returns:
            broadcastable to ``[rows, heads, queries, length]``, or None where all count alike.
        """
        return _allowed(group, key, at) if self.causal else None

    def _group(
        self,
        parts: LayerParts,
        projected: tuple[Tensor, ...],
        group: Group,
        at: Tensor | None,
        shared: Any,
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
        times = self.n_heads // key.shape[1]
        if times > 1:  # several query heads share a key head
            key, value = key.repeat_interleave(times, dim=1), value.repeat_interleave(times, dim=1)
        bias = self.bias(query, key, at, group, shared)
        if bias is not None and bias.dtype != torch.bool:
            bias = bias.to(query.dtype)
        out = F.scaled_dot_product_attention(
            query, key, value, bias, dropout_p=_rate(parts), scale=self.scale
        )
        return out.transpose(1, 2).reshape(nodes, total, width)


def _rate(parts: LayerParts) -> float:
    """Share of the attention weights that drops out now."""
    return parts.attention_dropout.p if parts.attention_dropout.training else 0.0


class CausalAttention(Attention):
    """A position attends to itself and what came before it; one projection makes queries, keys and values."""

    causal = True

    def project(
        self, parts: LayerParts, states: Tensor, wanted: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Attention.project`."""
        query, key, value = parts.qkv(states).chunk(3, dim=-1)
        return _pick(query, wanted), key, value


class RotaryAttention(Attention):
    """Causal, with positions as rotations of queries and keys; several query heads may share a key head."""

    causal = True

    def rotate(self, query: Tensor, key: Tensor, at: Tensor | None, group: Group) -> tuple[Tensor, Tensor]:
        """See `Attention.rotate`; the angles are the model's own."""
        positions = torch.arange(group.length, device=key.device)
        if group.positions is not None:
            positions = group.positions
        turns = self.encoder.rotary_emb(key, positions[None])
        cos, sin = (t[0].to(query.dtype) for t in turns)  # [length, width]
        here = (cos, sin) if at is None else (cos[at][:, None], sin[at][:, None])
        return _turn(query, *here), _turn(key, cos, sin)


class BiasedAttention(Attention):
    """A learned bias for every distance and head, the same in all layers."""

    def prepare(self, parts: LayerParts, longest: int) -> Tensor:
        """``[1, heads, longest, longest]``; a shorter example's is its corner, as only distances matter."""
        some = self.encoder.encoder.relative_attention_bias.weight.new_empty(1, longest, 0)
        bias: Tensor = self.encoder.encoder.compute_position_bias(some)
        return bias

    def bias(self, query: Tensor, key: Tensor, at: Tensor | None, group: Group, shared: Any) -> Tensor:
        """See `Attention.bias`."""
        corner = shared[:, :, : group.length, : group.length]
        # [1, heads, queries, length] -> [rows, heads, queries, length]
        return corner if at is None else corner[0].transpose(0, 1)[at].transpose(1, 2)


class DisentangledAttention(Attention):
    """Contents attend to contents, to distances, and distances to contents.

    With key k_j, query q_i and the vectors of the distance r = i - j, the product is
    q_i . k_j + q_i . k'_r + k_j . q'_r, each over sqrt(head width times the number of terms).
    Source: He et al. 2021 (arXiv 2006.03654), section 3.1.
    """

    def __init__(self, encoder: PreTrainedModel, module: nn.Module):
        super().__init__(encoder, module)
        self._terms = tuple(term for term in ("c2p", "p2c") if term in module.pos_att_type)
        width = module.all_head_size // self.n_heads
        self.scale = 1 / math.sqrt(width * (1 + len(self._terms)))
        self._span = int(getattr(module, "pos_ebd_size", 0) or getattr(module, "max_relative_positions", 0))

    def projections(self, parts: LayerParts) -> dict[str, nn.Module | None]:
        """What makes the distances' keys (for the term c2p) and queries (p2c)."""
        if self.module.share_att_key:
            return {"c2p": parts.key, "p2c": parts.query}
        names = {"c2p": "pos_key_proj", "p2c": "pos_query_proj"}
        return {term: getattr(self.module, name, None) for term, name in names.items()}

    def prepare(self, parts: LayerParts, longest: int) -> tuple[Tensor, dict[str, Tensor]] | None:
        """Rows of the distances ``[longest, longest]`` and, for each term, ``[heads, distances, width]``."""
        if not self.module.relative_attention or not self._terms:
            return None
        distances = self.encoder.encoder.get_rel_pos(torch.empty(1, longest, 0))[0]
        rows = (distances + self._span).clamp(0, 2 * self._span - 1)
        first, last = int(rows[0, -1]), int(rows[-1, 0])  # no other distance is farther
        vectors = self.module.pos_dropout(self.encoder.encoder.get_rel_embedding())[first : last + 1]
        projections = self.projections(parts)
        tables = {
            term: split_heads(projections[term](vectors)[None], -1, self.n_heads)[0] for term in self._terms
        }
        return (rows - first).to(vectors.device), tables

    def bias(self, query: Tensor, key: Tensor, at: Tensor | None, group: Group, shared: Any) -> Tensor | None:
        """The terms with distances in them."""
        if shared is None:
            return None
        length, (rows, tables) = key.shape[2], shared
        here = rows[:length, :length]
        # [rows or 1, 1, queries, length]
        here = (here[None] if at is None else here[at])[:, None]
        shape = (*query.shape[:3], length)
        total = query.new_zeros(())
        if "c2p" in tables:
            total = total + (query @ tables["c2p"].transpose(-1, -2)).gather(-1, here.expand(shape))
        if "p2c" in tables:
            products = key @ tables["p2c"].transpose(-1, -2)  # [rows, heads, length, distances]
            there = here.transpose(-1, -2).expand(*shape[:2], length, shape[2])
            total = total + products.gather(-1, there).transpose(-1, -2)
        return total * self.scale


class InterleavedDisentangledAttention(DisentangledAttention):
    """The same in its first version: one projection, whose output holds each head's three parts in turn."""

    def projections(self, parts: LayerParts) -> dict[str, nn.Module | None]:
        """See `DisentangledAttention.projections`."""
        names = {"c2p": "pos_proj", "p2c": "pos_q_proj"}
        return {term: getattr(self.module, name, None) for term, name in names.items()}

    def project(
        self, parts: LayerParts, states: Tensor, wanted: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Attention.project`."""
        # [nodes, tokens, heads * 3 * width] -> three of [nodes, tokens, heads * width]
        joined = parts.qkv(states).unflatten(-1, (self.n_heads, 3, -1))
        query, key, value = (t.flatten(-2) for t in joined.unbind(-2))
        return _pick(query, wanted) + self.module.q_bias, key, value + self.module.v_bias


def split_heads(states: Tensor, head_dim: int, n_heads: int = -1) -> Tensor:
    """``[rows, tokens, heads * head_dim]`` to ``[rows, heads, tokens, head_dim]``; either may be -1."""
    return torch.unflatten(states, -1, (n_heads, head_dim)).transpose(1, 2)


def _pick(states: Tensor, wanted: Tensor | None) -> Tensor:
    return states if wanted is None else states[:, wanted]


def _within(group: Group, wanted: Tensor) -> Tensor:
    """Positions in the batch ``[n * n_read]`` as positions in a group's examples ``[n, n_read]``."""
    starts = group.start + group.length * torch.arange(group.n, device=wanted.device)
    return wanted.view(group.n, group.n_read) - starts[:, None]


def _allowed(group: Group, key: Tensor, at: Tensor | None) -> Tensor:
    """Bool ``[1, 1, length, length]`` or, for some queries, ``[rows, 1, queries, length]``."""
    tokens = torch.arange(group.length, device=key.device)
    if group.sees is None:
        allowed = tokens <= (tokens if at is None else at)[..., None]
    else:
        allowed = group.sees if at is None else group.sees[at]
    return allowed[None, None] if at is None else allowed[:, None]


def _turn(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair (x_i, x_{i + width / 2}) by its angle."""
    low, high = states.chunk(2, dim=-1)
    return states * cos + torch.cat([-high, low], dim=-1) * sin
