"""Texts of several lengths end to end in one row of a layer's call, without padding.

Everything in a layer but its attention treats the positions one by one, so a layer may be called with one
long row of all texts as if it were one text, while PyTorch's attention inside it attends within each text.
Whether a layer is of this kind is found out on an example, see `refuse_mixing`: it must return what it
returns for each length alone, and NaN in one text must not reach another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_unflatten

from adapter_probe.errors import ModelError

from .attention import ATTENTION, attending
from .checking import alike
from .folding import Folds, find_folds
from .last import Where, last_position
from .recording import Call, Inputs, flat_result
from .stacks import Layer
from .structure import Axes, Recorded, Structure
from .tensors import blank

# On a CPU, a library of matrix products generates code for every number of rows in bfloat16, which takes as
# long as the products of a small batch. With rows of zeros, at most this share, few numbers occur.
_MOST_ADDED, _ROUNDEST, _READ_AT_ONCE = 0.04, 6, 8
# Of rounding, between a layer's call with one length and with several: a sum over a width is off by more
# units in a fine precision, where products of other numbers of rows are added in another order.
_UNITS, _UNITS_OF_HALF = 100, 8


class Unpacked(ModelError):
    """A layer does not treat the positions of a row one by one."""


@dataclass(frozen=True)
class Group:
    """Texts of one length in a row: where the first one starts, how many there are, and their length."""

    start: int
    n: int
    length: int

    @property
    def stop(self) -> int:
        """Where the next group starts."""
        return self.start + self.n * self.length


@dataclass
class Pack:
    """Texts of several lengths as one row.

    Attributes:
        inputs: the arguments of the model's forward for the texts of each length.
        calls: the calls of the layers for each, see `structure.arguments`.
        groups: where they are in the row.
        width: positions of the row; what follows the last text belongs to none.
        shapes: of the outputs of each length without the copies' axis, once they are known.
        one: inputs and calls for the position of each text that the head reads, see `Replay.one_position`.
        is_tried: whether the outputs from that position were compared with those of all positions.
    """

    inputs: Sequence[Inputs]
    calls: Sequence[list[Call]]
    groups: tuple[Group, ...]
    width: int
    shapes: list[torch.Size] = field(default_factory=list)
    one: tuple[Inputs, list[Call]] | None = None
    is_tried: bool = False

    def read_at(self, where: Where, round_up: bool = False) -> Tensor:
        """The positions of the row that are read, int64 ``[texts]``; rounded up, one of them again."""
        found = torch.cat([where(group.n, group.length) + group.start for group in self.groups])
        added = -len(found) % _READ_AT_ONCE if round_up else 0
        return torch.cat([found, found[-1:].expand(added)])

    def where(self, where: Where, round_up: bool) -> Where:
        """The same for several rows, see `last.Where`."""
        own = self.read_at(where, round_up)
        return lambda rows, width: (torch.arange(0, rows * width, width)[:, None] + own).flatten()

    def apart(self, states: Tensor) -> list[Tensor]:
        """States ``[nodes, 1, width, ...]`` of each length, ``[nodes, texts, length, ...]``."""
        return [
            states[:, 0, group.start : group.stop].unflatten(1, (group.n, group.length))
            for group in self.groups
        ]

    def joined(self, found: Sequence[Tensor]) -> Tensor:
        """Outputs ``[nodes, ...]`` of each length as one tensor ``[nodes, numbers]``."""
        self.shapes = [out.shape[1:] for out in found]
        return torch.cat([out.flatten(1) for out in found], dim=1)

    def parted(self, found: Tensor) -> list[Tensor]:
        """The inverse of `joined`."""
        sizes = [shape.numel() for shape in self.shapes]
        return [out.unflatten(1, shape) for out, shape in zip(found.split(sizes, dim=1), self.shapes)]

    @cached_property
    def attention(self) -> WithinTexts:
        """What holds while a layer runs."""
        return WithinTexts(self.groups, self.width)


def pack(
    inputs: Sequence[Inputs],
    calls: Sequence[list[Call]],
    axes: Sequence[Axes],
    structure: Structure,
    added: int = -1,
) -> tuple[Recorded, Pack]:
    """The calls of the layers for texts of several lengths, as calls for one row.

    Args:
        inputs: the arguments of the model's forward for the texts of each length.
        calls: the layers' calls for each, with blank states or with real ones.
        axes: the batch axes of the arguments of each.
        added: positions without a text; by default few that make the row's width a round number.

    Raises:
        Unpacked: an argument of the layers does not belong to the positions.
    """
    groups: list[Group] = []
    for own in calls:
        n, length = next(x for x in own[0].out if isinstance(x, Tensor)).shape[:2]
        groups.append(Group(groups[-1].stop if groups else 0, n, length))
    width, main = groups[-1].stop, next(x for x in calls[0][0].out if isinstance(x, Tensor))
    found = Pack(inputs, calls, tuple(groups), width + (added if added >= 0 else _added(width, main)))
    joined: list[Call] = []
    joined_axes: Axes = []
    known: dict[tuple[int, ...], tuple[Any, int | None]] = {}
    for k, each in enumerate(zip(*calls, strict=True)):
        if any(call.given_spec != each[0].given_spec for call in each):
            raise Unpacked("the layers are called differently for texts of other lengths")
        given, own_axes = [], []
        for p, xs in enumerate(zip(*(call.given for call in each))):
            key = tuple(map(id, xs))
            if key not in known:
                known[key] = _row_of(xs, [of[k][p] for of in axes], found)
            given.append(known[key][0])
            own_axes.append(known[key][1])
        out = [_row_of(xs, [0] * len(xs), found)[0] for xs in zip(*(call.out for call in each))]
        joined.append(Call(each[0].layer, given, each[0].given_spec, out, each[0].out_spec))
        joined_axes.append(own_axes)
    return Recorded(joined, joined_axes), found


def _added(width: int, states: Tensor) -> int:
    if states.dtype != torch.bfloat16 or states.device.type != "cpu":
        return 0
    return next(n for k in range(_ROUNDEST, -1, -1) if (n := -width % (1 << k)) <= _MOST_ADDED * width)


def _row_of(xs: Sequence[Any], axes: Sequence[int | None], found: Pack) -> tuple[Any, int | None]:
    """An argument of each length as that of the row, and its batch axis."""
    first = xs[0]
    if not any(isinstance(x, Tensor) for x in xs):
        if any(x != first for x in xs):
            raise Unpacked("the layers are given other values for texts of other lengths")
        return first, None
    if not all(isinstance(x, Tensor) and x.dim() > 1 and x.shape[2:] == first.shape[2:] for x in xs):
        raise Unpacked("the layers are given tensors that do not belong to positions")
    own, groups = [x.shape[:2] for x in xs], found.groups
    if all(axis == 0 for axis in axes) and own == [(group.n, group.length) for group in groups]:
        if not any(first.stride()):  # blank
            return blank(first[:1, :1]).expand(1, found.width, *first.shape[2:]), 0
        return _end_to_end([x.flatten(0, 1) for x in xs], found.width), 0
    if all(axis is None for axis in axes) and own == [(1, group.length) for group in groups]:
        return _end_to_end(
            [x[0].repeat(g.n, *[1] * (x.dim() - 2)) for x, g in zip(xs, groups)], found.width
        ), None
    raise Unpacked("the layers are given tensors that do not belong to positions")


def _end_to_end(parts: list[Tensor], width: int) -> Tensor:
    row = torch.cat(parts)
    return torch.cat([row, row.new_zeros(width - len(row), *row.shape[1:])])[None]


class WithinTexts:
    """Attention within the texts of rows; a thread's calls of PyTorch's come here while `here` holds.

    Attributes:
        at: the positions that are read of each text, where the others need not be computed.
        folds: keys and values that are folded where `at` is given; None for none.
        is_blank: whether positions that are not read are NaN, see `Walk`.
        attend: what attends within texts of one length, as `attend_in_rows` does.
        seen: keys and values of every call, while `notes` is true.
        calls: how often attention was called.
    """

    def __init__(self, groups: Sequence[Group], width: int):
        self._groups, self._width = groups, width
        self.at: Where | None = None
        self.folds: Folds | None = None
        self.is_blank = True
        self.attend: Callable[..., Tensor] = attend_in_rows
        self.seen: list[tuple[Tensor, Tensor]] = []
        self.notes = False
        self.calls = 0

    def here(self) -> AbstractContextManager[None]:
        """While a layer runs."""
        return attending(self._attend)

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        self.calls += 1
        all_rows = all(x.dim() == 4 and x.shape[2] == self._width for x in (query, key, value))
        if attn_mask is not None or not all_rows:
            raise Unpacked("the layers' attention has a mask, or other positions than the row")
        if self.notes:
            self.seen.append((key, value))
        at = self.at if not is_causal or self.at is last_position else None
        if at is not None:
            return self._attend_once(query, key, value, at, scale)
        n, heads = query.shape[:2]
        out = query.new_empty(n, self._width, heads, value.shape[-1])
        out[:, self._groups[-1].stop :] = 0
        states = [x.transpose(1, 2) for x in (query, key, value)]  # [n, width, heads, head width]
        for group in self._groups:
            q, k, v = (_texts_of(x, group) for x in states)
            own = self.attend(q, k, v, None, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
            out[:, group.start : group.stop] = own.transpose(1, 2).reshape(n, -1, heads, own.shape[-1])
        return out.transpose(1, 2)

    def _attend_once(
        self, query: Tensor, key: Tensor, value: Tensor, at: Where, scale: float | None
    ) -> Tensor:
        """The same for one position of each text."""
        n, heads = query.shape[:2]
        places = torch.cat([at(group.n, group.length) + group.start for group in self._groups])
        asked = query.transpose(1, 2)[:, places]  # [n, texts, heads, head width]
        if self.folds is not None:
            if not self.folds.fits(key, value) or key.shape[1] != heads:
                raise Unpacked("keys and values are no plain linear maps of the states")
            found = self.folds.attend(asked, self._groups, scale)
        else:
            how: dict[str, Any] = {"scale": scale, "enable_gqa": key.shape[1] != heads}
            each = []
            for group, q in zip(self._groups, asked.split([group.n for group in self._groups], dim=1)):
                k, v = (_texts_of(x.transpose(1, 2), group) for x in (key, value))
                own = self.attend(q[:, :, :, None], k, v, None, 0.0, False, **how)
                each.append(own[:, :, 0].unflatten(0, (n, group.n)))
            found = torch.cat(each, dim=1)
        out = query.new_empty(n, self._width, heads, found.shape[-1])
        if self.is_blank:
            out.fill_(torch.nan)
        out[:, places] = found
        return out.transpose(1, 2)


def _texts_of(x: Tensor, group: Group) -> Tensor:
    """``[n, width, heads, head width]`` to ``[n, texts, heads, length, head width]``."""
    own = x[:, group.start : group.stop].unflatten(1, (group.n, group.length))
    return own.transpose(2, 3)


def attend_in_rows(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """PyTorch's attention of ``[n, texts, heads, length, width]``, as ``[n * texts, heads, ...]``."""
    states = (x.transpose(2, 3).flatten(0, 1).transpose(1, 2) for x in (query, key, value))
    return ATTENTION(*states, *args, **kwargs)


