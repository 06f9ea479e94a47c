"""Remove a span's adapters from a checkpoint, and measure savings and cost.

Source of the idea: AdapterDrop, Rueckle et al. 2021 (arXiv 2010.11918).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn

from adapter_probe import metrics
from adapter_probe.ablation_results import AblationResults
from adapter_probe.checkpoints.converting import refuse_full
from adapter_probe.checkpoints.description import Description
from adapter_probe.checkpoints.native import OpenedCheckpoint, save_checkpoint
from adapter_probe.checkpoints.opened_peft import OpenedPeft, OpenedPlaced
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.data.packing import cut_by_tokens, pack
from adapter_probe.errors import CheckpointError, ModelError
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.models.adapters.imported import ImportedMethod
from adapter_probe.models.layer import ADAPTER
from adapter_probe.models.methods import Adapters
from adapter_probe.progress import progress_bar
from adapter_probe.spans import SITES_PER_LAYER, Span, VariantSet, in_model

from .general_model import GeneralModel, added_parameters
from .outputs import assemble_results, joined
from .plan import choose_tokens_per_pass, cut_batches
from .request import AblationRequest
from .runners import make_runners

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
        strength: what the span's adapters were multiplied by; 0 if they were removed.
    """

    span: Span
    adapters_before: int
    adapters_after: int
    seconds_before: float
    seconds_after: float
    results: AblationResults
    strength: float = 0.0


