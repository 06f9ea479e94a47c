"""Keys and values of the last layer, folded into the one query of each text that is read.

With h the states, ``q . (K h + b) = (K' q) . h + constant``, and the softmax is invariant to the constant.
Its weights p sum to 1, so ``sum p (V h + c) = V (sum p h) + c``. The products with K and V are therefore
computed once a text in place of once a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .recording import changed
from .tensors import blank


class Folds:
    """Two linear maps whose results are nothing but the keys and the values of an attention.

    While `instead` holds, they return NaN of the right shape, and `attend` takes what they were given.
    """

    def __init__(self, key: nn.Linear, value: nn.Linear):
        self.maps = (key, value)
        self._states: list[Tensor] = []
        self._blanks: list[Tensor] = []

    @contextmanager
    def instead(self) -> Iterator[None]:
        """Inside, the maps compute nothing."""
        self._states, self._blanks = [], []

        def skipped(linear: nn.Linear) -> Callable[[Tensor], Tensor]:
            def called(states: Tensor) -> Tensor:
                self._states.append(states)
                self._blanks.append(blank(states[..., :1]).expand(*states.shape[:-1], linear.out_features))
                return self._blanks[-1]

            return called

        with changed({linear: skipped(linear) for linear in self.maps}):
            yield

    def fits(self, key: Tensor, value: Tensor) -> bool:
        """Whether keys and values are what the maps returned, as heads of equal width."""
        if len(self._blanks) != 2 or self._states[0] is not self._states[1]:
            return False
        return all(
            x.data_ptr() == own.data_ptr() and not any(x.stride())
            for x, own in zip((key, value), self._blanks)
        )

    def attend(self, query: Tensor, groups: Sequence[Any], scale: float | None) -> Tensor:
        """The result of attention ``[nodes, texts, heads, head width]``.

        Args:
            query: of the position of each text that is read, ``[nodes, texts, heads, head width]``.
            groups: the texts in the row, see `packing.Group`.
            scale: of the scores, by default as in PyTorch.
        """
        (key, value), states = self.maps, self._states[0]
        (nodes, texts, heads, width), inputs = query.shape, states.shape[-1]
        scaled = query.flatten(0, 1).transpose(0, 1) * (width**-0.5 if scale is None else scale)
        # [heads, nodes * texts, width] x [heads, width, inputs] -> [nodes, texts, heads, inputs]
        wanted = torch.bmm(scaled, key.weight.view(heads, width, inputs))
        wanted = wanted.transpose(0, 1).unflatten(0, (nodes, texts))
        found, done = [], 0
        for group in groups:
            own = states[:, group.start : group.stop].reshape(-1, group.length, inputs)
            asked = wanted[:, done : done + group.n].reshape(-1, heads, inputs)
            weights = torch.bmm(asked, own.transpose(1, 2)).softmax(dim=-1)  # [nodes * n, heads, length]
            found.append(torch.bmm(weights, own).unflatten(0, (nodes, group.n)))
            done += group.n
        read = torch.cat(found, dim=1).flatten(0, 1).transpose(0, 1)  # [heads, nodes * texts, inputs]
        out = torch.bmm(read, value.weight.view(heads, -1, inputs).transpose(1, 2)).transpose(0, 1)
        if value.bias is not None:
            out = out + value.bias.view(heads, -1)
        return out.unflatten(0, (nodes, texts))


def find_folds(
    layer: nn.Module, run: Callable[[], object], seen: list[tuple[Tensor, Tensor]]
) -> Folds | None:
    """The maps of a layer that make keys and values; None if they are no plain maps of the same states.

    Args:
        run: calls the layer.
        seen: where the keys and values of the attention are noted.
    """
    made: dict[int, tuple[nn.Linear, Tensor, Tensor]] = {}

    def noting(linear: nn.Linear, forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def called(states: Tensor) -> Tensor:
            out = forward(states)
            made[out.data_ptr()] = (linear, states, out)
            return out

        return called

    plain = [m for m in layer.modules() if type(m) is nn.Linear]
    plain = [linear for linear in plain if not linear._forward_hooks and not linear._forward_pre_hooks]
    with changed({linear: noting(linear, linear.forward) for linear in plain}):
        run()
    if len(seen) != 1:
        return None
    found = [made.get(x.data_ptr()) for x in seen[0]]
    for own, x in zip(found, seen[0]):
        if own is None or own[2].dim() != 3:
            return None
        # [rows, tokens, heads * width] -> [rows, heads, tokens, width]
        heads = own[2].unflatten(-1, (x.shape[1], -1)).transpose(1, 2)
        if (heads.shape, heads.stride()) != (x.shape, x.stride()):
            return None
    key, value = found
    assert key is not None
    assert value is not None
    return Folds(key[0], value[0]) if key[0] is not value[0] and key[1] is value[1] else None
