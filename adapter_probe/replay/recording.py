"""One forward of the model, with every call of a layer in our hands."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import SUPPORTED_NODES, TreeSpec, register_pytree_node, tree_flatten, tree_unflatten

from adapter_probe.errors import ModelError

from .stacks import Layer

Inputs = dict[str, Any]
Handle = Callable[[int, Callable[..., Any], tuple, dict], Any]
"""Called with a layer's number, its own forward and the arguments, in place of the layer."""

# What the model would only keep or return. A cache would be the same object for every variant.
_RECORDS = ("use_cache", "output_router_logits", "output_attentions", "output_hidden_states")
PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device)


class Stop(Exception):
    """The rest of a forward is not needed."""


@dataclass
class Call:
    """One call of a layer: what it was given and what it returned, flattened."""

    layer: int
    given: list[Any]
    given_spec: TreeSpec
    out: list[Any] = field(default_factory=list)
    out_spec: TreeSpec | None = None


def call_again(layer: Layer, call: Call) -> list[Any]:
    """What a layer returns for a recorded call's arguments, flattened."""
    layer.begin()
    given = [x.clone() if isinstance(x, Tensor) else x for x in call.given]  # it may change them in place
    args, kwargs = tree_unflatten(given, call.given_spec)
    return flat_result(layer.module(*args, **kwargs), args, kwargs)[0]


class Runner:
    """The model's own forward, with a function in place of its layers.

    Args:
        model: in evaluation mode.
    """

    def __init__(self, model: nn.Module, layers: Sequence[nn.Module]):
        self.model, self.layers = model, list(layers)
        self._configs = configurations(model)

    def forward(self, inputs: Inputs, handle: Handle, copies: int = 1) -> Any:
        """The model's output for several copies of the inputs."""
        inputs = {
            k: x.repeat(copies, *[1] * (x.dim() - 1)) if isinstance(x, Tensor) else x
            for k, x in inputs.items()
        }
        instead = {layer: _in_place_of(n, layer.forward, handle) for n, layer in enumerate(self.layers)}
        with without_records(self._configs), changed(instead):
            return self.model(**inputs)


def base_of(model: Any) -> Any:
    """The model of transformers inside a model of PEFT, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def configs_of_text(model: Any) -> list[Any]:
    """The configuration of a model of transformers, and that of its part for texts; none of other models."""
    config = getattr(base_of(model), "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return [one for one in ([config] if text is config else [config, text]) if one is not None]


def device_of(model: nn.Module) -> torch.device:
    """Where a model's inputs belong."""
    tensors = (*model.parameters(), *model.buffers())
    return next((t.device for t in tensors if t.device.type != "meta"), torch.device("cpu"))


def moved_to(module: nn.Module) -> Any:
    """The device on which a hook of accelerate runs a module; None without one."""
    hook = getattr(module, "_hf_hook", None)
    found = (getattr(one, "execution_device", None) for one in (hook, *getattr(hook, "hooks", ())))
    return next((place for place in found if place is not None), None)


def is_moved(model: nn.Module) -> bool:
    """Whether hooks of accelerate move a model's weights or states between devices."""
    return any(hasattr(module, "_hf_hook") for module in model.modules())


def held_elsewhere(model: nn.Module) -> dict[str, Callable[[], Tensor]]:
    """What reads the tensors that hooks of accelerate keep on disk or in the host's memory, by name."""
    kept: dict[str, Callable[[], Tensor]] = {}
    for prefix, module in model.named_modules():
        hook = getattr(module, "_hf_hook", None)
        for one in (hook, *getattr(hook, "hooks", ())):
            if (weights := getattr(one, "weights_map", None)) is not None:
                own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
                names = [name for name, tensor in own if tensor.device.type == "meta"]
                kept |= {f"{prefix}.{n}".lstrip("."): partial(weights.__getitem__, n) for n in names}
    return kept


def configurations(model: nn.Module) -> list[Any]:
    """All configurations of a model's modules, and of the parts of a model of several parts."""
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    tops = [vars(top) for top in configs.values() if hasattr(top, "__dict__")]
    configs |= {id(c): c for top in tops for c in top.values() if hasattr(c, "use_cache")}
    return [c for c in configs.values() if not isinstance(c, dict)]


@contextmanager
def without_records(configs: Sequence[Any], cache: bool = False) -> Iterator[None]:
    """Inside, configurations ask for nothing that a model would only keep or return; for a cache if so."""
    names = [name for name in _RECORDS if not (cache and name == "use_cache")]
    flags = [(c, flag) for c in configs for flag in names if getattr(c, flag, False) is True]
    try:
        for config, flag in flags:
            setattr(config, flag, False)
        yield
    finally:
        for config, flag in flags:
            setattr(config, flag, True)


def _in_place_of(number: int, forward: Callable[..., Any], handle: Handle) -> Callable[..., Any]:
    return lambda *args, **kwargs: handle(number, forward, args, kwargs)


@contextmanager
def changed(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Inside, modules have other forwards; hooks on the modules stay."""
    had = {module: vars(module).get("forward") for module in forwards}
    try:
        for module, forward in forwards.items():
            vars(module)["forward"] = forward  # what an assignment comes to, after checks
        yield
    finally:
        for module, forward in had.items():
            if forward is None:
                vars(module).pop("forward", None)
            else:
                vars(module)["forward"] = forward


def flat(args: Any, kwargs: Any) -> tuple[list[Any], TreeSpec]:
    """Arguments as a list, and their structure."""
    for kind in {type(x) for x in _holders(args, kwargs)} - SUPPORTED_NODES.keys():
        register_pytree_node(
            kind, lambda x: (list(x.values()), list(x)), lambda xs, keys, kind=kind: kind(zip(keys, xs))
        )
    return tree_flatten((args, kwargs))


def flat_result(returned: Any, args: Any, kwargs: Any) -> tuple[list[Any], TreeSpec]:
    """What a layer returned and what it left in its arguments, and their structure."""
    return tree_flatten((returned, [dict(x) for x in _holders(args, kwargs)]))


def unflat_result(out: list[Any], spec: TreeSpec, args: Any, kwargs: Any) -> Any:
    """The inverse: what the layer returns; what it leaves is put into the arguments."""
    returned, contents = tree_unflatten(out, spec)
    for holder, content in zip(_holders(args, kwargs), contents):
        holder.update(content)
    return returned


def _holders(args: tuple, kwargs: dict) -> list[UserDict]:
    """The arguments in which layers leave tensors for later layers."""
    return [x for x in (*args, *kwargs.values()) if isinstance(x, UserDict)]


def refuse_unknown(calls: Sequence[Call], names: Sequence[str]) -> None:
    """Refuse arguments whose contents are unknown, such as a cache.

    Raises:
        ModelError: a layer is given such an argument.
    """
    for call in calls:
        for x in call.given:
            if not isinstance(x, (Tensor, *PLAIN)):
                raise ModelError(
                    f"models of this family do not run layer by layer: {names[call.layer]} is given a "
                    f"{type(x).__name__}, whose contents are unknown"
                )


def refuse_other_calls(calls: Sequence[Call], other: Sequence[Call]) -> None:
    """Refuse a model that calls its layers differently in two forwards of the same batch.

    Raises:
        ModelError: it does.
    """
    a, b = ([(c.layer, c.given_spec, c.out_spec) for c in of] for of in (calls, other))
    if a != b:
        raise ModelError("the calls of the layers differ between two forwards of the same batch")
