"""Remove a span's adapters from a checkpoint, and measure savings and cost.

Source of the idea: AdapterDrop, Rueckle et al. 2021 (arXiv 2010.11918).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn

from adapter_probe import metrics
from adapter_probe.ablation_results import AblationResults
from adapter_probe.ablation_settings import BY_LAYER
from adapter_probe.checkpoints.converting import settle
from adapter_probe.checkpoints.files import refuse_full
from adapter_probe.checkpoints.opened_peft import OpenedPlaced
from adapter_probe.data.packing import cut_by_tokens
from adapter_probe.errors import CheckpointError
from adapter_probe.progress import progress_bar
from adapter_probe.spans import Span, VariantSet, in_model

from .general import general_runners, own_forward
from .general_model import added_parameters
from .outputs import assemble_results, joined
from .plan import choose_tokens_per_pass, cut_batches
from .prune_writing import adapted_layers, adapters_of, mask_without, write_own, write_peft
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
        strength: what the span's adapters were multiplied by; 0 if they were removed, or `BY_LAYER`.
    """

    span: Span
    adapters_before: int
    adapters_after: int
    seconds_before: float
    seconds_after: float
    results: AblationResults
    strength: float | str = 0.0


def prune_checkpoint(
    request: AblationRequest, source: Path, span: Span | None, out: Path, progress: bool = False
) -> PruneMeasurement:
    """Write a checkpoint without the span's adapters or, if the request's settings say so, with them scaled.

    Args:
        request: the opened checkpoint with examples to measure the cost on; its precision is ignored.
        source: the checkpoint's folder.
        span: layers, which must have adapters; None for all.
        out: the new checkpoint's folder.
        progress: show a progress bar on stderr.

    Raises:
        CheckpointError: an end of the span has no adapters or lies above the model, or `out` holds something
            else.
        ResultsError: `out` cannot be written.
    """
    opened, model = request.checkpoint, request.model
    layers = span or Span(0, len(model.layers) - 1)
    if span is not None:
        layers = in_model(model.stacks, span, "--span") if span.stack or len(model.stacks) > 1 else span
        _refuse_unfit(request, span, layers, source)
    if request.settings.rank and isinstance(opened, OpenedPlaced):
        raise CheckpointError(
            f"checkpoint {source} is not in PEFT's format, in which alone a rank of {request.settings.rank} "
            "can be written; convert it with --to peft"
        )
    refuse_full(out)
    lengths = request.encoded.lengths
    order = np.argsort(np.random.default_rng(0).random(len(lengths)))
    items = cut_by_tokens(lengths, order, _TIMED_TOKENS)[0]  # a few at random, the same each time
    n_tokens = int(lengths[items].sum())
    total = int(lengths.sum()) + 2 * (_TIMED_ROUNDS + 1) * n_tokens
    with progress_bar("prune", total, "tokens", enabled=progress) as bar:
        results = _results(request, layers, bar.update)
        if isinstance(opened, OpenedPlaced):
            score = float(metrics.score(results.metric, results.predictions[1], results.scored_with))
            with TemporaryDirectory() as made:
                scores = {request.metric: None if np.isnan(score) else score}
                write_own(request, opened, layers, Path(made), scores)
                written = settle(Path(made), out, opened.description.base.name)
            module: nn.Module = written.model
        else:
            module = write_peft(request, opened, layers, out, items)
        forwards = [own_forward(request, one, items) for one in (model.module, module)]
        seconds = _time(forwards, lambda: bar.update(n_tokens))
    counts = (model.adapter_parameters, added_parameters(module))
    strength = BY_LAYER if request.settings.strengths_by_layer else request.settings.strength
    return PruneMeasurement(span or layers, *counts, *seconds, results, strength)


def _refuse_unfit(request: AblationRequest, span: Span, layers: Span, source: Path) -> None:
    """Refuse a span that cannot be removed, given with the numbers of its layers in the whole model."""
    model = request.model
    n_layers, given = len(model.layers), str(span)
    if request.settings.sites != "both" and isinstance(request.checkpoint, OpenedPlaced):
        raise CheckpointError(
            f"checkpoint {source} is not in PEFT's format, in which alone --sites {request.settings.sites} "
            "can be removed; omit --sites"
        )
    if span.first == span.last:
        given = given.removesuffix(f"-{span.last}")
    if layers.last >= n_layers:
        raise CheckpointError(
            f"--span {given} exceeds checkpoint {source}, whose layers are 0 to {n_layers - 1}"
        )
    adapted = np.flatnonzero(adapted_layers(request)).tolist()
    begin = layers.first - span.first
    there = next(one.n_layers for one in model.stacks if one.name == span.stack)
    adapted = [layer - begin for layer in adapted if begin <= layer < begin + there]
    if bare := [str(layer) for layer in dict.fromkeys((span.first, span.last)) if layer not in adapted]:
        raise CheckpointError(
            f"checkpoint {source} has no adapters in layer {' and '.join(bare)}, where --span {given} "
            f"starts or ends; the layers with adapters are {', '.join(map(str, adapted))}"
        )
    if not adapters_of(request, layers).isdisjoint(adapters_of(request, layers, outside=True)):
        raise CheckpointError(
            f"checkpoint {source} shares the adapters of layers {span} with other layers; they cannot be "
            "removed alone"
        )


def _results(request: AblationRequest, span: Span, step: Callable[[int], None]) -> AblationResults:
    """The intact model and the one without the span, on all examples."""
    mask = mask_without(request, span)
    masks = np.stack([np.ones_like(mask), mask])
    items = np.argsort(request.encoded.lengths, kind="stable")
    tokens = choose_tokens_per_pass(request.tokens_per_pass, request.device.type, request.model.inner_size)
    (runner,) = general_runners(request, torch.float32, 1)
    computed = []
    for batch in cut_batches(request.encoded.lengths, items, tokens):
        computed.append(runner.outputs(batch, masks, tokens, lambda: None))
        step(int(request.encoded.lengths[batch].sum()))
    arrays = joined(computed)
    in_order = {name: values[:, np.argsort(items)] for name, values in arrays.items()}
    return assemble_results(request, VariantSet(("intact", str(span)), (None, span), masks), in_order)


def _time(forwards: Sequence[Callable[[], Tensor]], step: Callable[[], None]) -> list[float]:
    """Seconds of one evaluation of the same few examples by each model, measured alternately."""
    seconds: list[list[float]] = [[] for _ in forwards]
    with torch.inference_mode():
        for turn in range(_TIMED_ROUNDS + 1):
            for forward, taken in zip(forwards, seconds):
                start = time.perf_counter()
                forward().sum().item()  # wait for the accelerator
                if turn:  # the first includes set-up costs
                    taken.append(time.perf_counter() - start)
                step()
    return [statistics.median(taken) for taken in seconds]
