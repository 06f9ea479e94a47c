"""Write a checkpoint without a span's adapters or, if the settings say so, with them scaled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from torch import nn

from adapter_probe.checkpoints.native import save_checkpoint
from adapter_probe.checkpoints.opened_peft import OpenedPeft, OpenedPlaced
from adapter_probe.errors import CheckpointError, ModelError
from adapter_probe.models.adapters.imported import ImportedMethod
from adapter_probe.models.methods import Adapters
from adapter_probe.spans import SITES_PER_LAYER, Span

from .general import own_forward
from .general_model import GeneralModel
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
    description, layers = opened.description, range(span.first, span.last + 1)
    method, adapters = description.method, adapters_of(request.model, span)
    assert isinstance(method, Adapters | ImportedMethod), "nothing else has adapters"
    tensors = dict(opened.tensors)
    chosen = {name for name in tensors if opened.is_inside(name, span)}
    training = description.training
    if strength := request.settings.strength:
        from adapter_probe.checkpoints.scaling import scaled_bottlenecks  # which imports PEFT

        tensors = scaled_bottlenecks(tensors, chosen, adapters, strength)
        done = [*training.get("scaled_layers", ()), [span.first, span.last, strength]]
        described = replace(description, training={**training, "scaled_layers": done}, scores=scores)
        save_checkpoint(out, tensors, described)
        return
    before = method.skip_layers if isinstance(method, Adapters) else training.get("pruned_layers", ())
    gone = sorted({*before, *layers})
    method, tensors = opened.without(span)
    training = {**training, "pruned_layers": gone}
    save_checkpoint(out, tensors, replace(description, method=method, training=training, scores=scores))


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
    from adapter_probe.checkpoints.peft_pruning import load_without, write_without
    from adapter_probe.checkpoints.scaling import write_scaled
    from adapter_probe.replay.checking import coarsest, compare

    model, gone, strength = request.model, adapters_of(request.model, span), request.settings.strength

    def write(place: Path) -> None:
        if strength:
            write_scaled(opened, gone, strength, place)
        else:
            write_without(opened, gone, place)

    with TemporaryDirectory() as trial:  # nothing is left in `out` if it fails
        try:
            write(Path(trial))
            smaller = load_without(opened, Path(trial))
            with model.switched_off(mask_without(model, span), strength):
                own = own_forward(request, model.module, items)()
            compare(own_forward(request, smaller, items)(), own, coarsest(smaller))
        except (CheckpointError, ModelError) as error:
            said = str(error).replace(trial, "the smaller checkpoint")
            raise CheckpointError(
                f"checkpoint {opened.folder} cannot be pruned in PEFT's format: {said}"
            ) from error
    write(out)
    return smaller


def adapters_of(model: GeneralModel, span: Span, outside: bool = False) -> set[nn.Module]:
    """The modules of a span's adapters, or of those outside it."""
    found: set[nn.Module] = set()
    for site, modules in enumerate(model.site_modules):
        if (span.first <= site // SITES_PER_LAYER <= span.last) != outside:
            found.update(modules)
    return found


def mask_without(model: GeneralModel, span: Span) -> np.ndarray:
    """Bool ``[sites]`` with the span off."""
    mask = np.ones(SITES_PER_LAYER * len(model.layers), dtype=bool)
    mask[SITES_PER_LAYER * span.first : SITES_PER_LAYER * (span.last + 1)] = False
    return mask
