"""The layers of a model that hold adapters, the stacks that they form, and the sublayer of each adapter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from torch import nn

from adapter_probe.errors import ModelError, shown
from adapter_probe.spans import SITES, Site, ends_with
from adapter_probe.units import ATTENTION, FFN, SUBLAYERS, UNITS, Unit, by_sublayer, part_of

from .several import OneAdapter
from .switches import Application, Switches

_MOST_LISTED = 3  # modules in a message


@dataclass(frozen=True)
class Layer:
    """A module that the model runs as a layer.

    Attributes:
        name: its name in the model.
        parts: the modules that each site switches.
        unclear: the name of an adapter that belongs to neither by its name; everything is in the first part
            then. Empty if there is none.
        number: of its calls in a forward, the one that this is; the parts are those that act in it.
        applications: what says to adapters of single calls which call is running.
        sites: the sites, the same in all layers of a model: its attention and its feed-forward network, or
            one for each unit of a map.
    """

    name: str
    module: nn.Module
    parts: tuple[tuple[nn.Module, ...], ...]
    unclear: str = ""
    number: int = 0
    applications: tuple[Application, ...] = ()
    sites: tuple[Site, ...] = SITES

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


def sites_of(layers: Sequence[Layer], call: int) -> slice:
    """The columns of a mask that switch the parts of a call's layer."""
    begin = sum(len(layer.parts) for layer in layers[:call])
    return slice(begin, begin + len(layers[call].parts))


def in_copy(layers: Sequence[Layer], model: nn.Module, copy: nn.Module) -> list[Layer]:
    """The same layers of a copy of the model, in which other modules may stand in place of some."""
    names = {module: name for name, module in model.named_modules()}
    found = []
    for layer in layers:
        parts = tuple(tuple(copy.get_submodule(names[m]) for m in part) for part in layer.parts)
        own = replace(layer, module=copy.get_submodule(names[layer.module]), parts=parts)
        found.append(own.called(layer.number))
    return found


def find_layers(model: nn.Module, switches: Switches, by: Unit = "span") -> list[Layer]:
    """The layers of all outermost lists of modules that hold an adapter, in the order of the modules.

    Args:
        switches: what can be switched.
        by: the unit that is a site of its own; by span, those are the adapters of a sublayer together.

    Raises:
        ModelError: there is none, or an adapter in them cannot be switched.
    """
    layers = []
    for name, modules in _lists(model, switches):
        layers += [_layer(f"{name}.{number}", module, switches) for number, module in enumerate(modules)]
    if not layers:
        raise ModelError("no layer of the model holds an adapter that can be switched off")
    return _by_adapter(layers) if by == "span" else _in_units(layers, by)


def _by_adapter(layers: Sequence[Layer]) -> list[Layer]:
    """The same layers, of a model with several active adapters with two sites for each of them."""
    every = (module for layer in layers for part in layer.parts for module in part)
    names = list(dict.fromkeys(module.name for module in every if isinstance(module, OneAdapter)))
    if not names:
        return list(layers)
    sites = tuple(site._replace(name=f"{name} {site.name}", adapter=name) for name in names for site in SITES)
    divided = []
    for layer in layers:
        of = ((name, part) for name in names for part in layer.parts)
        parts = tuple(tuple(m for m in part if getattr(m, "name", None) == name) for name, part in of)
        divided.append(replace(layer, sites=sites, parts=parts))
    return divided


def _in_units(layers: Sequence[Layer], unit: Unit) -> list[Layer]:
    """The same layers with a site for each unit that any of them holds."""
    found = [{m: _path(layer.module, m) for part in layer.parts for m in part} for layer in layers]
    units = UNITS[unit](found)
    paths = list(dict.fromkeys(path for own in units for path in own.values()))
    sublayers = [None if part is None else SITES[part].name for part in map(part_of, paths)]
    sites = tuple(map(Site, _shortest(paths), paths, (name or "" for name in sublayers)))
    return [
        replace(layer, parts=tuple(tuple(m for m in own if own[m] == path) for path in paths), unclear="",
                sites=sites)
        for layer, own in zip(layers, units)
    ]  # fmt: skip


