"""Modules that hold the tensors of a fine-tuned model and of its base, and switch between the two."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from adapter_probe.errors import ModelError

from .sharing import sharing
from .stacks import find_layers
from .switches import Switchable, Switches, blend

_ON, _OFF, _SCALED = "on", "off", "scaled"


class TwoStates(Switchable):
    """A module of any class, with its own tensors while it is on and with those of another model while off.

    Its forward is that of its class: a switch exchanges the tensors, so that what it computes is exactly what
    the module of the other model computes. Tensors that are equal in both models are held once. It is made by
    `hold_both` out of a module in place.

    Attributes:
        base_layer: the tensors that differ, by the state in which they are in use.
    """

    base_layer: nn.Module
    in_tensors = True

    @property
    def disable_adapters(self) -> bool:  # type: ignore[override]
        """Whether the other model's tensors are in use."""
        return vars(self)["_in_use"] == _OFF

    def enable_adapters(self, on: bool) -> None:
        """Choose its own tensors, or those of the other model."""
        self._use(_ON if on else _OFF)

    @property
    def strength(self) -> float:  # type: ignore[override]
        """What the difference of the tensors is multiplied by while it is on."""
        return float(vars(self)["_strength"])

    @strength.setter
    def strength(self, strength: float) -> None:
        if strength != 1 and (vars(self)["_strength"] != strength or _SCALED not in self.base_layer._modules):
            own, other = (dict(_tensors(self.base_layer.get_submodule(one))) for one in (_ON, _OFF))
            between = {name: blend(other[name], tensor, strength) for name, tensor in own.items()}
            self.base_layer.add_module(_SCALED, _held(self, between))
            vars(self)["_in_use"] = ""
        vars(self)["_strength"] = strength
        self._use(_ON if strength == 1 else _SCALED)

    def changed(self) -> dict[str, Tensor]:
        """Its own tensors that differ from those of the other model, by their names in it."""
        return dict(_tensors(self.base_layer.get_submodule(_ON)))

    def other(self) -> dict[str, Tensor]:
        """The tensors that stand in place of them."""
        return dict(_tensors(self.base_layer.get_submodule(_OFF)))

    def finish(self) -> None:
        """Become a module of the original class again, with the tensors in use."""
        del self.base_layer
        for name in ("_in_use", "_strength"):
            vars(self).pop(name)
        self.__class__ = type(self).__bases__[1]  # type: ignore[assignment]

    def _use(self, state: str) -> None:
        if vars(self)["_in_use"] == state:
            return
        for name, tensor in _tensors(self.base_layer.get_submodule(state)):
            own = self._parameters if name in self._parameters else self._buffers
            own[name] = tensor  # type: ignore[assignment]
        vars(self)["_in_use"] = state


@dataclass(frozen=True)
class Difference:
    """Where a model differs from another one of its class.

    Attributes:
        inside: names of the tensors in layers that differ, which can be switched.
        outside: those outside the layers, which are the model's own.
        lacking: names of tensors outside the layers that the other model does not have.
    """

    inside: tuple[str, ...]
    outside: tuple[str, ...]
    lacking: tuple[str, ...] = ()


def hold_both(
    model: nn.Module,
    base: nn.Module,
    lacking: Collection[str] = (),
    names: tuple[str, str] = ("the model", "its base"),
) -> Difference:
    """Let every module in a model's layers hold another model's tensors too where they differ, in place.

    Args:
        base: the other model, of the same modules; equal tensors are not kept, the others are shared.
        lacking: names of tensors that the other model does not really have.
        names: what to call the two in messages.

    Raises:
        ModelError: the models have other tensors or shapes, tie other weights, or differ in no layer.
    """
    own, others = _stored(model), _stored(base)
    _refuse_unfit(own, others, lacking, names)
    _refuse_other_ties(own, others, lacking, names)
    differing: dict[str, list[str]] = {}
    for name, tensor in own.items():
        if name in lacking or tensor is others[name]:
            continue
        if not torch.equal(tensor, others[name].to(tensor)):
            holder, _, last = name.rpartition(".")
            differing.setdefault(holder, []).append(last)
    if not differing:
        raise ModelError(
            f"{names[0]} equals {names[1]} in every tensor, so there is no difference to switch off; "
            "give the model that it was trained from with --base"
        )
    left, placed = {"", *_of_all_layers(model)}, dict[int, Tensor]()
    for holder in differing.keys() - left:
        names_of = {name: _joined(holder, name) for name in differing[holder]}
        off = {name: _placed(others[whole], own[whole], placed) for name, whole in names_of.items()}
        _hold(model.get_submodule(holder), off)
    inside = _inside(model, differing)
    every = (_joined(holder, name) for holder, own_names in differing.items() for name in own_names)
    outside = tuple(name for name in every if name not in inside)
    if not inside:
        raise ModelError(
            f"{names[0]} differs from {names[1]} only outside the layers ({first_few(outside)}), so no layer "
            "can be switched off"
        )
    return Difference(tuple(name for name in own if name in inside), outside, tuple(lacking))


def _joined(holder: str, name: str) -> str:
    return f"{holder}.{name}" if holder else name


