"""The prefix tree: many on/off variants of one model in one forward pass, exactly.

A variant is a row of a boolean mask over the sites. Variants that agree on every site so far have the same
hidden states so far. The pass therefore starts with one row group (a *node*) for all variants and forks a
node at the first site where its variants disagree. Rows of all nodes go through each layer together. For
adapters inside a sublayer, such as LoRA, the fork is at the start of the sublayer.

With the distinct masks sorted, the variants of a node are neighbours, so a node is a range of mask rows and
the nodes of a branch are given by their bounds: node i holds masks `bounds[i]` to `bounds[i + 1] - 1`.
Inside a node, the rows with the next site off come first, so a fork splits the range once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from adapter_probe.data.packing import PackedBatch
from adapter_probe.errors import ModelError
from adapter_probe.models.adapted import AdaptedModel, NormChoice
from adapter_probe.models.layer import Site

from .forks import Fork, Forks, forks_of
from .heap import return_free_memory

# A pass leaves a few MiB of free memory that is not reused.
_PASSES_BETWEEN_RETURNS = 64


@dataclass
class Branch:
    """Nodes that have reached the same site.

    Attributes:
        site: the next site, from 0.
        bounds: int ``[nodes + 1]``, where each node's range of sorted masks begins; the last entry ends it.
        hidden: ``[nodes, tokens, hidden]``, the states that enter the next site's sublayer.
    """

    site: int
    bounds: np.ndarray
    hidden: Tensor

    def halves(self) -> tuple[Branch, Branch]:
        """The same nodes as two branches; the first, with more remaining variants, is processed later.

        Processing the smaller one first bounds the pending branches by log2(variants). The first is a copy,
        so that it keeps no other memory alive.
        """
        low, high = self._cut((len(self.bounds) - 1) // 2)
        waits, next_up = (low, high) if low.n_variants >= high.n_variants else (high, low)
        waits.hidden = waits.hidden.clone()
        return waits, next_up

    def _cut(self, middle: int) -> tuple[Branch, Branch]:
        """The nodes before and from `middle` on, with views of the states."""
        low = Branch(self.site, self.bounds[: middle + 1], self.hidden[:middle])
        return low, Branch(self.site, self.bounds[middle:], self.hidden[middle:])

    def rows_after(self, fork: Fork) -> int:
        """Number of rows of the children."""
        return fork.n_children * self.hidden.shape[1]

    @property
    def n_variants(self) -> int:
        """Number of distinct masks below these nodes."""
        return int(self.bounds[-1] - self.bounds[0])


def forward_variants(
    model: AdaptedModel,
    batch: PackedBatch,
    masks: np.ndarray,
    *,
    tokens_per_pass: int,
    norms: NormChoice = "trained",
    each_pass: Callable[[], None] = lambda: None,
) -> Tensor:
    """Logits of every variant for one batch, equal to one separate run per variant.

    Args:
        model: in evaluation mode, with adapters installed.
        batch: examples on the model's device, at most `tokens_per_pass` tokens for the bound to hold.
        masks: bool ``[variants, sites]``, True = on; arbitrary rows, repeats allowed. Columns of sites
            without an adapter are ignored, for any `norms`.
        tokens_per_pass: maximum number of rows (nodes x tokens) per pass through a sublayer. Live memory is
            about this times (2 + log2(variants) / 2).
        norms: "pretrained" uses the base's LayerNorm after a switched-off site.
        each_pass: called before every pass through a sublayer; an exception ends the computation.

    Returns:
        float ``[variants, examples, labels]``, examples in packed order; in question answering
        ``[variants, tokens, 2]``, start and end logits of every token in packed order.

    Raises:
        ModelError: the model has no adapters, or the base's LayerNorms cannot be restored.
        ValueError: masks have another shape, or there are no variants.
    """
    model.check_norms(norms)
    with torch.inference_mode():
        forks = forks_of(checked_masks(masks, model), model.device)
        walk = Walk(model, batch, forks, norms, tokens_per_pass, each_pass)
        states = model.with_added_rows(model.embed(batch), batch)
        return walk.outputs(Branch(0, forks.roots, states), model.head)[forks.leaf]


@dataclass(frozen=True)
class Walk:
    """One traversal of the tree.

    Attributes:
        model, batch, norms, tokens_per_pass, each_pass: see `forward_variants`; the batch contains the
            examples of one node.
        forks: the forks of the masks.
    """

    model: AdaptedModel
    batch: PackedBatch
    forks: Forks
    norms: NormChoice
    tokens_per_pass: int
    each_pass: Callable[[], None]

    def outputs(self, start: Branch, head: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply `head` to every leaf's last states at the positions that are read, ``[leaves, ...]``.

        Args:
            start: the initial nodes, with the input of the first layer.
            head: function of ``[read, hidden]``.
        """
        out: list[Tensor | None] = [None] * self.forks.n_leaves
        pending = [start]
        n_passes = 0
        while pending:
            self.each_pass()
            if n_passes % _PASSES_BETWEEN_RETURNS == 0 and start.hidden.device.type == "cpu":
                widest = self.tokens_per_pass * self.model.inner_size
                return_free_memory(widest * start.hidden.element_size())
            n_passes += 1
            branch = pending.pop()
            if branch.site == self.forks.n_sites:
                for leaf, states in zip(branch.bounds[:-1].tolist(), self._read(branch)):
                    out[leaf] = head(states)
                continue
            fork = self.forks.at(branch.site, branch.bounds)
            if len(branch.bounds) > 2 and branch.rows_after(fork) > self.tokens_per_pass:
                pending.extend(branch.halves())
            else:
                pending.append(self._advance(branch, fork))
        return torch.stack(out)

    def _read(self, branch: Branch) -> Iterator[Tensor]:
        """The last states of each node at the positions that are read, ``[read, hidden]``."""
        for rows in self.model.read(branch.hidden, self.batch):
            yield rows[: self.batch.n_tokens]

    def _advance(self, branch: Branch, fork: Fork) -> Branch:
        """The children after the branch's site."""
        return _advance(self.model, self.batch, branch, fork, self.norms)


