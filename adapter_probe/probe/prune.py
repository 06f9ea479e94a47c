"""Remove a span's adapters from a checkpoint, and measure savings and cost.

Source of the idea: AdapterDrop, Rueckle et al. 2021 (arXiv 2010.11918).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adapter_probe import metrics
from adapter_probe.ablation_results import AblationResults
from adapter_probe.ablation_settings import BY_LAYER
from adapter_probe.checkpoints.base_config import silent_transformers
from adapter_probe.checkpoints.converting import keep_files, settle
from adapter_probe.checkpoints.files import DELTA, DESCRIPTION, refuse_full
from adapter_probe.checkpoints.native import (
    keep_record,
    library_versions,
    save_checkpoint,
    write_description,
)
from adapter_probe.checkpoints.opened_peft import OpenedFinetuned, OpenedPeft, OpenedPlaced
from adapter_probe.data.packing import cut_by_tokens
from adapter_probe.data.sources import read_split
from adapter_probe.errors import CheckpointError, ModelError
from adapter_probe.models.adapters.imported import ImportedMethod
from adapter_probe.models.methods import Adapters
from adapter_probe.progress import print_message, progress_bar
from adapter_probe.replay.two_states import finished
from adapter_probe.replay.two_weights import strength_of
from adapter_probe.results.atomic import make_folder
from adapter_probe.results.fingerprints import sha256_of
from adapter_probe.spans import Span, VariantSet, choose_sites, in_model

from .outputs import assemble_results, joined
from .plan import choose_tokens_per_pass, cut_batches
from .request import AblationRequest
from .runners import model_runners, own_forward
from .switchable_model import added_parameters

_TIMED_TOKENS, _TIMED_ROUNDS = 1024, 5


@dataclass(frozen=True, eq=False)
class PruneMeasurement:
    """The outcome of removing a span; what is not described is as in what `adapter_probe.prune` returns.

    Attributes:
        seconds_before, seconds_after: medians of alternating rounds.
        results: both variants on all examples, the intact one first, as input of the statistics.
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
        span: layers, which must have adapters; None for all.

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
    for line in request.question:
        print_message(line, progress)
    with progress_bar("prune", total, "tokens", enabled=progress) as bar:
        results = _results(request, layers, bar.update)
        scores = _validation_scores(request, results)
        if isinstance(opened, OpenedPlaced):
            with TemporaryDirectory() as made:
                write_own(request, opened, layers, Path(made), scores)
                written = settle(Path(made), out, opened, opened.description.base.name, scores)
            module: nn.Module = written.model
        else:
            module = write_peft(request, opened, layers, out, items, scores)
        forwards = [own_forward(request, one, items) for one in (model.module, module)]
        seconds = _time(forwards, lambda: bar.update(n_tokens))
    counts = (added_parameters(model.module), added_parameters(module))
    strength = BY_LAYER if request.settings.by_layer else request.settings.scale
    return PruneMeasurement(span or layers, *counts, *seconds, results, strength)


def _validation_scores(request: AblationRequest, results: AblationResults) -> dict[str, float | None]:
    """The new checkpoint's score, if it is one of its task on all of the validation rows that it records."""
    task, rows = request.checkpoint.description.task, request.examples.rows
    whole = rows.fingerprint == task.fingerprints.get("validation")
    if task.about.is_language_model and rows.name == "validation" and not request.data:
        whole = len(rows) == sum(len(one.records) for one in read_split(task, rows.name))
    if metrics.about(request.metric).distance or not whole:
        return {}
    score = float(metrics.score(results.metric, results.predictions[1], results.scored_with))
    return {request.metric: None if np.isnan(score) else score}


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
    (runner,) = model_runners(request, torch.float32, 1)
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


def write_own(
    request: AblationRequest,
    opened: OpenedPlaced,
    span: Span,
    out: Path,
    scores: dict[str, float | None],
) -> None:
    """Write in this project's format.

    Args:
        span: layers of the whole model.

    Raises:
        CheckpointError: the adapters cannot be scaled in their weights, or nothing would be left.
    """
    if isinstance(opened, OpenedFinetuned):
        _write_finetuned(request, opened, span, out, scores)
        return
    description, layers = opened.description, range(span.first, span.last + 1)
    method = description.method
    assert isinstance(method, Adapters | ImportedMethod), "nothing else has adapters"
    training = description.training
    if strengths := _strengths_of(request, span):
        from adapter_probe.checkpoints.peft_rewriting import scaled_bottlenecks  # which imports PEFT

        tensors = scaled_bottlenecks(opened, strengths).tensors
        said = request.settings.strength
        done = [*training.get("scaled_layers", ()), [span.first, span.last, said]]
        described = replace(description, training={**training, "scaled_layers": done}, scores=scores)
        save_checkpoint(out, tensors, described)
        return
    before = method.skip_layers if isinstance(method, Adapters) else training.get("pruned_layers", ())
    gone = sorted({*before, *layers})
    method, tensors = opened.without(span)
    training = {**training, "pruned_layers": gone}
    save_checkpoint(out, tensors, replace(description, method=method, training=training, scores=scores))


