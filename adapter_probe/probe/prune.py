"""Remove a span's adapters from a checkpoint, and measure savings and cost.

Source of the idea: AdapterDrop, Rueckle et al. 2021 (arXiv 2010.11918).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from adapter_probe import metrics
from adapter_probe.checkpoints.converting import refuse_full, to_peft
from adapter_probe.checkpoints.native import OpenedCheckpoint, save_checkpoint
from adapter_probe.checkpoints.opening import open_checkpoint
from adapter_probe.checkpoints.peft import is_peft
from adapter_probe.data.packing import PackedBatch, cut_by_tokens, pack, pack_requests
from adapter_probe.data.requests_encoding import EncodedRequests
from adapter_probe.errors import CheckpointError, ModelError
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.models.adapters.imported import ImportedMethod
from adapter_probe.models.layer import ADAPTER
from adapter_probe.models.methods import Adapters
from adapter_probe.progress import progress_bar
from adapter_probe.results.ablation_files import AblationResults
from adapter_probe.spans import SITES_PER_LAYER, Span, VariantSet

from .outputs import assemble_results, batch_outputs, joined
from .plan import choose_tokens_per_pass, cut_batches
from .request import AblationRequest

_TIMED_TOKENS, _TIMED_ROUNDS = 1024, 5


@dataclass(frozen=True, eq=False)
class PruneMeasurement:
    """The outcome of removing a span.

    Attributes:
        span: the layers whose adapters were removed.
        adapters_before, adapters_after: numbers of adapter parameters.
        seconds_before, seconds_after: time of one evaluation of the same examples on this machine, median of
            alternating rounds.
        results: both variants on all examples, the intact one first, as input of the statistics.
    """

    span: Span
    adapters_before: int
    adapters_after: int
    seconds_before: float
    seconds_after: float
    results: AblationResults


def prune_checkpoint(
    request: AblationRequest, source: Path, span: Span, out: Path, progress: bool = False
) -> PruneMeasurement:
    """Write a checkpoint without the span's adapters.

    Args:
        request: the opened checkpoint with examples to measure the cost on; its precision is ignored.
        source: the checkpoint's folder.
        span: layers, which must have adapters.
        out: the new checkpoint's folder.
        progress: show a progress bar on stderr.

    Raises:
        CheckpointError: an end of the span has no adapters or lies above the model, or `out` holds something
            else.
        ResultsError: `out` cannot be written.
    """
    opened = request.checkpoint
    if not isinstance(opened, OpenedCheckpoint):
        raise ModelError(
            f"checkpoint {source} cannot be pruned, because the general engine runs it "
            f"({request.engine.reason}); give PEFT's layers_to_transform when you train again"
        )
    _refuse_unfit(opened, span, source, out)
    model = opened.model.to(request.device).eval()
    batch = _timed_batch(request)
    total = int(request.encoded.lengths.sum()) + 2 * (_TIMED_ROUNDS + 1) * batch.n_tokens
    with progress_bar("prune", total, "tokens", enabled=progress) as bar:
        results = _results(request, span, bar.update)
        _save_without(opened, span, source, out, {request.metric: _score(results, 1)})
        smaller = open_checkpoint(out, opened.description.base.name).model.to(request.device).eval()
        seconds = _time([model, smaller], batch, bar.update)
    counts = [m.parameter_counts()["adapters"] for m in (model, smaller)]
    return PruneMeasurement(span, *counts, *seconds, results)


def _save_without(
    opened: OpenedCheckpoint, span: Span, source: Path, out: Path, scores: dict[str, float | None]
) -> None:
    """Write in PEFT's format if the checkpoint is PEFT's and some adapters remain, else in this project's."""
    description, method, model = opened.description, opened.description.method, opened.model
    assert isinstance(method, Adapters | ImportedMethod), "nothing else has adapters"
    gone = _adapter_tensors(model, span)
    tensors = {**dict(model.base.named_parameters()), **dict(model.base.named_buffers())}
    kept = {name: tensors[name] for name in opened.trained if id(tensors[name]) not in gone}
    before = (
        method.skip_layers if isinstance(method, Adapters) else description.training.get("pruned_layers", ())
    )
    layers = sorted({*before, *range(span.first, span.last + 1)})
    training = {**description.training, "pruned_layers": layers}
    method = _without(method, span, kept.keys())
    if (
        is_peft(source) and isinstance(method, ImportedMethod) and method.inner
    ):  # PEFT's format requires adapters
        to_peft(opened, out, source, method)
        return
    save_checkpoint(out, kept, replace(description, method=method, training=training, scores=scores))