def checked_masks(masks: np.ndarray, model: AdaptedModel) -> np.ndarray:
    """The masks as bool, True at sites without an adapter, so that no variant forks there."""
    has_adapter = model.has_adapter
    if not has_adapter.any():
        raise ModelError("this model has no adapters, so there is nothing to switch off")
    masks = np.asarray(masks, dtype=bool)
    if masks.ndim != 2 or not len(masks) or masks.shape[1] != len(has_adapter):
        expected = f"[variants, {len(has_adapter)}] with at least one variant"
        raise ValueError(f"masks have shape {masks.shape}, expected {expected}")
    return masks | ~has_adapter


def _advance(
    model: AdaptedModel, batch: PackedBatch, branch: Branch, fork: Fork, norms: NormChoice
) -> Branch:
    """Compute one sublayer and its site for a branch."""
    index, ffn = divmod(branch.site, 2)
    layer = model.layers[index]
    site = layer.sites[ffn]

    def sublayer(hidden: Tensor) -> tuple[Tensor, Tensor]:
        if ffn:
            return layer.ffn(hidden)
        return layer.attention(hidden, batch.groups, model.wanted_positions(index, batch))

    if fork.all_on:
        states = site.finish(*sublayer(branch.hidden), batch.groups)
    elif site.shares_sum:
        states = fork_sum(site, *sublayer(branch.hidden), fork, norms)
    else:
        states = _fork_each_way(site, sublayer, branch.hidden, batch, fork, norms)
    return Branch(branch.site + 1, fork.bounds, states)


def fork_sum(site: Site, x: Tensor, residual: Tensor, fork: Fork, norms: NormChoice) -> Tensor:
    """States of all children ``[children, tokens, hidden]``, for adapters that add to the residual sum."""
    parent, on, off = fork.parent, fork.on, fork.off
    # A node has at most one child with the adapter on, so no change is computed twice.
    assert site.adapter is not None, "a sum forks only at an adapter"
    # In the first case every node has such a child, or needs its change scaled.
    rows = None if len(on) == len(x) or site.strength else parent[on]
    change = site.adapter.change(x, residual, rows) if len(on) or site.strength else None
    states = x.add_(residual)
    if len(parent) > len(x):
        states = states.index_select(0, parent)
    if change is not None and site.strength:
        states.index_add_(0, on, change.index_select(0, parent[on]))
        states.index_add_(0, off, change.index_select(0, parent[off]), alpha=site.strength)
    elif change is not None:
        states.index_add_(0, on, change)
    if norms == "trained":
        return site.norm(states)
    states[on] = site.norm(states[on])
    states[off] = site.norm_off(norms)(states[off])
    return states


def _fork_each_way(
    site: Site,
    sublayer: Callable[[Tensor], tuple[Tensor, Tensor]],
    hidden: Tensor,
    batch: PackedBatch,
    fork: Fork,
    norms: NormChoice,
) -> Tensor:
    """States of all children after any other site, computed separately for adapters on and off."""
    entering = sublayer(hidden)
    states: Tensor | None = None
    for on, children in ((False, fork.off), (True, fork.on)):
        if not len(children):
            continue
        parent = fork.parent[children]
        norm = site.norm if on else site.norm_off(norms)
        with site.switched(on):
            x, residual = (states_in.index_select(0, parent) for states_in in entering)
            out = site.finish(x, residual, batch.groups, norm)
        if states is None:
            states = out.new_empty((fork.n_children, *out.shape[1:]))
        states[children] = out
    assert states is not None, "a fork has at least one child"
    return states