def refuse_mixing(layers: Sequence[Layer], recorded: Recorded, found: Pack) -> None:
    """Compare the layers' calls for one row, with NaN in the first text, with those for each length.

    Args:
        layers: of every call, with everything on.
        recorded, found: of `pack`, with real states and at least one position without a text.

    Raises:
        Unpacked: a layer returns something else, or hands something on from one text to another.
    """
    for k, layer in enumerate(layers):
        out = _with_nan(layer, recorded, k, found, first=True)
        for own, x in zip(zip(*(calls[k].out for calls in found.calls)), out):
            if isinstance(x, Tensor):
                _refuse_other(own, x, found)
    if found.attention.calls < len(layers):
        raise Unpacked("the layers do not attend by PyTorch's attention")


def _with_nan(layer: Layer, recorded: Recorded, k: int, found: Pack, first: bool) -> list[Any]:
    """What a layer returns with NaN in place of states without a text, and of the first text if asked."""
    call = recorded.calls[k]
    given = [x.clone() if isinstance(x, Tensor) else x for x in call.given]
    for x, axis in zip(given, recorded.given_axes[k]):
        if isinstance(x, Tensor) and x.is_floating_point() and axis == 0:
            x[:, found.groups[-1].stop :] = torch.nan
            x[:, : found.groups[0].length if first else 0] = torch.nan
    layer.begin()
    args, kwargs = tree_unflatten(given, call.given_spec)
    with found.attention.here():
        return flat_result(layer.module(*args, **kwargs), args, kwargs)[0]