def prune_checkpoint(
    request: AblationRequest, source: Path, span: Span, out: Path, progress: bool = False
) -> PruneMeasurement:
    """Write a checkpoint without the span's adapters or, if the request's settings say so, with them scaled.

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
    opened, model = request.checkpoint, request.model
    layers = in_model(model.stacks, span, "--span") if span.stack or len(model.stacks) > 1 else span
    _refuse_unfit(model, span, layers, source, out)
    items = _timed_items(request)
    n_tokens = int(request.encoded.lengths[items].sum())
    total = int(request.encoded.lengths.sum()) + 2 * (_TIMED_ROUNDS + 1) * n_tokens
    with progress_bar("prune", total, "tokens", enabled=progress) as bar:
        results = _results(request, layers, bar.update)
        if isinstance(opened, OpenedCheckpoint | OpenedPlaced):
            _save_own(request, opened, layers, out, {request.metric: _score(results, 1)})
            smaller = replace(request, checkpoint=open_any(out, opened.description.base.name))
            forwards = [_forward(of, items) for of in (request, smaller)]
            left = smaller.model.adapter_parameters
        else:
            module = _write_without(opened, request, layers, out, items)
            forwards = [_forward(request, items), _own_forward(request, items, module)]
            left = added_parameters(module)
        seconds = _time(forwards, lambda: bar.update(n_tokens))
    counts = (model.adapter_parameters, left)
    return PruneMeasurement(span, *counts, *seconds, results, request.settings.strength)


def _write_without(
    opened: OpenedPeft, request: AblationRequest, span: Span, out: Path, items: np.ndarray
) -> nn.Module:
    """Write in PEFT's format what gives, loaded by PEFT, the outputs of the model with the span off.

    Without any adapters left, a folder of transformers is written.

    Returns:
        the new model.

    Raises:
        CheckpointError: PEFT's format cannot express it.
    """
    from adapter_probe.checkpoints.peft_pruning import load_without, write_without
    from adapter_probe.checkpoints.scaling import write_scaled
    from adapter_probe.replay.checking import coarsest, compare

    model, gone, strength = request.model, _adapters(request.model, span), request.settings.strength
    assert isinstance(model, GeneralModel), "the other engine runs other checkpoints"

    def write(place: Path) -> None:
        if strength:
            write_scaled(opened, gone, strength, place)
        else:
            write_without(opened, gone, place)

    with TemporaryDirectory() as trial:  # nothing is left in `out` if it fails
        try:
            write(Path(trial))
            smaller = load_without(opened, Path(trial))
            with model.switched_off(_mask(request, span), strength):
                own = _forward(request, items)()
            compare(_own_forward(request, items, smaller)(), own, coarsest(smaller))
        except (CheckpointError, ModelError) as error:
            said = str(error).replace(trial, "the smaller checkpoint")
            raise CheckpointError(
                f"checkpoint {opened.folder} cannot be pruned in PEFT's format: {said}"
            ) from error
    write(out)
    return smaller


def _save_own(
    request: AblationRequest,
    opened: OpenedCheckpoint | OpenedPlaced,
    span: Span,
    out: Path,
    scores: dict[str, float | None],
) -> None:
    """Write in this project's format, without the span's adapters or with them scaled."""
    strength = request.settings.strength
    if strength:
        _save_scaled(request, opened, span, out, scores)
    elif isinstance(opened, OpenedPlaced):
        _save_placed(opened, span, out, scores)
    else:
        _save_without(opened, span, out, scores)


def _save_scaled(
    request: AblationRequest,
    opened: OpenedCheckpoint | OpenedPlaced,
    span: Span,
    out: Path,
    scores: dict[str, float | None],
) -> None:
    from adapter_probe.checkpoints.scaling import scaled_bottlenecks  # which imports PEFT

    adapters, strength = _adapters(request.model, span), request.settings.strength
    method = opened.description.method
    assert isinstance(method, Adapters | ImportedMethod), "nothing else has adapters"
    if isinstance(opened, OpenedPlaced):
        tensors = dict(opened.tensors)
        chosen = {name for name in tensors if opened.is_inside(name, span)}
    else:
        own = {id(tensor) for one in adapters for tensor in one.parameters()}
        found = {**dict(opened.model.base.named_parameters()), **dict(opened.model.base.named_buffers())}
        tensors = {name: found[name] for name in opened.trained}
        chosen = {name for name, tensor in tensors.items() if id(tensor) in own}
    scaled = scaled_bottlenecks(tensors, chosen, adapters, strength)
    save_checkpoint(out, scaled, _described(opened.description, span, method, scores, strength))


def _save_without(opened: OpenedCheckpoint, span: Span, out: Path, scores: dict[str, float | None]) -> None:
    """Write in this project's format."""
    method, model = opened.description.method, opened.model
    assert isinstance(method, Adapters | ImportedMethod), "nothing else has adapters"
    adapters = _adapters(model, span)
    gone = {id(tensor) for one in adapters for tensor in (*one.parameters(), *one.buffers())}
    tensors = {**dict(model.base.named_parameters()), **dict(model.base.named_buffers())}
    kept = {name: tensors[name] for name in opened.trained if id(tensors[name]) not in gone}
    method = _without(method, span, kept.keys())
    save_checkpoint(out, kept, _described(opened.description, span, method, scores))


def _save_placed(opened: OpenedPlaced, span: Span, out: Path, scores: dict[str, float | None]) -> None:
    """Write in this project's format what the general engine runs in Transformers' own modules."""
    method, kept = opened.without(span)
    save_checkpoint(out, kept, _described(opened.description, span, method, scores))


def _described(
    description: Description,
    span: Span,
    method: Adapters | ImportedMethod,
    scores: dict[str, float | None],
    strength: float = 0.0,
) -> Description:
    """The description of the new checkpoint."""
    if strength:
        done = [*description.training.get("scaled_layers", ()), [span.first, span.last, strength]]
        return replace(description, training={**description.training, "scaled_layers": done}, scores=scores)
    old = description.method
    before = old.skip_layers if isinstance(old, Adapters) else description.training.get("pruned_layers", ())
    layers = sorted({*before, *range(span.first, span.last + 1)})
    training = {**description.training, "pruned_layers": layers}
    return replace(description, method=method, training=training, scores=scores)


