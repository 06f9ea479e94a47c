"""Write the difference of a fine-tuned model to its base as a LoRA of PEFT, by singular values."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from adapter_probe.errors import CheckpointError
from adapter_probe.models.adapters.imported import InnerSpec
from adapter_probe.replay.singular import of_matrix, wide
from adapter_probe.replay.switches import Switches
from adapter_probe.replay.two_states import TwoStates, finished

from .files import refuse_full
from .opened_peft import OWN, OpenedFinetuned
from .peft_writing import write_peft


def to_lora(opened: OpenedFinetuned, rank: int, out: Path, strength: float | None = None) -> str:
    """Write a folder that PEFT loads on the base.

    Linear maps in the layers become a LoRA of their difference's largest singular values; everything else
    that differs is saved as a whole.

    Args:
        opened: the fine-tuned model.
        rank: the largest rank of a map.
        out: the new folder.
        strength: what the difference in the layers is multiplied by; None for 1.

    Returns:
        what the rank leaves out, by the Frobenius norm.

    Raises:
        CheckpointError: `out` contains a checkpoint, or PEFT's format cannot express the rest.
        ResultsError: the folder cannot be written.
    """
    refuse_full(out)
    model, about = opened.model, opened.description
    switched = Switches().inside(model)
    if strength is not None:
        for module in switched.values():
            Switches(strength).set(module, False)
    state = dict(finished(model).state_dict(keep_vars=True))
    maps = {name: m for name, m in switched.items() if is_map(m) and "weight" in m.changed()}  # type: ignore[operator]
    biases, specs, tensors, errors = any("bias" in m.changed() for m in maps.values()), [], {}, {}  # type: ignore[operator]
    for name, module in maps.items():
        delta = {one: wide(state[f"{name}.{one}"]) - wide(t) for one, t in module.other().items()}  # type: ignore[operator]
        weight = delta["weight"].T if isinstance(module, Conv1D) else delta["weight"]
        found = of_matrix(weight)
        b, a = (one.float() for one in found.factors(rank))
        tensors |= {f"{name}{OWN}down.weight": a[:rank], f"{name}{OWN}up.weight": b[:, :rank]}
        if biases:
            tensors[f"{name}{OWN}up.bias"] = delta.get("bias", weight.new_zeros(len(weight))).float()
        specs.append(InnerSpec(name, "low_rank", rank=len(a[:rank]), bias=biases))
        errors[name] = float(found.values[rank:].norm()), float(weight.norm())
    if not specs:
        raise CheckpointError(f"checkpoint {opened.folder} differs from its base in no linear map of a layer")
    assert opened.difference is not None, "it is a fine-tuned model"
    different = opened.difference
    for name in (*different.inside, *different.outside, *different.lacking):
        holder = name.rpartition(".")[0]
        if holder not in maps:
            _refuse_holder(opened, name, holder, maps)
            own = [one for one, _ in _plain(opened, holder)]
            tensors |= {f"{holder}.{one}": state[f"{holder}.{one}"].detach() for one in own}
    with torch.device("meta"):
        plain = type(finished(model))(copy.deepcopy(model.config))
    base = about.base
    write_peft(out, specs, tensors, plain, opened.layer_names, opened.head, base.name, base.revision)
    return _said(errors)


def is_map(module: nn.Module) -> bool:
    """Whether PEFT can add a low-rank change to a module that is held with two states."""
    return isinstance(module, TwoStates) and isinstance(module, nn.Linear | Conv1D)


def _plain(opened: OpenedFinetuned, holder: str) -> list[tuple[str, Tensor]]:
    """The parameters of a module itself."""
    module = opened.model.get_submodule(holder)
    return list(module.named_parameters(recurse=False, remove_duplicate=False))


def _refuse_holder(opened: OpenedFinetuned, name: str, holder: str, maps: Collection[str]) -> None:
    """Refuse a tensor that belongs to a module with other modules in it, which PEFT saves as a whole."""
    if any(one.startswith(f"{holder}.") for one in maps):
        raise CheckpointError(
            f"checkpoint {opened.folder} cannot be written in PEFT's format: {name} differs from the base, "
            "and its module holds linear maps with a LoRA"
        )


def _said(errors: dict[str, tuple[float, float]]) -> str:
    """The relative errors as text."""
    left_out, whole = (math.hypot(*column) for column in zip(*errors.values()))
    shares = {name: error / norm if norm else 0.0 for name, (error, norm) in errors.items()}
    worst = max(shares, key=lambda name: shares[name])
    return (
        f"{left_out / whole:.3g} of the linear maps' difference, by the Frobenius norm (most in {worst}: "
        f"{shares[worst]:.3g} of its difference)"
    )