def last_folds(layer: Layer, recorded: Recorded, found: Pack, where: Where) -> Folds | None:
    """Keys and values of the last layer that can be folded; None if that changes what it returns there."""
    attention, k = found.attention, len(recorded.calls) - 1
    attention.seen, attention.notes = [], True
    folds = find_folds(layer.module, lambda: _with_nan(layer, recorded, k, found, False), attention.seen)
    attention.seen, attention.notes = [], False
    if folds is None:
        return None
    attention.at, at = where, found.read_at(where)
    own = _with_nan(layer, recorded, k, found, False)
    with suppress(Unpacked), folds.instead():
        attention.folds = folds
        ours = _with_nan(layer, recorded, k, found, False)
        if all(_alike(x[:, at], y[:, at]) for x, y in zip(own, ours) if isinstance(x, Tensor)):
            return folds
    return None


def _refuse_other(own: Sequence[Tensor], row: Tensor, found: Pack) -> None:
    """Compare the results of each length with those of the row, but for the first text."""
    for number, (x, y) in enumerate(zip(own, found.apart(row[None]))):
        first = int(number == 0)
        if not _alike(x[first:], y[0, first:]):
            raise Unpacked("a layer returns something else for texts of several lengths in one row")


def _alike(own: Tensor, ours: Tensor) -> bool:
    """Whether the results of two calls of a layer agree up to rounding."""
    return alike(own, ours, _UNITS if own.dtype.itemsize > 2 else _UNITS_OF_HALF)
