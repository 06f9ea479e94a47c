"""Single (example, variant) pairs: every example under individual masks, by a tree of their own.

The nodes of the tree have one example each, of any length, so that many pairs pass through a layer together
even if they share little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from adapter_probe.data.encoding import Encoded
from adapter_probe.data.packing import PackedBatch, pack, packed_groups
from adapter_probe.models.adapted import AdaptedModel, NormChoice
from adapter_probe.models.layer import Site

from .forks import Fork, Forks
from .tree import Branch, Walk, checked_masks, fork_sum


def pair_logits(
    model: AdaptedModel,
    encoded: Encoded,
    items: np.ndarray,
    masks: np.ndarray,
    *,
    tokens_per_pass: int,
    norms: NormChoice = "trained",
    each_pass: Callable[[], None] = lambda: None,
) -> np.ndarray:
    """Logits of pairs, equal to those of separate runs.

    Args:
        model: in evaluation mode, for classification or regression.
        encoded: the dataset.
        items: int ``[pairs]``, the example of each pair; repeats allowed.
        masks: bool ``[pairs, sites]``, the variant of each; True = on.
        tokens_per_pass: maximum number of rows per pass, which bounds memory.
        norms: "pretrained" uses the base's LayerNorm after a switched-off site.
        each_pass: see `forward_variants`.

    Returns:
        float32 ``[pairs, labels]``, in the order given.
    """
    if not len(items):
        return np.empty((0, model.base.config.num_labels), np.float32)
    batch = pack(encoded, np.unique(items))
    order = np.argsort(batch.index)
    examples = order[np.searchsorted(batch.index, items, sorter=order)]
    logits = forward_pairs(
        model,
        batch.to(model.device),
        examples,
        masks,
        tokens_per_pass=tokens_per_pass,
        norms=norms,
        each_pass=each_pass,
    )
    return logits.float().cpu().numpy()


def forward_pairs(
    model: AdaptedModel,
    batch: PackedBatch,
    examples: np.ndarray,
    masks: np.ndarray,
    *,
    tokens_per_pass: int,
    norms: NormChoice = "trained",
    each_pass: Callable[[], None] = lambda: None,
) -> Tensor:
    """Logits of (example, variant) pairs.

    Args:
        model: in evaluation mode, with adapters installed, for classification or regression.
        batch: examples on the model's device.
        examples: int ``[pairs]``, each pair's example by its packed position in the batch; every example
            occurs at least once.
        masks: bool ``[pairs, sites]``, each pair's variant.
        tokens_per_pass: see `forward_variants`.
        norms: see `forward_variants`.
        each_pass: see `forward_variants`.

    Returns:
        float ``[pairs, labels]``.
    """
    model.check_norms(norms)
    with torch.inference_mode():
        forks = Forks(checked_masks(masks, model), model.device, root=examples)
        walk = PairWalk(model, batch, forks, norms, tokens_per_pass, each_pass)
        lengths = np.array([group.length for group in batch.groups for _ in range(group.n)])
        start = PairBranch(0, forks.roots, model.embed(batch), np.arange(len(lengths)), lengths)
        read = walk.outputs(start, lambda row: row)  # [leaves, hidden]
        return model.head(read)[forks.leaf]


@dataclass
class PairBranch(Branch):
    """Nodes with one example each, along the token axis.

    Attributes:
        hidden: ``[1, rows, hidden]``, the rows of one node after those of another.
        examples: int ``[nodes]``, each node's example by its packed position in the batch, ascending.
        n_rows: int ``[nodes]``: the tokens of each node's example, or 1 after the last attention if the head
            reads one token.
    """

    examples: np.ndarray
    n_rows: np.ndarray

    def _cut(self, middle: int) -> tuple[Branch, Branch]:
        first, bounds = int(self.n_rows[:middle].sum()), self.bounds
        low = (bounds[: middle + 1], self.hidden[:, :first], self.examples[:middle], self.n_rows[:middle])
        high = (bounds[middle:], self.hidden[:, first:], self.examples[middle:], self.n_rows[middle:])
        return PairBranch(self.site, *low), PairBranch(self.site, *high)

    def rows_after(self, fork: Fork) -> int:
        """See `Branch.rows_after`."""
        return int(self.n_rows[fork.nodes].sum())


class PairWalk(Walk):
    """A `Walk` over branches of nodes with one example each."""

    def _read(self, branch: Branch) -> Iterator[Tensor]:
        assert isinstance(branch, PairBranch)
        (states,) = branch.hidden
        yield from states if len(states) == len(branch.examples) else states[self._positions(branch)]

    def _advance(self, branch: Branch, fork: Fork) -> Branch:
        assert isinstance(branch, PairBranch)
        site = self.model.sites[branch.site]
        if site.shares_sum or fork.all_on:
            x, residual, n_rows = self._sublayer(branch)
            if fork.all_on:
                states = site.finish(x, residual, packed_groups(n_rows))
            else:
                by_row = np.repeat(fork.is_on, n_rows[fork.nodes])
                rows = Fork.of(fork.bounds, _rows(n_rows, fork.nodes), by_row, x.device)
                summands = (states.transpose(0, 1) for states in (x, residual))  # [rows, 1, hidden]
                states = fork_sum(site, *summands, rows, self.norms).transpose(0, 1)
            n_rows = n_rows[fork.nodes]
        else:
            states, n_rows = self._each_way(site, branch, fork)
        return PairBranch(branch.site + 1, fork.bounds, states, branch.examples[fork.nodes], n_rows)

    def _each_way(self, site: Site, branch: PairBranch, fork: Fork) -> tuple[Tensor, np.ndarray]:
        """States and rows of the children, computed separately for adapters on and off."""
        *entering, rows = self._sublayer(branch)
        done, counts, order = [], [], []
        for on in (False, True):
            children = np.flatnonzero(fork.is_on == on)
            if not len(children):
                continue
            nodes = fork.nodes[children]
            norm = site.norm if on else site.norm_off(self.norms)
            with site.switched(on):
                x, residual = (_taken(states, rows, nodes) for states in entering)
                n_rows = rows[nodes]
                done.append(site.finish(x, residual, packed_groups(n_rows), norm))
            counts.append(n_rows)
            order.append(children)
        n_rows, back = np.concatenate(counts), np.argsort(np.concatenate(order))
        return _taken(torch.cat(done, dim=1), n_rows, back), n_rows[back]

    def _sublayer(self, branch: PairBranch) -> tuple[Tensor, Tensor, np.ndarray]:
        """The branch's sublayer up to its site: output, residual, and the rows of each node in both."""
        index, ffn = divmod(branch.site, 2)
        layer, n_rows = self.model.layers[index], branch.n_rows
        if ffn:
            return (*layer.ffn(branch.hidden), n_rows)
        wanted = self.model.wanted_positions(index, self.batch)
        if wanted is None:
            return (*layer.attention(branch.hidden, packed_groups(n_rows)), n_rows)
        states = layer.attention(branch.hidden, packed_groups(n_rows), self._positions(branch))
        return (*states, np.ones_like(n_rows))

    def _positions(self, branch: PairBranch) -> Tensor:
        """The row of each node that the head reads, int64 ``[nodes]``."""
        offsets = self.model.read_positions(self.batch) - self.batch.first
        nodes, firsts = (
            torch.from_numpy(index).to(offsets.device)
            for index in (branch.examples, np.cumsum(branch.n_rows) - branch.n_rows)
        )
        return firsts + offsets[nodes]


def _taken(states: Tensor, n_rows: np.ndarray, nodes: np.ndarray) -> Tensor:
    """The rows of some nodes of ``[1, rows, hidden]``; `n_rows` is int ``[nodes]``, of all nodes."""
    return states.index_select(1, torch.from_numpy(_rows(n_rows, nodes)).to(states.device))


def _rows(n_rows: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """The rows of some nodes, one node after another."""
    counts = n_rows[nodes]
    firsts = (np.cumsum(n_rows) - n_rows)[nodes] - (np.cumsum(counts) - counts)
    return np.repeat(firsts, counts) + np.arange(counts.sum())