def _refuse_unfit(
    model: AdaptedModel | GeneralModel, span: Span, layers: Span, source: Path, out: Path
) -> None:
    """Refuse a span that cannot be removed, given with the numbers of its layers in the whole model."""
    n_layers, given = len(model.layers), str(span)
    if span.first == span.last:
        given = given.removesuffix(f"-{span.last}")
    if layers.last >= n_layers:
        raise CheckpointError(
            f"--span {given} exceeds checkpoint {source}, whose layers are 0 to {n_layers - 1}"
        )
    adapted = np.flatnonzero(model.has_adapter.reshape(-1, SITES_PER_LAYER).any(axis=1)).tolist()
    begin = layers.first - span.first
    there = next(one.n_layers for one in model.stacks if one.name == span.stack)
    adapted = [layer - begin for layer in adapted if begin <= layer < begin + there]
    if bare := [str(layer) for layer in dict.fromkeys((span.first, span.last)) if layer not in adapted]:
        raise CheckpointError(
            f"checkpoint {source} has no adapters in layer {' and '.join(bare)}, where --span {given} "
            f"starts or ends; the layers with adapters are {', '.join(map(str, adapted))}"
        )
    if not _adapters(model, layers).isdisjoint(_adapters(model, layers, outside=True)):
        raise CheckpointError(
            f"checkpoint {source} shares the adapters of layers {span} with other layers; they cannot be "
            "removed alone"
        )
    refuse_full(out)


def _adapters(model: AdaptedModel | GeneralModel, span: Span, outside: bool = False) -> set[nn.Module]:
    """The modules of a span's adapters, or of those outside it."""
    found: set[nn.Module] = set()
    for site, modules in enumerate(model.site_modules):
        if (span.first <= site // SITES_PER_LAYER <= span.last) != outside:
            found.update(modules)
    return found


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


def _mask(request: AblationRequest, span: Span) -> np.ndarray:
    """Bool ``[sites]`` with the span off."""
    mask = np.ones(SITES_PER_LAYER * len(request.model.layers), dtype=bool)
    mask[SITES_PER_LAYER * span.first : SITES_PER_LAYER * (span.last + 1)] = False
    return mask


def _results(request: AblationRequest, span: Span, step: Callable[[int], None]) -> AblationResults:
    """The intact model and the one without the span, on all examples."""
    mask = _mask(request, span)
    masks = np.stack([np.ones_like(mask), mask])
    items = np.argsort(request.encoded.lengths, kind="stable")
    tokens = choose_tokens_per_pass(request.tokens_per_pass, request.device.type, request.model.inner_size)
    (runner,) = make_runners(request, torch.float32, 1)
    computed = []
    for batch in cut_batches(request.encoded.lengths, items, tokens):
        computed.append(runner.outputs(batch, masks, tokens, lambda: None))
        step(int(request.encoded.lengths[batch].sum()))
    arrays = joined(computed)
    in_order = {name: values[:, np.argsort(items)] for name, values in arrays.items()}
    return assemble_results(request, VariantSet(("intact", str(span)), (None, span), masks), in_order)


def _score(results: AblationResults, row: int) -> float | None:
    score = float(metrics.score(results.metric, results.predictions[row], results.scored_with))
    return None if np.isnan(score) else score


def _timed_items(request: AblationRequest) -> np.ndarray:
    """A few examples at random, the same each time."""
    lengths = request.encoded.lengths
    order = np.argsort(np.random.default_rng(0).random(len(lengths)))
    return cut_by_tokens(lengths, order, _TIMED_TOKENS)[0]


def _forward(request: AblationRequest, items: np.ndarray) -> Callable[[], Tensor]:
    """The model's own forward of some items, which returns all numbers that it computes."""
    model, encoded = request.model, request.encoded
    if isinstance(model, GeneralModel):
        return _own_forward(request, items, model.module)
    model.to(request.device).eval()
    batch = pack(encoded, items).to(request.device)
    return lambda: model(batch)


def _own_forward(request: AblationRequest, items: np.ndarray, module: nn.Module) -> Callable[[], Tensor]:
    """The forward of a model of transformers, in place of the request's."""
    from .general import own_forward

    return own_forward(request, module, items)


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
