"""A model in memory with tuners of PEFT, opened like a checkpoint and left as it was."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from peft import PeftMixedModel, PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from torch import nn
from torch.utils._pytree import tree_leaves

from adapter_probe.data.task_spec import TaskSpec
from adapter_probe.errors import CheckpointError, ModelError
from adapter_probe.hub_names import name_of_base
from adapter_probe.models.adapters.imported import ImportedMethod
from adapter_probe.models.methods import FullFineTuning
from adapter_probe.replay.checking import alike
from adapter_probe.replay.recording import base_of, configs_of_text
from adapter_probe.replay.several import split_adapters
from adapter_probe.replay.sharing import can_share, copy_with
from adapter_probe.replay.switches import Switches
from adapter_probe.replay.two_weights import STRENGTH
from adapter_probe.results.fingerprints import hash_json

from .adapter_folder import CHANGE_THE_BASE, LIBRARY
from .base import hash_stored, limit_length, load_any_base, positions_of
from .base_config import find_any_base, method_of, mixes_examples, resolve_base
from .finetuned import with_base
from .identity import BaseIdentity, config_settings, tokenizer_parts
from .model_class import Head, head_of_class, head_with_labels
from .native import NO_COLUMNS, Description, task_of, versions_of
from .opened_peft import OpenedFinetuned, OpenedPeft
from .peft_fields import REFUSED_SETTINGS, UNSWITCHED
from .peft_loading import refuse_outside, refuse_unready, tuned_modules

ACTIVATED = "alora_invocation_tokens"


def _fields(base: nn.Module) -> dict[str, Any]:
    config = getattr(base, "config", None)
    return json.loads(config.to_json_string(use_diff=False)) if hasattr(config, "to_json_string") else {}


def open_in_memory(model: nn.Module, tokenizer: Any = None, base_model: Any = None) -> OpenedPeft:
    """A model in memory, as an open checkpoint.

    Its modules are copied where that is possible, and the copy shares the numbers of all tensors. Where hooks
    move the weights, the model itself is used; run what follows inside `left_as_it_was` then.

    Args:
        model: a `PeftModel`, or a model of transformers into which PEFT has put tuners.
        tokenizer: its tokenizer; None for a model without a task that is given the arguments of its forward.
        base_model: of a fine-tuned model without tuners, the one that it was trained from, or its folder.

    Raises:
        ModelError: no adapter can be switched off, none is active, they are merged or disabled,
            or the class has no known kind of outputs.
        CheckpointError: the tokenizer is not the model's.
    """
    refuse_wrapped(model)
    base = base_of(model)
    config = getattr(base, "config", None)
    head: Head | None = "classification"
    if tokenizer is not None:
        head = head_of_class(type(base).__name__, bool(getattr(config, "is_encoder_decoder", False)))
        if config is None or head is None:
            raise ModelError(
                f"a {type(base).__name__} has no outputs that adapter-probe knows; give a model of "
                "transformers whose class ends in ForSequenceClassification, ForTokenClassification, "
                "ForQuestionAnswering or ForCausalLM"
            )
        head = head_with_labels(head, config)
    assert head is not None, "its class is known"
    used, name, fields = _copied(model), f"{type(base).__name__} in memory", _fields(base)
    _refuse_unready(used, model, base_model)
    kinds = {type(m).__module__.split(".")[2] for m in used.modules() if isinstance(m, BaseTunerLayer)}
    about = Description(
        ImportedMethod(LIBRARY, tuple(sorted(kinds)), inner=tuned_modules(used)),
        BaseIdentity(_name_of(config) or name, None, "", 0, 0, 0, config_settings(fields)),
        TaskSpec("", "classification", "accuracy", (), NO_COLUMNS, {}, {}),
        max_length=1,
        delta_sha256=hash_json([hash_stored(used, frozenset(), used.named_buffers()), _settings_of(used)]),
        versions=versions_of(method_of(fields)),
    )
    if tokenizer is not None:
        about = _with_texts(about, base, head, tokenizer, fields)
    opened = OpenedPeft(
        used, tokenizer, about, head, frozenset(), frozenset(), Path(name), quantised=method_of(fields),
        alone=mixes_examples(fields), notes=_notes_on(model),
    )  # fmt: skip
    if base_model is not None:
        return _against(opened, base_model)
    split_adapters(used)
    return opened


def _notes_on(model: Any) -> tuple[str, ...]:
    """That a start of PEFT's adapters has taken a part out of the base's weights."""
    given = {str(getattr(one, "init_lora_weights", "")) for one in getattr(model, "peft_config", {}).values()}
    taken = sorted(one for one in given if one.lower().startswith(CHANGE_THE_BASE))
    return tuple(
        f"init_lora_weights={one!r} took a part out of the base's weights, so a layer without its adapter "
        "is not the pretrained one"
        for one in taken
    )


def _name_of(config: Any) -> str:
    """The name under which a base was opened, or that of its folder; empty where it was made in memory."""
    own = str(getattr(config, "_name_or_path", "") or "")
    if own and Path(own).is_dir():
        return name_of_base(own)
    return Path(own).name if Path(own).is_absolute() or own.startswith(".") else own


def _with_texts(
    about: Description, base: Any, head: Head, tokenizer: Any, fields: dict[str, Any]
) -> Description:
    text, weight = base.config.get_text_config(), base.get_input_embeddings().weight
    n_layers, width = (int(getattr(text, name, 0) or 0) for name in ("num_hidden_layers", "hidden_size"))
    rows, n_outputs = int(weight.shape[0]), int(getattr(base.config, "num_labels", 0) or 0)
    if len(tokenizer) > rows:
        raise CheckpointError(
            f"the tokenizer has {len(tokenizer):,} tokens and the model's embedding {rows:,}; give the "
            "tokenizer of this model"
        )
    hidden = width or int(weight.shape[1])  # its tensors are part of the hash of the whole model
    return replace(
        about,
        base=replace(about.base, n_layers=n_layers, hidden_size=hidden, vocab_size=rows),
        task=task_of(type(base).__name__, head, n_outputs, Path("config.json", "none"), fields),
        tokenizer=tokenizer_parts(tokenizer),
        max_length=limit_length(positions_of(base), tokenizer.model_max_length, about.base.name),
    )


def refuse_wrapped(model: nn.Module) -> None:
    """Refuse what holds a model of transformers and is none, and adapters that only some tokens see."""
    kind = type(model).__name__
    wrappers = {PeftMixedModel: "base_model.model", nn.DataParallel: "module"}
    wrappers |= {nn.parallel.DistributedDataParallel: "module"}
    inside = next((place for one, place in wrappers.items() if isinstance(model, one)), "")
    if inside:
        raise ModelError(f"the model is wrapped in {kind}; give model.{inside}, the model itself")
    compiled = [name or "the model" for name, one in model.named_modules() if hasattr(one, "_orig_mod")]
    if compiled:
        raise ModelError(f"{compiled[0]} is wrapped by torch.compile; give what it wraps, its _orig_mod")
    if any(getattr(one, ACTIVATED, None) for one in getattr(model, "peft_config", {}).values()):
        raise ModelError(
            f"the model has {REFUSED_SETTINGS[ACTIVATED]}, so it cannot be switched off by layer"
        )
    if type(model).__module__.startswith("sentence_transformers"):
        raise ModelError(
            f"a {kind} is studied from its folder; save it (model.save_pretrained(FOLDER)) and give "
            "ap.ablate(FOLDER, data=...)"
        )
    if "XLORA" in (kinds := _kinds(model)):
        raise ModelError(
            f"the model has an X-LoRA ({kinds}), which weights its adapters anew for every token by a pass "
            "without them, so they cannot be switched off by layer; ablate one of its LoRAs"
        )


def _kinds(model: Any) -> str:
    """PEFT's names of the types of a model's adapters."""
    types = {one.peft_type for one in getattr(model, "peft_config", {}).values()}
    return ", ".join(sorted(str(getattr(one, "value", one)) for one in types))


def _floats(out: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(out) if isinstance(x, torch.Tensor) and x.is_floating_point()]


def _refuse_unready(used: nn.Module, model: nn.Module, base_model: Any) -> None:
    """Refuse a model without adapters that can be switched, or, given with its base, with any."""
    name, tuned = type(base_of(model)).__name__, any(isinstance(m, BaseTunerLayer) for m in used.modules())
    if base_model is None:
        if not tuned and getattr(model, "peft_config", None):
            what = UNSWITCHED.get(kind := _kinds(model), "in no layer")
            raise ModelError(
                f"the adapter of the {name} ({kind}) is {what}, so nothing can be switched off by layer"
            )
        if not tuned:
            raise ModelError(
                f"the {name} holds no adapter of PEFT, so nothing can be switched off; of a fine-tuned model "
                "give base=, the model that it was trained from"
            )
        refuse_unready(used, f"the {name}", several=used is not model)
        refuse_outside(used, f"the {name}")
    elif tuned:
        raise ModelError(f"the {name} holds adapters of PEFT, which are switched off without base=; omit it")
    elif used is model:
        raise ModelError(
            f"the weights of the {name} are moved by hooks, so its base's cannot be held beside them; save "
            "it and give its folder"
        )


def _against(opened: OpenedPeft, base_model: Any) -> OpenedFinetuned:
    """A fine-tuned model in memory with the tensors of the model that it was trained from."""
    model, about = opened.model, opened.description
    name, lacking = type(model).__name__, frozenset[str]()
    if isinstance(base_model, str | Path):
        found = find_any_base(*resolve_base(str(base_model)))
        writes = opened.head in ("causal", "seq2seq")
        labels = None if writes else getattr(model.config, "num_labels", None)
        loaded = load_any_base(found, type(model), labels, next(model.parameters()).dtype)
        base_model, lacking, called = loaded.model, loaded.missing, f"base {found.name}"
    else:
        called = f"the {type(base_model).__name__} that is given as its base"
        if type(base_model) is not type(model):
            raise ModelError(f"{called} is not of the class of the model, {name}; load it with that class")
    if method := method_of(_fields(model)) or method_of(_fields(base_model)):
        raise ModelError(
            f"the {name} or its base is quantised with {method}, so their tensors have no difference; give "
            "both unquantised"
        )
    about = replace(
        about, method=FullFineTuning(),
        delta_sha256=hash_json([about.delta_sha256, hash_stored(base_model, frozenset())]),
    )  # fmt: skip
    opened = replace(opened, description=about, missing=lacking)
    return with_base(opened, base_model, (f"the {name}", called))


def _copied(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode with parameters of its own that share the numbers; else the model itself."""
    if can_share(model):
        plain = {
            id(p): nn.Parameter(p.detach(), False) for p in model.parameters() if type(p) is nn.Parameter
        }
        memo: dict[int, Any] = {id(t): t for t in chain(model.parameters(), model.buffers())} | plain
        found = copy_with(model, memo)
        for module in found.modules():
            if "_original_forward" in vars(module):  # accelerate's mixed precision
                del module._original_forward, module.forward
            elif "forward" in vars(module):
                module.forward = _of_copy(module.forward, memo)  # type: ignore[method-assign]
        return found.eval()
    return model.eval()


