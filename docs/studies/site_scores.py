"""Cheap importance scores of each layer's adapters, from a few passes without switching any of them off.

Four scores; higher means that more should be lost without the layer's adapters:

- `change`: relative change of the sublayer's output by its adapter, ``|x_on - x_off| / |x_off|``, mean over
  tokens;
- `weight_norm`: the Frobenius norm of the product of an adapter's matrices;
- `turn`: ``1 - cosine`` between the input and the output of a layer (Men et al. 2024, arXiv 2403.03853);
- `effect`: the first-order effect on each example's margin. Let a gate lead from the states that a site gives
  without its adapter (0) to those with it (1); the derivative of the margin by the gate, at 1, is the inner
  product of the margin's gradient with the states' difference, and one backward pass gives it for all sites
  and examples (Molchanov et al. 2017, arXiv 1611.06440; attribution patching: Nanda 2023).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from adapter_probe.data.encoding import Encoded
from adapter_probe.data.examples import Examples
from adapter_probe.data.packing import PackedBatch, cut_by_tokens, pack
from adapter_probe.errors import ModelError
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.models.layer import Layer, Site
from adapter_probe.spans import SITES

_TOKENS_PER_BATCH = 1024  # a backward pass keeps the states of all layers


@dataclass(frozen=True, eq=False)
class SiteScores:
    """The scores of one model on some examples.

    Attributes:
        change: float ``[sites]``, 0 without an adapter.
        weight_norm: float ``[sites]``, 0 without an adapter.
        turn: float ``[layers]``.
        effects: float ``[examples, sites]``: what a site's adapter adds to the example's margin, to first
            order, so that without it the margin falls by as much.
        margins: float ``[examples]``: the label's logit less the greatest of the others; of a regression the
            negative squared error.
    """

    change: np.ndarray
    weight_norm: np.ndarray
    turn: np.ndarray
    effects: np.ndarray
    margins: np.ndarray


def site_scores(model: AdaptedModel, examples: Examples) -> SiteScores:
    """Score every site, from one forward and one backward pass over the examples.

    Args:
        model: in evaluation mode, with adapters; for classification or regression.
        examples: labelled texts.

    Raises:
        ModelError: the model is for question answering or language modelling.
    """
    if model.reads_all_positions:
        raise ModelError(
            f"adapters can be ranked for classification and regression only, not for {model.head_kind} models"
        )
    encoded, labels = examples.encoded, examples.labels
    assert isinstance(encoded, Encoded), "of classification and regression"
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    model.eval()
    n, n_sites = len(encoded.lengths), len(model.sites)
    effects, margins = np.zeros((n, n_sites)), np.zeros(n)
    sums, rows = np.zeros((2, n_sites)), np.zeros(n_sites)
    order = np.argsort(encoded.lengths, kind="stable")
    for items in cut_by_tokens(encoded.lengths, order, _TOKENS_PER_BATCH):
        batch = pack(encoded, items).to(model.device)
        pass_ = _Pass(model, batch)
        margin = _margins(pass_.logits, torch.from_numpy(labels[batch.index]).to(model.device))
        effects[batch.index] = pass_.effects(margin)
        margins[batch.index] = margin.detach().float().cpu().numpy()
        sums += pass_.sums
        rows += pass_.rows
    for parameter in trained:
        parameter.requires_grad_(True)
    change, turn = sums / rows
    norms = np.array([_weight_norm(site) for site in model.sites])
    return SiteScores(change, norms, turn[1::2], effects, margins)


class _Pass:
    """One forward pass that remembers what every site gives, and would give without its adapter.

    Attributes:
        logits: ``[examples, labels]``, in packed order.
        sums: ``[2, sites]``: the relative changes and, at a layer's second site, the layer's turns, summed
            over rows.
        rows: ``[sites]``, how many rows that were.
    """

    def __init__(self, model: AdaptedModel, batch: PackedBatch):
        self._batch, self._states, self._differences = batch, [], []
        n_sites = len(model.sites)
        self.sums, self.rows = np.zeros((2, n_sites)), np.zeros(n_sites)
        hidden = model.embed(batch).detach().requires_grad_()
        for index, layer in enumerate(model.layers):
            entering, wanted = hidden.detach(), model.wanted_positions(index, batch)
            for kind in range(len(SITES)):
                number = len(SITES) * index + kind
                hidden = self._advance(layer, kind, hidden, wanted, number)
            before = entering if wanted is None else entering[:, wanted]
            self.sums[1, number] = float((1 - torch.cosine_similarity(before, hidden.detach(), dim=-1)).sum())
        self.logits = model.head(model.read(hidden, batch)[0])

    def _advance(self, layer: Layer, kind: int, hidden: Tensor, wanted: Tensor | None, number: int) -> Tensor:
        site, groups = layer.sites[kind], self._batch.groups

        def sublayer(states: Tensor) -> tuple[Tensor, Tensor]:
            return layer.ffn(states) if kind else layer.attention(states, groups, wanted)

        x, residual = sublayer(hidden)
        states = site.finish(x, residual, groups)
        self.rows[number] = states.shape[1]
        with torch.no_grad():
            if site.modules:
                with site.switched(False):
                    without = site.finish(x, residual, groups)
                changed = (site.adapt(x, residual) - x).norm(dim=-1) / x.norm(dim=-1).clamp_min(1e-30)
                self.sums[0, number] = float(changed.sum())
                self._differences.append(states.detach() - without)
            else:
                self._differences.append(None)
        self._states.append(states)
        return states

    def effects(self, margins: Tensor) -> np.ndarray:
        """Float ``[examples, sites]`` in packed order, of margins ``[examples]`` that came of `logits`."""
        gradients = torch.autograd.grad(margins.sum(), self._states)
        columns = []
        for gradient, difference in zip(gradients, self._differences):
            if difference is None:
                columns.append(np.zeros(len(margins)))
                continue
            of_rows = (gradient * difference).sum(-1)[0].double().cpu().numpy()  # [tokens or examples]
            if len(of_rows) != len(margins):
                starts = np.cumsum([0, *(g.length for g in self._batch.groups for _ in range(g.n))])[:-1]
                of_rows = np.add.reduceat(of_rows, starts)
            columns.append(of_rows)
        return np.stack(columns, axis=1)


def _margins(logits: Tensor, labels: Tensor) -> Tensor:
    if logits.shape[1] == 1:
        return -((logits[:, 0] - labels) ** 2)
    own = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], -torch.inf)
    return own - others.max(dim=1).values


@torch.no_grad()
def _weight_norm(site: Site) -> float:
    """The product's norm of every pair of matrices at a site; of what has no such pair, its parameters'."""
    squares = 0.0
    for module in site.modules:
        down, up = getattr(module, "down", None), getattr(module, "up", None)
        if down is not None and up is not None:
            product = up.weight.float() @ down.weight.float() * getattr(module, "_scale", 1.0)
            squares += float(product.norm() ** 2)
        else:
            squares += sum(float(parameter.float().norm() ** 2) for parameter in module.parameters())
    return squares**0.5
