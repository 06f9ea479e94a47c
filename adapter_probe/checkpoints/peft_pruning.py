"""Take the adapters of some modules out of a checkpoint of PEFT, in PEFT's own format."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from torch import Tensor, nn

from adapter_probe.errors import CheckpointError, one_line
from adapter_probe.replay.sharing import sharing
from adapter_probe.results.atomic import make_folder, write_bytes, write_json

from .adapter_folder import WEIGHTS, read_adapter
from .any_base import load_any_base
from .files import CONFIG, read_json_file, refuse_full
from .opened_peft import OpenedPeft
from .peft_loading import ADAPTER
from .peft_opening import open_with_peft

PREFIX = "base_model.model."
# Fields by which PEFT chooses modules; the list of those that are left takes their place.
_CHOICES = ("layers_to_transform", "layers_pattern", "exclude_modules")


def write_without(opened: OpenedPeft, gone: Collection[nn.Module], out: Path) -> None:
    """Write a folder that PEFT loads, without the adapters of some modules.

    The configuration keeps all its fields but the choice of modules, which becomes a list of full names, and
    of trained biases, all of which are written then. PEFT's format requires adapters: without any, the model
    itself is written, as transformers loads it.

    Args:
        opened: the checkpoint.
        gone: modules of PEFT in its model.
        out: the new folder.

    Raises:
        CheckpointError: `out` contains a checkpoint, or the base cannot be written without adapters.
        ResultsError: the folder cannot be written.
    """
    refuse_full(out)
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
    tensors, _ = read_adapter(opened.folder)
    kept = {name: t.contiguous() for name, t in tensors.items() if not name.startswith(tuple(removed))}
    if gone and document.get("bias", "none") != "none":
        document["bias"] = "all"
        kept = _biases(opened.model, tuple(removed)) | kept
    make_folder(out)
    if opened.own_tokenizer:
        opened.tokenizer.save_pretrained(out)
    write_bytes(out / WEIGHTS[0], safetensors.torch.save(kept, metadata={"format": "pt"}))
    write_json(out / CONFIG, {**document, **(_choice(document, left) if gone else {})})


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
        make_folder(out)
        plain.save_pretrained(out)
        opened.tokenizer.save_pretrained(out)
    except (NotImplementedError, ValueError, RuntimeError, AttributeError, TypeError) as error:
        raise CheckpointError(
            f"checkpoint {opened.folder} would have no adapters left, and its base cannot be written without "
            f"them: {one_line(error)}"
        ) from error


def load_without(opened: OpenedPeft, folder: Path) -> nn.Module:
    """The model that `write_without` has written."""
    if (folder / CONFIG).is_file():
        load = partial(load_any_base, dequantise=opened.dequantised)
        return open_with_peft(folder, opened.description.base.name, load=load, in_layers=False).model
    return (
        type(opened.model.get_base_model())
        .from_pretrained(folder, dtype=opened.model.dtype)
        .eval()
        .requires_grad_(False)
    )


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