def _of_copy(forward: Any, memo: dict[int, Any]) -> Any:
    """The forward of a copy; one that encloses modules, as TRL's does, would run those of the original.

    Args:
        forward: a function, or a method of the copy; Python does not copy what functions enclose.
        memo: the copied modules, by the identity of the original.
    """
    held: dict[int, Any] = {}
    for place, cell in enumerate(getattr(_function(forward), "__closure__", None) or ()):
        with suppress(ValueError):  # of an empty cell
            own = getattr(cell.cell_contents, "__self__", cell.cell_contents)
            if isinstance(own, nn.Module) and id(own) in memo:
                other = memo[id(own)]
                method = own is not cell.cell_contents
                held[place] = MethodType(cell.cell_contents.__func__, other) if method else other
    return _Enclosing(forward, held) if held else forward


class _Enclosing:
    """A function or method with other contents in some of its cells, which are copied with it."""

    def __init__(self, forward: Any, held: dict[int, Any]):
        self.forward, self.held = forward, held

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own = _function(self.forward)
        cells = [CellType(self.held[n]) if n in self.held else cell for n, cell in enumerate(own.__closure__)]
        made = FunctionType(own.__code__, own.__globals__, own.__name__, own.__defaults__, tuple(cells))
        made.__kwdefaults__ = own.__kwdefaults__
        bound = getattr(self.forward, "__self__", None)
        return made(*args, **kwargs) if bound is None else made(bound, *args, **kwargs)


