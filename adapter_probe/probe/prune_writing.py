"""Write a checkpoint without a span's adapters or, if the settings say so, with them scaled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from torch import nn

from adapter_probe.checkpoints.base_config import silent_transformers
from adapter_probe.checkpoints.files import DELTA, DESCRIPTION
from adapter_probe.checkpoints.native import library_versions, save_checkpoint, write_description
from adapter_probe.checkpoints.opened_peft import OpenedFinetuned, OpenedPeft, OpenedPlaced
from adapter_probe.errors import CheckpointError, ModelError
from adapter_probe.models.adapters.imported import ImportedMethod
from adapter_probe.models.methods import Adapters
from adapter_probe.replay.two_states import finished
from adapter_probe.replay.two_weights import strength_of
from adapter_probe.results.atomic import make_folder
from adapter_probe.results.fingerprints import sha256_of
from adapter_probe.spans import Span, choose_sites

from .general import own_forward
from .request import AblationRequest


def write_own(
    request: AblationRequest,
    opened: OpenedPlaced,
    span: Span,
    out: Path,
    scores: dict[str, float | None],
) -> None:
    """Write in this project's format.

    Args:
        request: what was asked for.
        opened: its checkpoint.
        span: layers of the whole model.
        out: the new checkpoint's folder.
        scores: the new model's scores, by metric.

    Raises:
        CheckpointError: the adapters cannot be scaled in their weights, or nothing would be left.
    """
    if isinstance(opened, OpenedFinetuned):
        _write_finetuned(request, opened, span, out, scores)
        return
    description, layers = opened.description, range(span.first, span.last + 1)
    method = description.method
    assert isinstance(method, Adapters | ImportedMethod), "nothing else has adapters"
    tensors = dict(opened.tensors)
    training = description.training
    if strengths := _strengths_of(request, span):
        from adapter_probe.checkpoints.peft_rewriting import scaled_bottlenecks  # which imports PEFT

        tensors = dict(scaled_bottlenecks(opened, strengths).tensors)
        said = request.settings.strength or str(request.settings.strengths_by_layer)
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
    strength = settings.strength or str(settings.strengths_by_layer)
    if not strength and not adapters_of(request, span, outside=True):
        raise CheckpointError(
            f"checkpoint {opened.folder} would differ from its base in no layer; use the base model instead"
        )
    with model.switched_off(mask_without(request, span), settings.strength):
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
    request: AblationRequest, opened: OpenedPeft, span: Span, out: Path, items: np.ndarray
) -> nn.Module:
    """Write in PEFT's format what gives, loaded by PEFT, the outputs of the model with the span off.

    Without any adapters left, a folder of transformers is written.

    Args:
        request: what was asked for.
        opened: its checkpoint.
        span: layers of the whole model.
        out: the new checkpoint's folder.
        items: examples whose outputs are compared.

    Returns:
        the new model.

    Raises:
        CheckpointError: PEFT's format cannot express it.
    """
    from adapter_probe.checkpoints.peft_rewriting import (
        load_without,
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
            smaller = load_without(opened, Path(trial))
            with model.switched_off(mask_without(request, span), request.settings.strength, rank):
                own = own_forward(request, model.module, items)()
            compare(own_forward(request, smaller, items)(), own, coarsest(smaller))
        except (CheckpointError, ModelError) as error:
            said = str(error).replace(trial, "the smaller checkpoint")
            raise CheckpointError(
                f"checkpoint {opened.folder} cannot be pruned in PEFT's format: {said}"
            ) from error
    write(out)
    return smaller


def _strengths_of(request: AblationRequest, span: Span) -> dict[nn.Module, float]:
    """What the change of each of a span's adapters is multiplied by; empty where they are removed."""
    settings = request.settings
    if not (settings.strength or settings.strengths_by_layer):
        return {}
    return {module: strength_of(module, settings.strength) for module in adapters_of(request, span)}


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
