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
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adapter_probe.checkpoints.placed import PlacedAdapter, PlacedNorm
from adapter_probe.data.encoding import Encoded
from adapter_probe.data.examples import Examples
from adapter_probe.errors import ModelError
from adapter_probe.probe.general import alike
from adapter_probe.probe.general_model import inputs_of
from adapter_probe.replay.stacks import Layer, find_layers
from adapter_probe.replay.switches import Switches

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


def site_scores(model: nn.Module, examples: Examples) -> SiteScores:
    """Score every site, from one forward and one backward pass over the examples.

    Args:
        model: an encoder of Transformers in evaluation mode, with bottlenecks, for classification or
            regression.
        examples: labelled texts.

    Raises:
        ModelError: the model has other adapters, or one whose output no LayerNorm follows.
    """
    encoded, labels = examples.encoded, examples.labels
    assert isinstance(encoded, Encoded), "of classification and regression"
    layers = find_layers(model, Switches())
    sites = [_only(part) for layer in layers for part in layer.parts]
    model.requires_grad_(False)
    model.get_input_embeddings().weight.requires_grad_(True)  # so that the states have gradients
    n = len(encoded.lengths)
    effects, margins = np.zeros((n, len(sites))), np.zeros(n)
    sums, rows = np.zeros((2, len(sites))), np.zeros(len(sites))
    for items in alike(encoded.lengths, np.arange(n), _TOKENS_PER_BATCH):
        inputs = inputs_of(model, encoded, items, next(model.parameters()).device)
        pass_ = _Pass(model, layers, sites, inputs)
        margin = _margins(pass_.logits, torch.from_numpy(labels[items]).to(pass_.logits.device))
        effects[items] = pass_.effects(margin)
        margins[items] = margin.detach().float().cpu().numpy()
        sums += pass_.sums
        rows += pass_.rows
    model.requires_grad_(False)
    change, turn = sums / rows
    return SiteScores(change, np.array(list(map(_weight_norm, sites))), turn[1::2], effects, margins)


def _only(part: tuple[nn.Module, ...]) -> PlacedAdapter | None:
    """The bottleneck of a site, if it has one.

    Raises:
        ModelError: it has another adapter, or no LayerNorm follows it.
    """
    if not part:
        return None
    if len(part) > 1 or not isinstance(part[0], PlacedAdapter) or isinstance(norm_of(part[0]), PlacedNorm):
        raise ModelError("only bottlenecks whose change is added before the LayerNorm can be ranked")
    return part[0]


def norm_of(adapter: PlacedAdapter) -> nn.Module | None:
    """The LayerNorm after an adapter and the residual sum; None if LayerNorms precede the sublayers."""
    assert adapter._place is not None, "it is attached"
    layer, place = adapter._place
    return None if place.norm is None else layer.get_submodule(place.norm)


class _Pass:
    """One forward pass that remembers what every site gives, and would give without its adapter.

    Attributes:
        logits: ``[examples, labels]``.
        sums: ``[2, sites]``: the relative changes and, at a layer's second site, the layer's turns, summed
            over rows; in the last layer, only the first position's.
        rows: ``[sites]``, how many rows that were.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: list[Layer],
        sites: list[PlacedAdapter | None],
        inputs: dict[str, Tensor],
    ):
        self._states: dict[int, Tensor] = {}
        self._differences: dict[int, Tensor] = {}
        self.sums, self.rows = np.zeros((2, len(sites))), np.zeros(len(sites))
        hooks = []
        for number, site in enumerate(sites):
            last = number >= len(sites) - 2
            if site is not None:
                hooks += self._follow(number, site, last)
            if number % 2:
                hooks.append(layers[number // 2].module.register_forward_hook(self._turned(number, last)))
        try:
            self.logits = model(**inputs).logits
        finally:
            for hook in hooks:
                hook.remove()

    def _follow(self, number: int, site: PlacedAdapter, last: bool) -> list[Any]:
        """Hooks that remember the states after a site, and how its adapter changes them."""
        norm = norm_of(site)
        before: list[Tensor] = []

        def adapted(_module: nn.Module, given: tuple, out: Tensor) -> None:
            x, residual = given[0].detach(), given[1].detach()
            shown = slice(0, 1 if last else None)
            changed = (out.detach() - x)[:, shown].norm(dim=-1) / x[:, shown].norm(dim=-1).clamp_min(1e-30)
            self.sums[0, number] = float(changed.sum())
            if norm is None:
                self._states[number], self._differences[number] = out, out.detach() - x
            else:
                before[:] = [x + residual]

        def normalised(_module: nn.Module, _given: tuple, out: Tensor) -> None:
            if before:
                without = nn.functional.layer_norm(
                    before.pop(), norm.normalized_shape, norm.weight, norm.bias, norm.eps
                )
                self._states[number], self._differences[number] = out, out.detach() - without

        hooks = [site.register_forward_hook(adapted)]
        return hooks if norm is None else [*hooks, norm.register_forward_hook(normalised)]

    def _turned(self, number: int, last: bool) -> Any:
        """A hook of a layer that adds up the angles between its inputs and outputs."""

        def hook(_module: nn.Module, given: tuple, out: Any) -> None:
            shown = slice(0, 1 if last else None)
            after = (out[0] if isinstance(out, tuple) else out).detach()[:, shown]
            turns = 1 - torch.cosine_similarity(given[0].detach()[:, shown], after, dim=-1)
            self.sums[1, number] = float(turns.sum())
            self.rows[number - 1 : number + 1] = turns.numel()

        return hook

    def effects(self, margins: Tensor) -> np.ndarray:
        """Float ``[examples, sites]`` of margins ``[examples]`` that came of `logits`."""
        numbers = sorted(self._states)
        gradients = torch.autograd.grad(margins.sum(), [self._states[number] for number in numbers])
        found = np.zeros((len(margins), len(self.rows)))
        for number, gradient in zip(numbers, gradients):
            found[:, number] = (gradient * self._differences[number]).sum((1, 2)).double().cpu().numpy()
        return found


def _margins(logits: Tensor, labels: Tensor) -> Tensor:
    if logits.shape[1] == 1:
        return -((logits[:, 0] - labels) ** 2)
    own = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], -torch.inf)
    return own - others.max(dim=1).values


@torch.no_grad()
def _weight_norm(site: PlacedAdapter | None) -> float:
    """The norm of the product of a bottleneck's matrices; of one without two such, its parameters'."""
    if site is None:
        return 0.0
    adapter = site.bottleneck
    down, up = getattr(adapter, "down", None), getattr(adapter, "up", None)
    if down is not None and up is not None:
        product = up.weight.float() @ down.weight.float() * getattr(adapter, "_scale", 1.0)
        return float(product.norm())
    return sum(float(parameter.float().norm() ** 2) for parameter in adapter.parameters()) ** 0.5