def _inside(model: nn.Module, differing: Mapping[str, list[str]]) -> set[str]:
    """The names of the tensors that can be switched; the modules of the others become what they were."""
    try:
        parts = {m for layer in find_layers(model, Switches()) for part in layer.parts for m in part}
    except ModelError:
        parts = set()
    found = set()
    for holder, names in differing.items():
        module = model.get_submodule(holder)
        if module in parts:
            found |= {_joined(holder, name) for name in names}
        elif isinstance(module, TwoStates):
            module.finish()
    return found


def put_back(model: nn.Module, others: Mapping[str, Tensor]) -> None:
    """Give a model other tensors, by their names."""
    placed: dict[int, Tensor] = {}
    own = _stored(model)
    for name in others:
        holder, _, last = name.rpartition(".")
        module = model.get_submodule(holder)
        into = module._parameters if last in module._parameters else module._buffers
        into[last] = _placed(others[name], own[name], placed)  # type: ignore[assignment]


def finished(model: nn.Module) -> nn.Module:
    """A copy that shares the tensors in use, of which every module is of its original class."""
    plain = sharing(model)
    for module in [module for module in plain.modules() if isinstance(module, TwoStates)]:
        module.finish()
    return plain


def _of_all_layers(model: nn.Module) -> Iterator[str]:
    """The embeddings that only the first layer has: T5's positions, which it hands to the others."""
    for name, layers in model.named_modules():
        if isinstance(layers, nn.ModuleList) and len(layers) > 1:
            there = {inner for layer in list(layers)[1:] for inner, _ in layer.named_modules()}
            for inner, module in layers[0].named_modules():
                if isinstance(module, nn.Embedding) and inner not in there:
                    yield f"{name}.0.{inner}"


def _stored(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that a model's files hold, tied ones under each of their names."""
    return dict(model.state_dict(keep_vars=True))


def _placed(tensor: Tensor, like: Tensor, placed: dict[int, Tensor]) -> Tensor:
    """A tensor in the precision and on the device of another one; a tied one is the same each time."""
    if id(tensor) not in placed:
        found = tensor.detach().to(like)
        placed[id(tensor)] = nn.Parameter(found, False) if isinstance(like, nn.Parameter) else found
    return placed[id(tensor)]


def _hold(module: nn.Module, off: dict[str, Tensor]) -> None:
    on = {name: module._parameters.get(name, module._buffers.get(name)) for name in off}
    module.__class__ = _two_states_of(type(module))
    vars(module).update(_in_use=_ON, _strength=1.0)
    base_layer = nn.Module()
    base_layer.add_module(_ON, _held(module, on))  # type: ignore[arg-type]
    base_layer.add_module(_OFF, _held(module, off))
    module.add_module("base_layer", base_layer.eval())


@cache
def _two_states_of(kind: type[nn.Module]) -> type[nn.Module]:
    return type(kind.__name__, (TwoStates, kind), {"__module__": kind.__module__})


def _held(module: nn.Module, tensors: dict[str, Tensor]) -> nn.Module:
    found = nn.Module()
    for name, tensor in tensors.items():
        if name in module._buffers:
            found.register_buffer(name, tensor)
        else:
            own = tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor, requires_grad=False)
            found.register_parameter(name, own)
    return found.eval()


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
    yield from module.named_buffers(recurse=False, remove_duplicate=False)


def _refuse_unfit(
    own: dict[str, Tensor], others: dict[str, Tensor], lacking: Collection[str], names: tuple[str, str]
) -> None:
    said = f"{names[0]} does not fit {names[1]}"
    for one, two, which in ((own, others, "lacks"), (others, own, "alone has")):
        if missing := [name for name in one if name not in two and name not in lacking]:
            raise ModelError(f"{said}, which {which} {first_few(missing)}")
    shapes = [
        f"{name} has shape {list(tensor.shape)} and there {list(others[name].shape)}"
        for name, tensor in own.items()
        if name not in lacking and tensor.shape != others[name].shape
    ]
    if shapes:
        raise ModelError(f"{said}: {first_few(shapes, '; ')}")


def _refuse_other_ties(
    own: dict[str, Tensor], others: dict[str, Tensor], lacking: Collection[str], names: tuple[str, str]
) -> None:
    """Refuse a model in which other weights are tied than in the other one."""
    ties, theirs = (_ties(one, lacking) for one in (own, others))
    if ties != theirs:
        tied = max(ties ^ theirs, key=lambda group: sorted(group))
        one, two = names if tied in ties else names[::-1]
        raise ModelError(
            f"the weights {' and '.join(sorted(tied))} are one tensor in {one} and several in {two}, so the "
            "two differ in more than numbers; save both with the weights tied, or both without"
        )


def _ties(tensors: dict[str, Tensor], lacking: Collection[str]) -> set[frozenset[str]]:
    groups: dict[int, set[str]] = {}
    for name in tensors.keys() - lacking:
        groups.setdefault(id(tensors[name]), set()).add(name)
    return {frozenset(names) for names in groups.values() if len(names) > 1}


def first_few(texts: Collection[str], between: str = ", ", most: int = 3) -> str:
    """The first few of some texts, with the number of the others."""
    texts = list(texts)
    more = len(texts) - most
    return between.join(texts[:most]) + (f"{between}and {more} more" if more > 0 else "")
