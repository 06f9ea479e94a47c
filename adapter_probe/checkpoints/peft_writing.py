"""Write LoRA and (IA)^3 of AdapterHub in PEFT's format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor
from transformers import PreTrainedModel

from adapter_probe.errors import CheckpointError
from adapter_probe.models.adapters.imported import ImportedMethod, InnerSpec
from adapter_probe.results.atomic import make_folder, write_bytes, write_json

from .adapter_folder import WEIGHTS
from .files import CONFIG
from .kinds import Head

WRITABLE = {"PEFT": "LoRA or (IA)³, one of them at a time", "MLX-LM": "LoRA and DoRA of language models"}
_TYPES = {"low_rank": "LORA", "scale_input": "IA3", "scale_output": "IA3"}
TASK_TYPES: dict[Head, str] = {
    "classification": "SEQ_CLS",
    "regression": "SEQ_CLS",
    "multilabel": "SEQ_CLS",
    "tokens": "TOKEN_CLS",
    "extractive": "QUESTION_ANS",
    "causal": "CAUSAL_LM",
    "seq2seq": "SEQ_2_SEQ_LM",
    "features": "FEATURE_EXTRACTION",
}
_PREFIX = "base_model.model."


def write_peft(
    out: Path,
    specs: Sequence[InnerSpec],
    tensors: Mapping[str, Tensor],
    base: PreTrainedModel,
    layers: Sequence[str],
    kind: Head,
    name: str,
    revision: str | None = None,
) -> None:
    """Write a folder that `peft.PeftModel.from_pretrained` loads.

    Args:
        out: output folder; the configuration, which makes it a checkpoint, is written last.
        specs: the adapters, see `writable_specs`.
        tensors: all tensors that differ from the base, by their names in this project's model.
        base: the model, for the names and kinds of its modules.
        layers: names of the layers' modules in it, bottom first.
        kind: what the model computes.
        name: folder or hub id of the base, as PEFT should find it.
        revision: revision of the base on the hub.

    Raises:
        ResultsError: the folder cannot be written.
    """
    modules = dict(base.named_modules())
    changed = {spec.module for spec in specs}
    document = {
        "peft_type": _TYPES[specs[0].kind],
        "task_type": TASK_TYPES[kind],
        "base_model_name_or_path": name,
        "revision": revision,
        "inference_mode": True,
        "modules_to_save": _whole(tensors, changed, base) or None,
        **_targets(specs, base, layers),
    }
    document["fan_in_fan_out"] = type(modules[specs[0].module]).__name__ == "Conv1D"
    if document["peft_type"] == "LORA":
        whole = tuple(f"{name}." for name in document["modules_to_save"] or ())
        others = [key for key in tensors if ".adapter." not in key and not key.startswith(whole)]
        document |= _lora_settings(specs, biases=bool(others))
    if document["peft_type"] == "IA3":
        reading = [spec.module for spec in specs if spec.kind == "scale_input"]
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
    plain = {f"{_PREFIX}{key}": tensor.detach().cpu().contiguous().clone() for key, tensor in theirs.items()}
    make_folder(out)
    write_bytes(out / WEIGHTS[0], safetensors.torch.save(plain, metadata={"format": "pt"}))
    write_json(out / CONFIG, document)


def writable_specs(method: object, library: str = "PEFT") -> tuple[InnerSpec, ...]:
    """The adapters, if all are of the same PEFT type.

    Raises:
        CheckpointError: the types differ or are unknown to PEFT, or there are no adapters.
    """
    can = f"{library}'s format can represent {WRITABLE[library]}"
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
        if top != base.base_model_prefix and not any(one.startswith(f"{top}.") for one in changed):
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


def _lora_settings(specs: Sequence[InnerSpec], biases: bool) -> dict[str, Any]:
    """Ranks and scales; PEFT's scale is alpha / r, so that alpha is the scale times the rank."""
    alphas = {spec.module: whole_number(spec.scale * spec.rank) for spec in specs}
    rank = Counter(spec.rank for spec in specs).most_common(1)[0][0]
    alpha = Counter(alphas.values()).most_common(1)[0][0]
    return {
        "r": rank,
        "lora_alpha": alpha,
        "rank_pattern": {pattern_of(spec.module): spec.rank for spec in specs if spec.rank != rank},
        "alpha_pattern": {pattern_of(name): value for name, value in alphas.items() if value != alpha},
        "lora_dropout": 0.0,
        "use_rslora": False,
        "bias": "all" if biases else "none",
        **({"lora_bias": True} if any(spec.bias for spec in specs) else {}),
        "init_lora_weights": True,
    }


def whole_number(value: float) -> float:
    """Undo the rounding of a division, so that alpha equals its original value."""
    return round(value) if abs(value - round(value)) < 1e-9 * max(1.0, abs(value)) else value


def pattern_of(module: str) -> str:
    """The pattern of PEFT that one module alone matches."""
    return "^" + module.replace(".", r"\.")


def _tensors_of(spec: InnerSpec, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    own = f"{spec.module}.adapter."
    parts = {key.removeprefix(own): tensor for key, tensor in tensors.items() if key.startswith(own)}
    if spec.kind == "low_rank":
        names = {"down.weight": "lora_A.weight", "up.weight": "lora_B.weight", "up.bias": "lora_B.bias"}
        return {f"{spec.module}.{names[part]}": tensor for part, tensor in parts.items()}
    factor = parts["factor"] * spec.scale
    return {f"{spec.module}.ia3_l": factor[None] if spec.kind == "scale_input" else factor[:, None]}