def _path(layer: nn.Module, module: nn.Module) -> str:
    """The name of a tuned module in its layer, without the numbers of experts and what PEFT adds to it."""
    if (part := getattr(module, "part", None)) is not None:
        return SITES[part].name
    name = next(name for name, own in layer.named_modules() if own is module)
    if isinstance(module, OneAdapter):
        name = name.rpartition(".")[0]
        module = layer.get_submodule(name)
    names, kept = name.split("."), []
    for depth, one in enumerate(names):
        above = layer.get_submodule(".".join(names[:depth]))
        experts = isinstance(above, nn.ModuleList) and len({type(own) for own in above}) == 1 < len(above)
        if one != "base_layer" and not (one.isdecimal() and experts):
            kept.append(one)
    parameter = getattr(module, "parameter_name", None)  # of PEFT's modules for one of several parameters
    return ".".join([*kept, parameter] if isinstance(parameter, str) else kept)


def _shortest(paths: Sequence[str]) -> list[str]:
    """The shortest end of each path that is the end of no other one."""
    ends = [[path.split(".")[n:] for n in reversed(range(path.count(".") + 1))] for path in paths]
    counts = Counter(tuple(end) for own in ends for end in own)
    return [".".join(next((end for end in own if counts[tuple(end)] == 1), own[-1])) for own in ends]


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


def layer_strengths(
    strengths: Sequence[float] | Mapping[str, float], layers: Sequence[Layer], config: Any = None
) -> dict[nn.Module, float]:
    """The strength of every tuned module in the layers.

    Args:
        strengths: of every layer, or by pattern. A pattern is compared with a module's name in the model and
            with every end of it after a dot; a later pattern overrides an earlier one, and what none matches
            has strength 1. ``attention`` and ``ffn`` are the tuned modules of a sublayer, unless a module
            has this name.
        config: the model's configuration, where layers may share modules.

    Raises:
        ModelError: there are more or fewer strengths than layers, a pattern matches no module, or layers that
            share a module have different strengths.
    """
    if isinstance(strengths, Mapping):
        return _by_pattern(strengths, layers)
    if len(strengths) > len(layers) and getattr(config, "num_hidden_groups", None) == len(layers):
        n_layers = config.num_hidden_layers  # of an ALBERT, in groups that share one layer's modules
        layers = [layers[n * len(layers) // n_layers] for n in range(n_layers)]
    if len(strengths) != len(layers):
        raise ModelError(
            f"--strength has {len(strengths)} strengths for a model of {len(layers)} layers; give "
            "one for each layer"
        )
    found: dict[nn.Module, float] = {}
    for layer, strength in zip(layers, strengths):
        for module in (module for part in layer.parts for module in part):
            if found.setdefault(module, strength) != strength:
                raise ModelError(
                    f"--strength: layers share the adapters of {layer.name}; give them one strength"
                )
    return found


def _by_pattern(strengths: Mapping[str, float], layers: Sequence[Layer]) -> dict[nn.Module, float]:
    named = {
        module: f"{layer.name}.{name}"
        for layer in layers
        for name, module in layer.module.named_modules()
        if any(module in part for part in layer.parts)
    }
    names = [{m: n for n, m in layer.module.named_modules() if m in named} for layer in layers]
    parts = {module: name for own in by_sublayer(names) for module, name in own.items()}
    found = dict.fromkeys(named, 1.0)
    for pattern, strength in strengths.items():
        chosen = [module for module, name in named.items() if ends_with(name, pattern)]
        if not chosen and pattern in SUBLAYERS:
            chosen = [module for module, part in parts.items() if part == pattern]
        if not chosen:
            listed = ", ".join(list(named.values())[:_MOST_LISTED])
            raise ModelError(
                f"--strength: the pattern {shown(pattern)} matches no tuned module; the model has "
                f"{len(named)}, such as {listed}"
            )
        found |= dict.fromkeys(chosen, strength)
    return found
