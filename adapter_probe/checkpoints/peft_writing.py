"""Write PEFT's format: LoRA and (IA)^3 of AdapterHub, and the difference of a fine-tuned model as a LoRA."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from adapter_probe.errors import CheckpointError
from adapter_probe.models.adapters.imported import ImportedMethod, InnerSpec
from adapter_probe.replay.directions import of_matrix, wide
from adapter_probe.replay.switches import Switches
from adapter_probe.replay.two_states import TwoStates, finished

from .adapter_folder import PREFIX, write_adapter
from .model_class import HEAD_MODULES, HEADS, Head, without_weights
from .opened_peft import OWN, OpenedFinetuned, OpenedPlaced

WRITABLE = "LoRA or (IA)³, one of them at a time"
_TYPES = {"low_rank": "LORA", "scale_input": "IA3", "scale_output": "IA3"}
TASK_TYPES: dict[Head, str] = {head: name for name, head in HEADS.items()}
TASK_TYPES |= dict.fromkeys(("regression", "multilabel"), "SEQ_CLS")


def to_peft(opened: OpenedPlaced, out: Path) -> None:
    """Write adapters of one of PEFT's types into a folder that PEFT loads."""
    _write(out, opened, _writable_specs(opened.description.method), opened.tensors)


def _write(
    out: Path, opened: OpenedPlaced, specs: Sequence[InnerSpec], tensors: Mapping[str, Tensor]
) -> None:
    """Write all tensors that differ from the base, by their names in this project's model, as PEFT does."""
    base: Any = without_weights(type(finished(opened.model)), opened.model.config)
    modules = dict(base.named_modules())
    changed = {spec.module for spec in specs}
    tensors = _head(finished(opened.model), opened.head, changed) | dict(tensors)
    place = opened.description.base
    document = {
        "peft_type": _TYPES[specs[0].kind],
        "task_type": TASK_TYPES[opened.head],
        "base_model_name_or_path": place.name,
        "revision": place.revision,
        "inference_mode": True,
        "modules_to_save": _whole(tensors, changed, base) or None,
        **_targets(specs, base, tuple(dict.fromkeys(opened.layer_names))),
    }
    document["fan_in_fan_out"] = type(modules[specs[0].module]).__name__ == "Conv1D"
    if document["peft_type"] == "LORA":
        whole = tuple(f"{name}." for name in document["modules_to_save"] or ())
        others = [key for key in tensors if ".adapter." not in key and not key.startswith(whole)]
        # PEFT's scale is alpha / r.
        alphas = {spec.module: whole_number(spec.scale * spec.rank) for spec in specs}
        document |= ranks_and_alphas({spec.module: spec.rank for spec in specs}, alphas)
        document |= {"lora_dropout": 0.0, "use_rslora": False, "bias": "all" if others else "none"}
        document |= {"lora_bias": True} if any(spec.bias for spec in specs) else {}
        document["init_lora_weights"] = True
    if document["peft_type"] == "IA3":
        reading = [spec.module for spec in specs if spec.scales_input]
        if reading:  # PEFT expects it among the others
            document["target_modules"] = sorted(changed)
        document["feedforward_modules"] = reading
    theirs = {}
    for spec in specs:
        theirs |= _tensors_of(spec, tensors)
    for key, tensor in tensors.items():
        module, _, parameter = key.rpartition(".")
        if ".adapter." not in key:
            theirs[f"{module}.base_layer.{parameter}" if module in changed else key] = tensor
    own = opened.tokenizer if opened.own_tokenizer else None
    write_adapter(out, {f"{PREFIX}{key}": tensor.clone() for key, tensor in theirs.items()}, document, own)


def _head(model: nn.Module, head: Head, changed: set[str]) -> dict[str, Tensor]:
    """The tensors of a head that PEFT looks up in the file, whether it differs from the base's or not."""
    if TASK_TYPES[head] not in ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS"):
        return {}
    own = {name for name, _ in model.named_children() if name in HEAD_MODULES}
    own -= {name.partition(".")[0] for name in changed}
    return {n: t.detach() for n, t in model.state_dict().items() if n.partition(".")[0] in own}


def _writable_specs(method: object) -> tuple[InnerSpec, ...]:
    """The adapters, if all are of the same PEFT type."""
    can = f"PEFT's format can represent {WRITABLE}"
    if not isinstance(method, ImportedMethod):
        raise CheckpointError(f"{can}, not the method {getattr(method, 'name', method)}")
    kinds = {_TYPES.get(spec.kind) for spec in method.inner}
    if method.bottlenecks or method.head is not None or len(kinds) != 1 or None in kinds:
        held = " and ".join(method.kinds) if method.inner or method.bottlenecks else "no adapters at all"
        own = " with a library-specific head" if method.head is not None else ""
        raise CheckpointError(f"{can}, not {held}{own}")
    return method.inner


def _whole(tensors: Iterable[str], changed: set[str], base: PreTrainedModel) -> list[str]:
    """Names of the fully trained modules: heads by their short name, others by the full one."""
    names, held = set(), set(tensors)
    for key in held:
        module = key.rpartition(".")[0]
        if ".adapter." in key or module in changed:
            continue
        top = module.partition(".")[0]
        apart = base.base_model is not base and top != base.base_model_prefix
        if apart and not any(one.startswith(f"{top}.") for one in changed):
            names.add(top)
        elif {f"{module}.{own}" for own, _ in base.get_submodule(module).named_parameters()} <= held:
            names.add(module)
    return sorted(names)


