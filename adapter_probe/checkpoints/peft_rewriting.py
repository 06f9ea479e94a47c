"""Write a changed checkpoint of PEFT: without some adapters, with less of their rank, or scaled."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from torch import Tensor, nn

from adapter_probe.errors import CheckpointError, one_line
from adapter_probe.models.adapters.bottleneck import Bottleneck, ConfiguredBottleneck
from adapter_probe.replay.directions import of_product, rank_of
from adapter_probe.replay.sharing import sharing
from adapter_probe.replay.stacks import find_layers, layer_strengths
from adapter_probe.replay.switches import Switches
from adapter_probe.results.atomic import make_folder

from .adapter_folder import PREFIX, read_adapter, write_adapter
from .base import load_any_base
from .files import CONFIG, DESCRIPTION, read_json_file
from .native import Description, names_of_outputs
from .opened_peft import OpenedPeft, OpenedPlaced
from .peft_loading import ADAPTER
from .peft_opening import open_with_peft
from .peft_writing import ranks_and_alphas, whole_number

# Fields by which PEFT chooses modules; the list of those that are left takes their place.
_CHOICES = ("layers_to_transform", "layers_pattern", "exclude_modules")
# The two factors of a LoRA, and the one factor of each tuner's change that is multiplied, by the type.
_PAIRS = (("lora_A.weight", "lora_B.weight"), ("lora_embedding_A", "lora_embedding_B"))
_FACTORS = {
    "LORA": ("lora_B.weight", "lora_B.bias", "lora_embedding_B", "lora_B"),
    "ADALORA": ("lora_E",),
    "VERA": ("vera_lambda_b",),
    "LOHA": ("hada_w1_a",),
    "LOKR": ("lokr_w1", "lokr_w1_a"),
    "FOURIERFT": ("fourierft_spectrum",),
}
_UP = ("up.weight", "up.bias")


def write_without(opened: OpenedPeft, gone: Collection[nn.Module], out: Path) -> None:
    """Write a folder that PEFT loads, without the adapters of some modules.

    The configuration keeps all its fields but the choice of modules, which becomes a list of full names, and
    of trained biases, all of which are written then. PEFT's format requires adapters: without any, the model
    itself is written, as transformers loads it.

    Raises:
        CheckpointError: the base cannot be written without adapters.
    """
    document = read_json_file(opened.folder / CONFIG)
    left, removed = {}, []
    for name, module in switched_modules(opened.model.get_base_model()):
        if module in gone:
            removed.append(f"{PREFIX}{name}.")
        else:
            left[name] = module
    if not any(isinstance(module, BaseTunerLayer) for module in left.values()):
        _write_plain(opened, gone, out)
        return
    kept = {n: t for n, t in read_adapter(opened.folder)[0].items() if not n.startswith(tuple(removed))}
    if gone and document.get("bias", "none") != "none":
        document["bias"] = "all"
        kept = _biases(opened.model, tuple(removed)) | kept
    _write(opened, out, kept, {**document, **(_choice(document, left) if gone else {})})


def _write(opened: OpenedPeft, out: Path, tensors: Mapping[str, Tensor], document: Mapping[str, Any]) -> None:
    write_adapter(out, tensors, document, opened.tokenizer if opened.own_tokenizer else None)


def _biases(model: nn.Module, removed: tuple[str, ...]) -> dict[str, Tensor]:
    """All biases, by the names under which PEFT saves them where some modules have no adapter any more."""
    found = {}
    for key, tensor in model.state_dict().items():
        if "bias" in key and "lora_" not in key:
            name = key.replace(f".{ADAPTER}.", ".")
            name = name.replace(".base_layer.", ".") if name.startswith(removed) else name
            found[name] = tensor.contiguous()
    return found


def _write_plain(opened: OpenedPeft, gone: Collection[nn.Module], out: Path) -> None:
    """Write the model without any tuner, with what was trained as a whole."""
    names = {name for name, module in opened.model.get_base_model().named_modules() if module in gone}
    model = sharing(opened.model)
    base = model.get_base_model()
    for name, module in list(base.named_modules()):
        if name in names and isinstance(module, AuxiliaryTrainingWrapper):
            base.set_submodule(name, module.original_module)
    try:
        plain = model.base_model.unload()
        if labels := _labels_of(opened, plain.config.id2label):
            plain.config.id2label = dict(enumerate(labels))
            plain.config.label2id = {name: number for number, name in enumerate(labels)}
        make_folder(out)
        plain.save_pretrained(out)
        opened.tokenizer.save_pretrained(out)
    except (NotImplementedError, ValueError, RuntimeError, AttributeError, TypeError) as error:
        raise CheckpointError(
            f"checkpoint {opened.folder} would have no adapters left, and its base cannot be written without "
            f"them: {one_line(error)}"
        ) from error


def _labels_of(opened: OpenedPeft, of_base: Mapping[int, str]) -> tuple[str, ...]:
    """The names of the classes: the record's, or those beside the checkpoint, the base's, or the data's."""
    own = opened.description.task.label_names
    if (opened.folder / DESCRIPTION).is_file():
        return own
    named = {"id2label": {str(number): name for number, name in of_base.items()}}
    found = names_of_outputs(len(own), opened.folder / "config.json", named)
    return found if any(not name.isdigit() for name in found) else own


