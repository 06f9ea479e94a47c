"""The layers of a model that hold adapters, the stacks that they form, and the sublayer of each adapter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from torch import nn

from adapter_probe.errors import ModelError

from .switches import Application, Switches

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
        number: of its calls in a forward, the one that this is; the parts are those that act in it.
        applications: what says to adapters of single calls which call is running.
    """

    name: str
    module: nn.Module
    parts: tuple[tuple[nn.Module, ...], ...]
    unclear: str = ""
    number: int = 0
    applications: tuple[Application, ...] = ()

    def begin(self) -> None:
        """Let the next call of the module be this one."""
        for application in self.applications:
            application.choose(self.number)

    def called(self, number: int) -> Layer:
        """The layer in one of its calls."""
        parts = tuple(
            tuple(m for m in part if getattr(m, "application", None) is None or m.number == number)
            for part in self.parts
        )
        every = (getattr(module, "application", None) for part in self.parts for module in part)
        applications = tuple(dict.fromkeys(one for one in every if one is not None))
        return replace(self, parts=parts, number=number, applications=applications)


def in_calls(layers: Sequence[Layer], order: Sequence[int]) -> list[Layer]:
    """The layer of every call, by the numbers of the layers."""
    seen: Counter[int] = Counter()
    found = []
    for number in order:
        found.append(layers[number].called(seen[number]))
        seen[number] += 1
    return found


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


def stacks_of(layers: Sequence[Layer], config: object) -> list[tuple[str, int]]:
    """The stacks that the called layers form: their names and numbers of calls, in order.

    A model with an encoder and a decoder, or with a configuration for each of several parts, has a stack for
    each of them that holds adapters, named as the model names the part: ``encoder``, ``vision``. Any other
    model, and one that returns to an earlier part, has a single stack without a name.

    Args:
        layers: the layer of every call, in order.
        config: the model's configuration, if it has one.
    """
    one = [("", len(layers))]
    if not (getattr(config, "is_encoder_decoder", False) or getattr(config, "sub_configs", None)):
        return one
    places = [tuple(part for part in layer.name.split(".") if not part.isdecimal()) for layer in layers]
    runs = [(place, len(list(run))) for place, run in groupby(places)]
    columns = list(zip(*(place for place, _ in runs)))
    own = next((column for column in columns if len(set(column)) > 1), ("",))
    names = [name.removesuffix("_model").removesuffix("_tower") for name in own]
    if len(runs) == 1 or len(set(names)) < len(names) or not all(names):
        return one
    return [(name, n) for name, (_, n) in zip(names, runs)]


def _lists(module: nn.Module, switches: Switches, prefix: str = "") -> Iterator[tuple[str, list[nn.Module]]]:
    for name, child in module.named_children():
        is_list = isinstance(child, nn.ModuleList) and not any(isinstance(x, nn.ModuleList) for x in child)
        if is_list and any(switches.holds(one) and len(switches.inside(one)) == 1 for one in child):
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
    said = {own: getattr(switch, "part", None) for own, switch in found.items()}
    parts = {own: part_of(own) if said[own] is None else said[own] for own in found}
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