def _targets(specs: Sequence[InnerSpec], base: PreTrainedModel, layers: Sequence[str]) -> dict[str, Any]:
    """The modules with adapters, by name endings and layers if possible, else by full names."""
    from peft import LoraConfig  # which takes seconds
    from peft.tuners.tuners_utils import check_target_module_exists

    wanted = {spec.module for spec in specs}
    places = [
        (n, m.removeprefix(f"{layer}."))
        for m in wanted
        for n, layer in enumerate(layers)
        if m.startswith(f"{layer}.")
    ]
    kept = sorted({number for number, _ in places})
    short: dict[str, Any] = {"target_modules": sorted({end for _, end in places}), "exclude_modules": None}
    if _TYPES[specs[0].kind] == "LORA":
        short["layers_to_transform"] = kept if len(kept) < len(layers) else None
    chosen = LoraConfig(**short)
    if {name for name, _ in base.named_modules() if check_target_module_exists(chosen, name)} == wanted:
        return short
    return {"target_modules": sorted(wanted), "exclude_modules": None}


def whole_number(value: float) -> float:
    """Undo the rounding of a division, so that alpha equals its original value."""
    return round(value) if abs(value - round(value)) < 1e-9 * max(1.0, abs(value)) else value


def ranks_and_alphas(ranks: Mapping[str, int], alphas: Mapping[str, float]) -> dict[str, Any]:
    """Fields of a LoRA with ranks and alphas by module: the most frequent ones, and patterns of others."""
    rank, alpha = (Counter(found.values()).most_common(1)[0][0] for found in (ranks, alphas))
    fields: dict[str, Any] = {"r": rank, "lora_alpha": alpha}
    for name, found, usual in (("rank_pattern", ranks, rank), ("alpha_pattern", alphas, alpha)):
        others = {module: value for module, value in found.items() if value != usual}
        fields[name] = {f"^{re.escape(module)}": value for module, value in others.items()}
    return fields


def _tensors_of(spec: InnerSpec, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    own = f"{spec.module}.adapter."
    parts = {key.removeprefix(own): tensor for key, tensor in tensors.items() if key.startswith(own)}
    if not spec.is_factor:
        names = {"down.weight": "lora_A.weight", "up.weight": "lora_B.weight", "up.bias": "lora_B.bias"}
        return {f"{spec.module}.{names[part]}": tensor for part, tensor in parts.items()}
    factor = parts["factor"] * spec.scale
    return {f"{spec.module}.ia3_l": factor[None] if spec.scales_input else factor[:, None]}


def to_lora(opened: OpenedFinetuned, rank: int, out: Path, strength: float | None = None) -> str:
    """Write a folder that PEFT loads on the base.

    Linear maps in the layers become a LoRA of their difference's largest singular values; everything else
    that differs is saved as a whole.

    Args:
        rank: the largest rank of a map.
        strength: what the difference in the layers is multiplied by; None for 1.

    Returns:
        what the rank leaves out, by the Frobenius norm.

    Raises:
        CheckpointError: PEFT's format cannot express the rest.
    """
    model = opened.model
    switched = Switches().inside(model)
    if strength is not None:
        for module in switched.values():
            Switches(strength).set(module, False)
    state = dict(finished(model).state_dict(keep_vars=True))
    held = {name: module for name, module in switched.items() if isinstance(module, TwoStates)}
    linear = {name: module for name, module in held.items() if isinstance(module, nn.Linear | Conv1D)}
    maps = {name: module for name, module in linear.items() if "weight" in module.changed()}
    biases, specs, tensors, errors = any("bias" in m.changed() for m in maps.values()), [], {}, {}
    for name, module in maps.items():
        made, errors[name] = _low_rank(name, module, state, rank, biases)
        specs.append(InnerSpec(name, "low_rank", rank=len(made[f"{name}{OWN}down.weight"]), bias=biases))
        tensors |= made
    if not specs:
        raise CheckpointError(f"checkpoint {opened.folder} differs from its base in no linear map of a layer")
    different = opened.difference
    for name in (*different.inside, *different.outside, *different.lacking):
        holder = name.rpartition(".")[0]
        if holder in maps:
            continue
        if any(one.startswith(f"{holder}.") for one in maps):  # PEFT saves a module as a whole
            raise CheckpointError(
                f"checkpoint {opened.folder} cannot be written in PEFT's format: {name} differs from the "
                "base, and its module holds linear maps with a LoRA"
            )
        parameters = model.get_submodule(holder).named_parameters(recurse=False, remove_duplicate=False)
        tensors |= {f"{holder}.{own}": state[f"{holder}.{own}"].detach() for own, _ in parameters}
    _write(out, opened, specs, tensors)
    left_out, whole = (math.hypot(*column) for column in zip(*errors.values()))
    shares = {name: error / norm if norm else 0.0 for name, (error, norm) in errors.items()}
    worst = max(shares, key=lambda name: shares[name])
    return (
        f"{left_out / whole:.3g} of the linear maps' difference, by the Frobenius norm (most in {worst}: "
        f"{shares[worst]:.3g} of its difference)"
    )


def _low_rank(
    name: str, module: TwoStates, state: Mapping[str, Tensor], rank: int, biases: bool
) -> tuple[dict[str, Tensor], tuple[float, float]]:
    """The tensors of a map's LoRA, and the norms of what it leaves out and of the whole difference."""
    delta = {one: wide(state[f"{name}.{one}"]) - wide(t) for one, t in module.other().items()}
    weight = delta["weight"].T if isinstance(module, Conv1D) else delta["weight"]
    found = of_matrix(weight)
    b, a = (one.float() for one in found.factors(rank))
    made = {f"{name}{OWN}down.weight": a[:rank], f"{name}{OWN}up.weight": b[:, :rank]}
    if biases:
        made[f"{name}{OWN}up.bias"] = delta.get("bias", weight.new_zeros(len(weight))).float()
    return made, (float(found.values[rank:].norm()), float(weight.norm()))