def _function(forward: Any) -> Any:
    return getattr(forward, "__func__", forward)


@contextmanager
def left_as_it_was(model: nn.Module) -> Iterator[None]:
    """Afterwards, a model has the modes, switches, gradients, forwards, hooks and padding token of before."""
    modes = [(module, module.training, vars(module).get("forward")) for module in model.modules()]
    needed = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    switches = [(module, module.disable_adapters) for module in Switches().inside(model).values()]
    padding = [(config, getattr(config, "pad_token_id", None)) for config in configs_of_text(model)]
    kinds = ("_forward_hooks", "_forward_pre_hooks")
    hooks = [(held := getattr(module, kind), {*held}) for module in model.modules() for kind in kinds]
    try:
        yield
    finally:
        for module, training, forward in modes:
            module.training = training
            vars(module).pop(STRENGTH, None)
            vars(module).pop("forward", None)
            if forward is not None:
                module.forward = forward  # type: ignore[method-assign]
        for module, disabled in switches:
            Switches().set(module, not disabled)
        for parameter, grad in needed:  # which PEFT changes with its switches
            if parameter.requires_grad != grad:  # what was made in inference mode cannot be set at all
                parameter.requires_grad_(grad)
        for config, token in padding:
            config.pad_token_id = token
        for held, before in hooks:
            for key in [key for key in held if key not in before]:
                del held[key]