def _refuse_unfit(opened: OpenedCheckpoint, span: Span, source: Path, out: Path) -> None:
    n_layers, given = len(opened.model.layers), str(span) if span.first < span.last else str(span.first)
    if span.last >= n_layers:
        raise CheckpointError(
            f"--span {given} exceeds checkpoint {source}, whose layers are 0 to {n_layers - 1}"
        )
    sites = slice(SITES_PER_LAYER * span.first, SITES_PER_LAYER * (span.last + 1))
    adapted = np.flatnonzero(opened.model.has_adapter.reshape(-1, SITES_PER_LAYER).any(axis=1)).tolist()
    if bare := [str(layer) for layer in dict.fromkeys((span.first, span.last)) if layer not in adapted]:
        raise CheckpointError(
            f"checkpoint {source} has no adapters in layer {' and '.join(bare)}, where --span {given} "
            f"starts or ends; the layers with adapters are {', '.join(map(str, adapted))}"
        )
    outside = [site for i, site in enumerate(opened.model.sites) if not sites.start <= i < sites.stop]
    shared = {id(module) for site in outside for module in site.modules}
    if any(id(module) in shared for site in opened.model.sites[sites] for module in site.modules):
        raise CheckpointError(
            f"checkpoint {source} shares the adapters of layers {span} with other layers; they cannot be "
            "removed alone"
        )
    refuse_full(out)


def _without(method: Adapters | ImportedMethod, span: Span, kept: Set[str]) -> Adapters | ImportedMethod:
    """The method without the span's adapters; `kept` are the names of the remaining tensors."""
    layers = range(span.first, span.last + 1)
    if isinstance(method, Adapters):
        return replace(method, skip_layers=tuple(sorted({*method.skip_layers, *layers})))
    return replace(
        method,
        bottlenecks=tuple(spec for spec in method.bottlenecks if spec.layer not in layers),
        inner=tuple(s for s in method.inner if any(n.startswith(f"{s.module}.{ADAPTER}.") for n in kept)),
    )


def _adapter_tensors(model: AdaptedModel, span: Span) -> set[int]:
    """Identities of the tensors in a span's adapters, running averages included."""
    sites = [site for layer in model.layers[span.first : span.last + 1] for site in layer.sites]
    adapters = [module for site in sites for module in site.modules]
    return {id(tensor) for adapter in adapters for tensor in (*adapter.parameters(), *adapter.buffers())}


def _results(request: AblationRequest, span: Span, step: Callable[[int], None]) -> AblationResults:
    """The intact model and the one without the span, on all examples."""
    model = request.checkpoint.model
    masks = np.ones((2, len(model.sites)), dtype=bool)
    masks[1, SITES_PER_LAYER * span.first : SITES_PER_LAYER * (span.last + 1)] = False
    items = np.argsort(request.encoded.lengths, kind="stable")
    tokens = choose_tokens_per_pass(request.tokens_per_pass, request.device.type, model.inner_size)
    batches = cut_batches(request.encoded.lengths, items, tokens)
    computed = []
    for batch in batches:
        computed.append(batch_outputs(request, model, masks, batch, tokens))
        step(int(request.encoded.lengths[batch].sum()))
    arrays = joined(computed)
    in_order = {name: values[:, np.argsort(items)] for name, values in arrays.items()}
    return assemble_results(request, VariantSet(("intact", str(span)), (None, span), masks), in_order)


def _score(results: AblationResults, row: int) -> float | None:
    score = float(metrics.score(results.metric, results.predictions[row], results.labels))
    return None if np.isnan(score) else score


def _timed_batch(request: AblationRequest) -> PackedBatch:
    """A few examples at random, the same each time."""
    lengths = request.encoded.lengths
    order = np.argsort(np.random.default_rng(0).random(len(lengths)))
    items = cut_by_tokens(lengths, order, _TIMED_TOKENS)[0]
    if isinstance(request.encoded, EncodedRequests):
        return pack_requests(request.encoded, items, request.device).packed
    return pack(request.encoded, items).to(request.device)


def _time(models: Sequence[AdaptedModel], batch: PackedBatch, step: Callable[[int], None]) -> list[float]:
    """Seconds of one evaluation of the same few examples by each model, measured alternately."""
    seconds: list[list[float]] = [[] for _ in models]
    with torch.inference_mode():
        for turn in range(_TIMED_ROUNDS + 1):
            for model, taken in zip(models, seconds):
                start = time.perf_counter()
                model(batch).sum().item()  # wait for the accelerator
                if turn:  # the first includes set-up costs
                    taken.append(time.perf_counter() - start)
                step(batch.n_tokens)
    return [statistics.median(taken) for taken in seconds]