def _write_finetuned(
    request: AblationRequest, opened: OpenedFinetuned, span: Span, out: Path, scores: dict[str, float | None]
) -> None:
    """Write a fine-tuned model with the base's tensors in some layers, or with what lies between the two.

    Raises:
        CheckpointError: no layer would differ from the base.
    """
    model, about, settings = request.model, opened.description, request.settings
    strength = settings.strength
    if not strength and not adapters_of(request, span, outside=True):
        raise CheckpointError(
            f"checkpoint {opened.folder} would differ from its base in no layer; use the base model instead"
        )
    with model.switched_off(mask_without(request, span), settings.scale):
        plain = finished(opened.model)
    done: list[Any] = [[span.first, span.last, *[strength] * bool(strength)]]
    key = "scaled_layers" if strength else "layers_of_base"
    training = {**about.training, key: [*about.training.get(key, ()), *done]}
    written = replace(about, training=training, scores=scores)
    if (opened.folder / DELTA).is_file():
        state = plain.state_dict()
        save_checkpoint(out, {name: state[name] for name in opened.tensors}, written)
        return
    make_folder(out)
    with silent_transformers():
        plain.save_pretrained(out)  # type: ignore[operator]
        opened.tokenizer.save_pretrained(out)
    if (opened.folder / DESCRIPTION).is_file():
        digest = sha256_of(out / "model.safetensors")
        write_description(out, replace(written, delta_sha256=digest, versions=library_versions()))


def write_peft(
    request: AblationRequest,
    opened: OpenedPeft,
    span: Span,
    out: Path,
    items: np.ndarray,
    scores: Mapping[str, float | None],
) -> nn.Module:
    """Write in PEFT's format what gives, loaded by PEFT, the outputs of the model with the span off.

    Without any adapters left, a folder of transformers is written.

    Args:
        span: layers of the whole model.
        items: examples whose outputs are compared.
        scores: of the new checkpoint, by metric.

    Returns:
        the new model.

    Raises:
        CheckpointError: PEFT's format cannot express it.
    """
    from adapter_probe.checkpoints.peft_rewriting import (
        open_without,
        write_scaled,
        write_truncated,
        write_without,
    )
    from adapter_probe.replay.checking import coarsest, compare

    model, gone, strengths = request.model, adapters_of(request, span), _strengths_of(request, span)
    rank = request.settings.rank

    def write(place: Path) -> None:
        if rank:
            write_truncated(opened, gone, rank, place)
        elif strengths:
            write_scaled(opened, strengths, place)
        else:
            write_without(opened, gone, place)

    with TemporaryDirectory() as trial:  # nothing is left in `out` if it fails
        try:
            write(Path(trial))
            smaller, found = open_without(opened, Path(trial), request.device)
            with model.switched_off(mask_without(request, span), request.settings.scale, rank):
                own = own_forward(request, model.module, items)()
            # Factors of quantised weights may be rounded to bfloat16, which makes small differences large.
            rounds = opened.quantised and (rank or strengths)
            precision = torch.bfloat16 if rounds else coarsest(smaller)
            compare(own_forward(request, smaller, items)(), own, precision)
        except (CheckpointError, ModelError) as error:
            said = str(error).replace(trial, "the smaller checkpoint")
            raise CheckpointError(
                f"checkpoint {opened.folder} cannot be pruned in PEFT's format: {said}"
            ) from error
    write(out)
    keep_files(opened, out)
    if found is not None:
        keep_record(out, found, opened.folder, opened.description, scores)
    return smaller


def _strengths_of(request: AblationRequest, span: Span) -> dict[nn.Module, float]:
    """What the change of each of a span's adapters is multiplied by; empty where they are removed."""
    settings = request.settings
    if not settings.strength:
        return {}
    return {module: strength_of(module, settings.scale) for module in adapters_of(request, span)}


def adapters_of(request: AblationRequest, span: Span, outside: bool = False) -> set[nn.Module]:
    """The modules of a span's adapters at the settings' sites, or all other ones."""
    found: set[nn.Module] = set()
    for modules, on in zip(request.model.site_modules, mask_without(request, span)):
        if on == outside:
            found.update(modules)
    return found


def adapted_layers(request: AblationRequest) -> np.ndarray:
    """Bool ``[layers]``: which layers have adapters at the settings' sites."""
    model = request.model
    has_adapter = model.has_adapter.reshape(len(model.layers), len(model.sites))
    return np.asarray(has_adapter[:, choose_sites(request.settings.sites, model.sites)].any(axis=1))


def mask_without(request: AblationRequest, span: Span) -> np.ndarray:
    """Bool ``[sites]`` with the span off, at the settings' sites."""
    model = request.model
    mask = np.ones((len(model.layers), len(model.sites)), dtype=bool)
    mask[span.first : span.last + 1, choose_sites(request.settings.sites, model.sites)] = False
    return mask.reshape(-1)