def state_of_tuners(model: nn.Module) -> list[Any]:
    """Which adapters of a model are active, merged or switched off, and how strong they are."""
    tuned = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    return [_settings_of(model), [(list(one.merged_adapters), one.disable_adapters) for one in tuned]]


def refuse_other_off(model: nn.Module, ours: Any, inputs: dict[str, Any]) -> None:
    """Refuse a model of PEFT that without all its adapters is not what PEFT's `disable_adapter` makes of it.

    Args:
        model: a copy.
        ours: the same with its switches, see `adapter_probe.probe.switchable_model.SwitchableModel`.
        inputs: arguments of its forward.
    """
    if not isinstance(model, PeftModel) or any(p.is_inference() for p in model.parameters()):
        return  # of the latter PEFT's switch fails, which sets what needs gradients
    sites = {module for own in ours.site_modules for module in own}
    outside = [
        module
        for module in model.modules()
        if isinstance(module, (BaseTunerLayer, AuxiliaryTrainingWrapper))
        and not sites.intersection((module, *module.children()))
    ]
    with torch.inference_mode():  # where tensors of an inference may change, too
        with ours.switched_off(np.zeros(len(ours.has_adapter), bool)):
            own = model(**inputs)
        with model.disable_adapter():
            for module in outside:  # the head, and what else is trained outside the layers, stays
                module.enable_adapters(True)
            theirs = model(**inputs)
    if not all(map(alike, _floats(own), _floats(theirs))):
        raise ModelError(
            f"the model without its adapters ({_kinds(model)}) is another one than with PEFT's "
            "disable_adapter, so they cannot be switched off by layer"
        )


def _settings_of(model: nn.Module) -> list[Any]:
    """What determines the outputs of the tuners apart from their tensors."""
    found: list[Any] = []
    for name, module in model.named_modules():
        if isinstance(module, BaseTunerLayer):
            plain = {k: v for k, v in vars(module).items() if isinstance(v, dict | int | float | str)}
            own = {k: v for k, v in plain.items() if not k.startswith("_") and k != "training"}
            said = json.dumps(own, default=lambda one: type(one).__name__, sort_keys=True)
            found.append([name, type(module).__name__, sorted(module.active_adapters), said])
    return found
