"""The forks of the prefix tree, computed once per set of masks for all batches.

On an accelerator the host would otherwise send new indices for every pass through a sublayer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

_MOST_FORKS = 10_000  # cache limit: below 100 MB at 500 variants


@dataclass(frozen=True)
class Fork:
    """The fork of the nodes of a branch at one site.

    Attributes:
        bounds: int ``[children + 1]``, as in `Branch`.
        nodes: int64 ``[children]``, the node that each child comes from, on the host.
        is_on: bool ``[children]``, whether each child's adapter is on, on the host.
        parent: int64, `nodes` on the model's device.
        on, off: int64, the children whose adapter is on, or off, on the model's device.
    """

    bounds: np.ndarray
    nodes: np.ndarray
    is_on: np.ndarray
    parent: Tensor
    on: Tensor
    off: Tensor

    @property
    def all_on(self) -> bool:
        """Whether every child's adapter is on."""
        return bool(self.is_on.all())

    @property
    def n_children(self) -> int:
        """Number of nodes after the site."""
        return len(self.bounds) - 1

    @staticmethod
    def at(bounds: np.ndarray, column: np.ndarray, device: torch.device) -> Fork:
        """Split each node where `column`, the site's bit of every sorted mask, changes from off to on."""
        ons = np.concatenate([[0], np.cumsum(column)])
        start, stop = bounds[:-1], bounds[1:]
        cut = stop - (ons[stop] - ons[start])
        has_off, has_on = cut > start, cut < stop
        begins = np.stack([start, cut], axis=1)
        kept = np.stack([has_off, has_on], axis=1)
        parent = np.broadcast_to(np.arange(len(start))[:, None], kept.shape)[kept]
        on = np.broadcast_to(np.array([False, True]), kept.shape)[kept]
        return Fork.of(np.append(begins[kept], bounds[-1]), parent, on, device)

    @staticmethod
    def of(bounds: np.ndarray, nodes: np.ndarray, is_on: np.ndarray, device: torch.device) -> Fork:
        """The fork with its indices on the device."""
        indices = (nodes, np.flatnonzero(is_on), np.flatnonzero(~is_on))
        return Fork(bounds, nodes, is_on, *(torch.from_numpy(index).to(device) for index in indices))


class Forks:
    """All forks of a set of masks.

    Args:
        masks: bool ``[variants, sites]``.
        device: the model's device.
        root: int ``[variants]``, index of the node at which each variant begins; every index from 0 to the
            largest one occurs. None for a single node.

    Attributes:
        n_sites: number of columns of the masks.
        n_leaves: number of distinct pairs of root and mask.
        roots: int ``[roots + 1]``, bounds of the initial nodes, as in `Branch`.
        leaf: int64 ``[variants]``, index of each variant's leaf, on the device.
    """

    def __init__(self, masks: np.ndarray, device: torch.device, root: np.ndarray | None = None):
        root = np.zeros(len(masks), dtype=np.int64) if root is None else root
        rows, leaf = np.unique(np.column_stack([root, masks]), axis=0, return_inverse=True)
        self._leaves = rows[:, 1:].astype(bool)
        self.n_leaves, self.n_sites = self._leaves.shape
        self.roots = np.searchsorted(rows[:, 0], np.arange(root.max() + 2))
        self.leaf = torch.from_numpy(leaf.reshape(-1)).to(device)
        self._device = device
        self._kept: dict[tuple[int, bytes], Fork] = {}

    def at(self, site: int, bounds: np.ndarray) -> Fork:
        """The fork of the nodes with these bounds at a site."""
        key = (site, bounds.tobytes())
        fork = self._kept.get(key)
        if fork is None:
            if len(self._kept) >= _MOST_FORKS:
                self._kept.clear()
            fork = self._kept[key] = Fork.at(bounds, self._leaves[:, site], self._device)
        return fork


def forks_of(masks: np.ndarray, device: torch.device) -> Forks:
    """The forks of masks ``[variants, sites]``, cached for the most recent sets of masks."""
    return _forks_of(masks.tobytes(), masks.shape[1], device)


@lru_cache(maxsize=4)
def _forks_of(masks: bytes, n_sites: int, device: torch.device) -> Forks:
    return Forks(np.frombuffer(masks, dtype=bool).reshape(-1, n_sites), device)
