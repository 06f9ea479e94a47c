"""The layers of a model that hold adapters, and the sublayer to which each adapter belongs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from adapter_probe.errors import ModelError

from .switches import Switches

ATTENTION, FFN = 0, 1
_ATTENTION = ("attn", "attention")
_FFN = ("mlp", "ffn", "feed_forward", "feedforward", "densereludense", "moe", "expert", "intermediate")
_FFN_NAMES = ("output", "ff", "fc1", "fc2", "ffn_output")  # names that mean this only as a whole


@dataclass(frozen=True)
class Layer:
    """A module that the model runs as a layer.

    Attributes:
        name: its name in the model.
        module: the module.
        parts: what can be switched in its attention and in its feed-forward network.
        unclear: the name of an adapter that belongs to neither by its name; everything is in the first part
            then. Empty if there is none.
    """

    name: str
    module: nn.Module
    parts: tuple[tuple[nn.Module, ...], tuple[nn.Module, ...]]
    unclear: str = ""


def find_layers(model: nn.Module, switches: Switches) -> list[Layer]:
    """The layers of all outermost lists of modules that hold an adapter, in the order of the modules.

    Raises:
        ModelError: there is none, or an adapter in them cannot be switched.
    """
    layers = []
    for name, modules in _lists(model, switches):
        layers += [_layer(f"{name}.{number}", module, switches) for number, module in enumerate(modules)]
    if not layers:
        raise ModelError("no layer of the model holds an adapter that can be switched off")
    return layers


def _lists(module: nn.Module, switches: Switches, prefix: str = "") -> Iterator[tuple[str, list[nn.Module]]]:
    for name, child in module.named_children():
        is_list = isinstance(child, nn.ModuleList) and not any(isinstance(x, nn.ModuleList) for x in child)
        if is_list and any(map(switches.holds, child)):
            continue  # single maps, and no layers: they stay on, like all that is outside the layers
        if is_list and switches.inside(child):
            yield prefix + name, list(child)
        else:
            yield from _lists(child, switches, f"{prefix}{name}.")


def _layer(name: str, module: nn.Module, switches: Switches) -> Layer:
    found = switches.inside(module)
    for own, switch in found.items():
        if why := switches.refusal(switch):
            raise ModelError(f"{name}.{own} cannot be switched off: {why}")
    parts = {own: part_of(own) for own in found}
    unclear = next((own for own, part in parts.items() if part is None), None)
    if unclear is not None:
        return Layer(name, module, (tuple(found.values()), ()), f"{name}.{unclear}")
    attention, ffn = (
        tuple(found[own] for own, part in parts.items() if part == at) for at in (ATTENTION, FFN)
    )
    return Layer(name, module, (attention, ffn))


def part_of(path: str) -> int | None:
    """The sublayer of a module, by the outermost name of its path inside a layer that says it; else None.

    Experts belong to the feed-forward network.
    """
    for name in path.lower().split("."):
        if name.startswith(("post_attention_", "post_attn_")):  # in some families a norm of the next sublayer
            return None
        if any(word in name for word in _ATTENTION):
            return ATTENTION
        if name in _FFN_NAMES or any(word in name for word in _FFN):
            return FFN
    return None
