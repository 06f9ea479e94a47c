"""Several active adapters of PEFT in one model: each is switched by itself, in every module that has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from adapter_probe.errors import ModelError

from .switches import Switchable
from .two_weights import SEVERAL, is_plain_lora


class OneAdapter(Switchable):
    """One of the active adapters of a module of PEFT, which becomes a module inside it.

    Args:
        tuned: the module of PEFT.
        adapter: the adapter's name in PEFT.
        name: its name in tables and figures.
    """

    def __init__(self, tuned: Any, adapter: str, name: str):
        super().__init__()
        self.adapter, self.name = adapter, name
        self._tuned = (tuned,)  # in a tuple, so that it is not registered below itself
        self._strength, self._scaling = 1.0, getattr(tuned, "scaling", {}).get(adapter)

    def enable_adapters(self, on: bool) -> None:
        """Activate it, or leave it out, beside the module's other adapters."""
        self.disable_adapters = not on
        (tuned,) = self._tuned
        every = [one for one in tuned.children() if isinstance(one, OneAdapter)]
        tuned._active_adapter = [one.adapter for one in every if not one.disable_adapters]

    @property
    def strength(self) -> float:  # type: ignore[override]
        """What its change is multiplied by while it is on."""
        return self._strength

    @strength.setter
    def strength(self, strength: float) -> None:
        (tuned,) = self._tuned
        if strength != self._strength:
            if not is_plain_lora(tuned):
                raise ModelError("--strength scales only LoRA in a model with several active adapters")
            tuned.scaling = {**tuned.scaling, self.adapter: strength * self._scaling}
        self._strength = strength

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters of its adapter, which are those of the module of PEFT."""
        (tuned,) = self._tuned
        for name, parameter in tuned.named_parameters():
            if self.adapter in name.split("."):
                yield name, parameter


def split_adapters(model: nn.Module, names: Mapping[str, str] | None = None) -> None:
    """Give every active adapter of a model with several a switch of its own.

    Args:
        model: the model, which is changed.
        names: the names of the adapters in tables, by those in PEFT; by default these.

    Raises:
        ModelError: a module that was trained as a whole can have one adapter only.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    tuned = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    if max((len(module.active_adapters) for module in tuned), default=0) < 2:
        return
    for name, module in model.named_modules():
        if isinstance(module, AuxiliaryTrainingWrapper):
            raise ModelError(
                f"{name} was trained as a whole, of which only one adapter can be active; choose one adapter"
            )
    for module in tuned:
        parts = [getattr(module, name) for name in module.adapter_layer_names]
        held = [one for one in module.active_adapters if any(one in part for part in parts)]
        vars(module)[SEVERAL] = True
        for number, adapter in enumerate(held):
            module.add_module(
                f"adapter_{number}", OneAdapter(module, adapter, (names or {}).get(adapter, adapter))
            )
        module._active_adapter = held
