"""How adapters are switched on and off, by the tuner library's own switch, or scaled in place of off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from adapter_probe.errors import ModelError

from .directions import truncate
from .two_weights import SEVERAL, TwoWeights, is_plain_lora, peft_is_loaded, strength_of

_SCALING, _FORWARD = "_own_scaling", "_own_forward"


class Application:
    """Which call of a layer is running, of a layer that a model calls several times.

    It counts the calls in a forward of the model, until one is chosen.

    Attributes:
        now: the call's number.
    """

    def __init__(self) -> None:
        self.now, self._chosen = -1, False

    def attach(self, model: nn.Module, layer: nn.Module) -> None:
        """Count the calls of the layer in every forward of the model."""
        model.register_forward_pre_hook(self._restart)
        layer.register_forward_pre_hook(self._count)

    def choose(self, number: int) -> None:
        """The layer is called as in this call, until the model's next forward."""
        self.now, self._chosen = number, True

    def _restart(self, *_: Any) -> None:
        self.now, self._chosen = -1, False

    def _count(self, *_: Any) -> None:
        self.now += not self._chosen


class Switchable(nn.Module):
    """A module with the switch that PEFT's modules have, on at first.

    Attributes:
        strength: what its change is multiplied by while it is on.
        part: the sublayer that it belongs to; None if its name says it.
        application: of a layer that is called several times; None of others.
        number: the call in which it acts.
        in_tensors: whether it exchanges its own tensors, so that a strength scales it apart from what is
            inside it.
    """

    disable_adapters = False
    strength = 1.0
    in_tensors = False
    part: int | None = None
    application: Application | None = None
    number = 0

    @property
    def only_adds(self) -> bool:
        """Whether it returns its first argument with its `change` added."""
        return False

    @property
    def change_reads(self) -> int | None:
        """How many of its arguments its `change` reads; None for all."""
        return None

    def change(self, *given: Tensor) -> Tensor:
        """What it adds to its first argument while it is on."""
        raise NotImplementedError

    @property
    def acts(self) -> bool:
        """Whether it belongs to the call of its layer that is running."""
        return self.application is None or self.application.now == self.number

    def enable_adapters(self, on: bool) -> None:
        """Switch it."""
        self.disable_adapters = not on


class Switches:
    """The switches of PEFT, and of modules that have the same one. A subclass serves another library.

    Args:
        strength: what the adapters' change is multiplied by where a module is switched off.
        rank: how many of its largest directions are kept there; 0 for none. What has none stays on.
    """

    def __init__(self, strength: float = 0.0, rank: int = 0):
        self.strength, self.rank = strength, rank

    def holds(self, module: nn.Module) -> bool:
        """Whether the module can be switched."""
        if isinstance(module, (Switchable, TwoWeights)):
            return True
        if not peft_is_loaded():
            return False
        from peft.tuners.tuners_utils import BaseTunerLayer
        from peft.utils.other import AuxiliaryTrainingWrapper

        tuned = isinstance(module, (BaseTunerLayer, AuxiliaryTrainingWrapper))
        return tuned and SEVERAL not in vars(module)

    def set(self, module: nn.Module, on: bool) -> None:
        """Switch one module on or, as far as strength or rank say, off."""
        strength = strength_of(module, self.strength)
        self.switch(module, on or bool(strength or self.rank))
        if self.rank and isinstance(module, TwoWeights):
            module.choose(on)
        elif self.rank:
            truncate(module, None if on else self.rank)
        elif strength:
            scale(module, 1.0 if on else strength)

    def switch(self, module: nn.Module, on: bool) -> None:
        """Switch one module on or off, whatever the strength; where it is scaled, this changes nothing."""
        if module.disable_adapters == on:
            module.enable_adapters(on)

    def refusal(self, module: nn.Module) -> str:
        """Why a module's switch would not give the base model; empty if it does."""
        if getattr(module, "merged", False):
            return "its adapters are merged into the weights"
        scales = strength_of(module, self.strength) not in (0, 1)
        if scales and not is_plain_lora(module) and not getattr(module, "in_tensors", False):
            inner = next((name for name, found in self.inside(module).items() if found is not module), None)
            if inner is not None:
                return f"its outputs have no single change to scale, because it holds {inner} (--strength)"
        return ""

    def inside(self, module: nn.Module) -> dict[str, nn.Module]:
        """All modules that can be switched, by their names inside `module`."""
        return {name: found for name, found in module.named_modules() if self.holds(found)}


def scale(module: Any, strength: float) -> None:
    """Multiply what a module's adapters change by a number; 1 leaves the module as PEFT made it.

    The change of a LoRA is multiplied in PEFT's own factors. Of every other tuner, the outputs are those
    between the module without and with its adapters: ``off + strength (on - off)``. That is the same where
    the outputs are linear in the change, and interpolates (IA)3's factors and LayerNorms.
    """
    if isinstance(module, Switchable):
        module.strength = strength
    elif isinstance(module, TwoWeights):
        module.choose(strength == 1)
    elif is_plain_lora(module):
        own = vars(module).setdefault(_SCALING, module.scaling)
        module.scaling = {name: strength * value for name, value in own.items()}
        if strength == 1:
            module.scaling = vars(module).pop(_SCALING)
    else:
        before = vars(module).pop(_FORWARD, None)
        if before is not None:
            restore = before[0]
            vars(module).pop("forward")
            if restore is not None:
                module.forward = restore
        if strength != 1:
            vars(module)[_FORWARD] = (vars(module).get("forward"),)
            module.forward = _between(module, module.forward, strength)


def _between(module: Any, forward: Callable[..., Any], strength: float) -> Callable[..., Any]:
    """The forward of a module between that without and that with its adapters."""

    def scaled(*args: Any, **kwargs: Any) -> Any:
        on = forward(*args, **kwargs)
        module.enable_adapters(False)
        try:
            off = forward(*args, **kwargs)
        finally:
            module.enable_adapters(True)
        return tree_map(lambda one, other: blend(one, other, strength), off, on)

    return scaled


def blend(off: Any, on: Any, strength: float) -> Any:
    """``off + strength (on - off)`` of two outputs.

    Raises:
        ModelError: they differ, and are no numbers between which something lies.
    """
    if isinstance(off, Tensor) and isinstance(on, Tensor) and off.is_floating_point():
        wide = off.to(torch.promote_types(off.dtype, torch.float32))
        return (wide + strength * (on - wide)).to(off.dtype)
    same = torch.equal(off, on) if isinstance(off, Tensor) and isinstance(on, Tensor) else off == on
    if not same:
        raise ModelError(
            f"--strength {strength:g} has no meaning for a module that returns {type(on).__name__} "
            "which differs without its adapters"
        )
    return on