def open_without(
    opened: OpenedPeft, folder: Path, device: torch.device
) -> tuple[nn.Module, Description | None]:
    """The model that `write_without` has written, and its description if it is a checkpoint of PEFT."""
    if (folder / CONFIG).is_file():
        load = partial(load_any_base, dequantise=opened.dequantised, device=device)
        found = open_with_peft(folder, opened.description.base.name, load=load, in_layers=False)
        return found.model, found.description
    cls = type(opened.model.get_base_model())
    return cls.from_pretrained(folder, dtype=opened.model.dtype).eval().requires_grad_(False), None


def switched_modules(base: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules with an adapter, outermost of what is trained as a whole, by their names in the base."""
    whole: tuple[str, ...] = ()
    for name, module in base.named_modules():
        if name.startswith(whole) and whole:
            continue
        if isinstance(module, AuxiliaryTrainingWrapper):
            whole += (f"{name}.",)
        if isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper):
            yield name, module


def _choice(document: Mapping[str, Any], left: Mapping[str, nn.Module]) -> dict[str, Any]:
    """The fields of a configuration that choose modules, for the modules that are left."""
    tuners = {name: module for name, module in left.items() if isinstance(module, BaseTunerLayer)}
    parameters = {name: getattr(module, "parameter_name", None) for name, module in tuners.items()}
    fields: dict[str, Any] = dict.fromkeys(field for field in _CHOICES if field in document)
    fields["target_modules"] = sorted(name for name, parameter in parameters.items() if parameter is None)
    if document.get("target_parameters"):
        fields["target_parameters"] = sorted(
            f"{name.removesuffix('.base_layer')}.{parameter}"
            for name, parameter in parameters.items()
            if parameter is not None
        )
    if document.get("feedforward_modules"):
        fields["feedforward_modules"] = sorted(
            name for name, module in tuners.items() if getattr(module, "is_feedforward", False)
        )
    if document.get("modules_to_save"):
        fields["modules_to_save"] = sorted(set(left) - set(tuners)) or None
    ranks = document.get("rank_pattern")
    if document.get("peft_type") == "ADALORA" and ranks:  # by parameters, and PEFT looks up every one
        own = tuple(f"{name}." for name in tuners)
        fields["rank_pattern"] = {name: ranks[name] for name in ranks if name.startswith(own)}
    return fields


def write_truncated(opened: OpenedPeft, modules: Collection[nn.Module], rank: int, out: Path) -> None:
    """Write a folder that PEFT loads, in which some modules keep their largest directions.

    Their factors get smaller, and the ranks and scales of all modules are written down by their names.

    Args:
        modules: modules of PEFT in its model.
        rank: how many directions each of them keeps, at most.

    Raises:
        CheckpointError: the adapter is no LoRA of single maps.
    """
    document = read_json_file(opened.folder / CONFIG)
    if document.get("peft_type") != "LORA" or document.get("target_parameters"):
        what = (
            "parameters (target_parameters)" if document.get("target_parameters") else document["peft_type"]
        )
        raise CheckpointError(
            f"checkpoint {opened.folder} cannot be written with a rank of {rank}: that is done for LoRA of "
            f"modules only, and this is of {what}"
        )
    tensors, _ = read_adapter(opened.folder)
    ranks: dict[str, int] = {}
    alphas: dict[str, float] = {}
    for name, module in switched_modules(opened.model.get_base_model()):
        if not (own := rank_of(module)):
            continue
        kept = min(own, rank) if module in modules else own
        if kept < own:
            made = _truncated(tensors, f"{PREFIX}{name}.", kept)
            kept = min(map(min, (one.shape[:2] for one in made.values())))  # of a small map, fewer
            tensors |= made
        (scale,) = module.scaling.values()  # type: ignore[union-attr, operator]
        ranks[name] = kept
        alphas[name] = whole_number(float(scale) * (math.sqrt(kept) if document.get("use_rslora") else kept))
    _write(opened, out, tensors, {**document, **ranks_and_alphas(ranks, alphas)})


def _truncated(tensors: dict[str, Tensor], prefix: str, rank: int) -> dict[str, Tensor]:
    first, second = next(names for names in _PAIRS if prefix + names[0] in tensors)
    a, b = tensors[prefix + first], tensors[prefix + second]
    new_b, new_a = of_product(b.flatten(1), a.flatten(1)).factors(rank)
    new_b, new_a = new_b[:, :rank].to(b.dtype), new_a[:rank].to(a.dtype)
    rank = len(new_a)  # a map has no more directions than its smaller side
    return {
        prefix + first: new_a.reshape(rank, *a.shape[1:]),
        prefix + second: new_b.reshape(len(b), rank, *b.shape[2:]),
    }


def scaled_bottlenecks(opened: OpenedPlaced, strengths: Mapping[nn.Module, float]) -> OpenedPlaced:
    """A checkpoint in which the last map of some bottlenecks is multiplied.

    Args:
        strengths: what the change of each scaled adapter is multiplied by.

    Raises:
        CheckpointError: the change of an adapter is not proportional to its last map.
    """
    for module, strength in strengths.items():
        own = getattr(module, "bottleneck", module)
        plain = isinstance(own, ConfiguredBottleneck) and own.only_adds and own.ln_after is None
        if not (isinstance(own, Bottleneck) or plain):
            raise CheckpointError(
                f"a checkpoint with adapters scaled by {strength:g} cannot be written: only bottlenecks "
                "whose change is added as it is, and adapters in PEFT's format, can be scaled in their "
                "weights"
            )
    modules = opened.model.named_modules()
    names = {name: strengths[module] for name, module in modules if module in strengths}
    factors = {f"{name}.{part}": strength for name, strength in names.items() for part in _UP}
    tensors = {n: factors[n] * tensor if n in factors else tensor for n, tensor in opened.tensors.items()}
    return replace(opened, tensors=tensors)


def in_layers(
    model: nn.Module, strengths: float | Sequence[float] | Mapping[str, float] = 0.0
) -> dict[nn.Module, float]:
    """The modules that an ablation switches, those in the layers, with their strengths."""
    layers = find_layers(model, Switches())
    if isinstance(strengths, (int, float)):
        return {m: float(strengths) for layer in layers for part in layer.parts for m in part}
    return layer_strengths(strengths, layers, getattr(model, "config", None))


def write_scaled(opened: OpenedPeft, strengths: Mapping[nn.Module, float], out: Path) -> None:
    """Write a folder that PEFT loads, in which what some modules change is multiplied by numbers.

    Args:
        strengths: modules of PEFT in its model, with their numbers.

    Raises:
        CheckpointError: no weights of this tuner give the scaled change.
    """
    document = read_json_file(opened.folder / CONFIG)
    tensors, _ = read_adapter(opened.folder)
    base = opened.model.get_base_model()
    names = {f"{PREFIX}{name}.": module for name, module in switched_modules(base)}
    own: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        if holders := [name for name in names if key.startswith(name)]:
            own.setdefault(max(holders, key=len), {})[key] = tensor
    for name, found in own.items():
        if (strength := strengths.get(names[name], 1.0)) != 1:
            tensors |= _scaled(opened.folder, document, names[name], name, found, strength)
    _write(opened, out, tensors, document)


def _scaled(
    folder: Path, document: Mapping[str, Any], module: Any, name: str, own: Mapping[str, Tensor], s: float
) -> dict[str, Tensor]:
    """One module's tensors with its change scaled, in at least float32."""
    kind = document.get("peft_type")
    wide = {key: t.to(torch.promote_types(t.dtype, torch.float32)) for key, t in own.items()}
    if isinstance(module, AuxiliaryTrainingWrapper) or kind == "LN_TUNING":
        whole = getattr(module, "original_module", None) or module.get_base_layer()
        base = dict(whole.state_dict())
        ends = {key: base.get(key.rpartition(".")[2]) for key in own}
        if all(end is not None for end in ends.values()):
            return {key: torch.lerp(ends[key].to(t), t, s) for key, t in wide.items()}  # type: ignore[union-attr]
    elif kind == "IA3":
        return {key: 1 + s * (t - 1) for key, t in wide.items()}
    elif not any("lora_magnitude_vector" in key for key in own):
        ends_of = tuple(f"{name}{factor}" for factor in _FACTORS.get(str(kind), ()))
        if found := {key: s * t for key, t in wide.items() if key in ends_of}:
            return found
    what = "DoRA" if kind == "LORA" else kind
    raise CheckpointError(
        f"checkpoint {folder} cannot be written with adapters scaled by {s:g}: PEFT's format holds no "
        f"weights of {what} that give them"
    )
