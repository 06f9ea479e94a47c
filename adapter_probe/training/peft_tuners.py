"""Tuners of PEFT on a base, to be trained, and saved as PEFT saves them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import peft
import torch
from peft import PeftConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from torch import Tensor

from adapter_probe.checkpoints.adapter_folder import write_adapter
from adapter_probe.checkpoints.base import AnyLoaded
from adapter_probe.checkpoints.files import first_of
from adapter_probe.checkpoints.identity import BaseIdentity
from adapter_probe.checkpoints.model_class import head_of_kind
from adapter_probe.checkpoints.peft_fields import read_config, refuse_slow_patterns
from adapter_probe.checkpoints.peft_loading import ADAPTER, VERSIONS, own_name, saved_tensors, unsaved_biases
from adapter_probe.checkpoints.peft_writing import TASK_TYPES
from adapter_probe.data.task_spec import TaskSpec
from adapter_probe.device import own_draws
from adapter_probe.errors import ModelError, one_line
from adapter_probe.models.methods import ParameterRole, PeftMethod

from .own_methods import Known, Prepared, is_norm
from .peft_methods import plain

_MOST_NAMES = 12
_WHOLE = ".modules_to_save."


def prepare_tuner(loaded: AnyLoaded, method: PeftMethod, task: TaskSpec, seed: int) -> Prepared:
    """Put a tuner of PEFT on a base; the tuner, the head, and what its configuration names besides, train.

    Args:
        loaded: the base, which is changed.

    Raises:
        ModelError: PEFT cannot put the tuner on the base, or it has nothing to train there.
    """
    pretrained = {name for name, _ in loaded.model.named_parameters()} - loaded.missing
    prefix = "" if task.about.is_language_model else f"{loaded.model.base_model_prefix}."
    model = _wrapped(loaded, method, task, seed)
    known = {name: _known(name, pretrained, prefix) for name, _ in model.named_parameters()}
    _refuse_untrained(model, known, loaded, method)
    return Prepared(model, loaded.model, task.kind, loaded.identity.n_layers, known)


def _known(name: str, pretrained: Collection[str], prefix: str) -> Known:
    """What is known of a parameter of PEFT's model.

    Args:
        name: its name there.
        pretrained: names of the parameters that the base has.
        prefix: prefix of the encoder's names.
    """
    own = own_name(name)
    role: ParameterRole = "adapters"
    if own in pretrained and not own.startswith(prefix):
        role = "head"
    elif own in pretrained and _WHOLE not in name:
        role = "base"
    return Known(role, 0, own)


def saved_by_peft(model: PeftModel) -> dict[str, Tensor]:
    """The tensors that PEFT saves, by the names in its file, in float32."""
    return {
        name: t.detach().cpu().float().contiguous().clone() if t.is_floating_point() else t.cpu().clone()
        for name, t in sorted(saved_tensors(model).items())
    }


def save_tuner(model: PeftModel, folder: Path, base: BaseIdentity) -> None:
    """Write a folder as PEFT does."""
    fields = {name: plain(value) for name, value in model.peft_config[ADAPTER].to_dict().items()}
    place = {"base_model_name_or_path": base.name, "revision": base.revision}
    write_adapter(folder, saved_by_peft(model), {**fields, **place, "inference_mode": True})


def refuse_unfit(loaded: AnyLoaded, method: PeftMethod, task: TaskSpec) -> None:
    """Refuse a tuner that does not fit a base, before anything trains, on a copy without memory.

    Some initialisations cannot be computed without memory; these are met when the trial begins.
    """
    with torch.device("meta"):
        bare = type(loaded.model)(copy.deepcopy(loaded.model.config))
        try:
            prepare_tuner(replace(loaded, model=bare), method, task, 0)
        except ModelError as error:
            if error.__cause__ is None or isinstance(error.__cause__, ValueError):
                raise


def _wrapped(loaded: AnyLoaded, method: PeftMethod, task: TaskSpec, seed: int) -> PeftModel:
    config = _config(loaded, method, task)
    names = [name for name, _ in loaded.model.named_modules()]
    refuse_slow_patterns(Path(f"--method {method.text}"), method.fields, names)
    with warnings.catch_warnings(), own_draws(loaded.model.device):
        warnings.simplefilter("ignore")  # PEFT's advice on saving and merging
        torch.manual_seed(seed)
        try:
            model = get_peft_model(loaded.model, config, adapter_name=ADAPTER)
        except Exception as error:  # whatever PEFT or the base's modules raise on what does not fit
            raise ModelError(
                f"--method {method.text}: {VERSIONS} cannot put it on base "
                f"{loaded.identity.name}: {one_line(error)} (its modules are {_ends(loaded)})"
            ) from error
        if (std := method.init_std) is not None:
            for module in model.modules():
                if isinstance(module, LoraLayer) and ADAPTER in module.lora_A:  # B stays zero
                    with torch.no_grad():
                        module.lora_A[ADAPTER].get_parameter("weight").normal_(std=std)
    return model


def _config(loaded: AnyLoaded, method: PeftMethod, task: TaskSpec) -> PeftConfig:
    """The configuration for a task, with all that the base lacks among the fully trained modules."""
    fields, prefix = method.fields, f"{loaded.model.base_model_prefix}."
    lacked = {name.removeprefix(prefix).partition(".")[0] for name in loaded.missing}
    place = f"--method {method.text}"
    if lacked:
        if not hasattr(read_config(place, fields), "modules_to_save"):
            raise ModelError(f"{place}: PEFT trains no new head beside a {fields['peft_type']}")
        fields["modules_to_save"] = sorted({*(fields.get("modules_to_save") or ()), *lacked})
    if fields["peft_type"] == "LN_TUNING" and not fields.get("target_modules"):
        norms = {n.rpartition(".")[2] for n, module in loaded.model.named_modules() if is_norm(module)}
        fields["target_modules"] = sorted(norms)  # PEFT knows them of few families
    head = head_of_kind(task.kind, loaded.model.config.is_encoder_decoder)
    return read_config(place, {**fields, "task_type": TASK_TYPES[head]})


def _ends(loaded: AnyLoaded) -> str:
    ends = dict.fromkeys(
        name.rpartition(".")[2] for name, one in loaded.model.named_modules() if hasattr(one, "weight")
    )
    return ", ".join([*list(ends)[:_MOST_NAMES], *(["..."] if len(ends) > _MOST_NAMES else [])])


def _refuse_untrained(
    model: PeftModel, known: Mapping[str, Known], loaded: AnyLoaded, method: PeftMethod
) -> None:
    """Refuse a tuner without a parameter, a random head that stays random, and ranks above the width."""
    place = f"--method {method.text} on base {loaded.identity.name}"
    trained = {known[name].name for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not trained - loaded.missing:
        raise ModelError(f"{place}: it has no parameter to train there")
    if random := sorted(loaded.missing - trained):
        raise ModelError(f"{place}: PEFT would not train {first_of(random)}, which the base lacks")
    if lost := unsaved_biases(model, saved_tensors(model)):
        raise ModelError(
            f"{place}: PEFT {peft.__version__} trains {first_of(lost)}, but does not save it; PEFT 0.21 "
            "does, or give bias=all"
        )
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer) and ADAPTER in module.lora_A:
            width, rank = min(module.in_features or 0, module.out_features or 0), module.r[ADAPTER]
            if rank > width:
                where = own_name(name)
                raise ModelError(
                    f"{place}: rank {rank} exceeds the width {width} of {where}; give at most that"
                )
