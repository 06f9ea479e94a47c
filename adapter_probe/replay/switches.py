"""How adapters are switched on and off: by the tuner library's own switch."""

from __future__ import annotations

from torch import nn

from .two_weights import TwoWeights


class Switchable(nn.Module):
    """A module with the switch that PEFT's modules have, on at first."""

    disable_adapters = False

    def enable_adapters(self, on: bool) -> None:
        """Switch it."""
        self.disable_adapters = not on


class Switches:
    """The switches of PEFT, and of modules that have the same one. A subclass serves another library."""

    def holds(self, module: nn.Module) -> bool:
        """Whether the module can be switched."""
        # Not at the top: the import takes seconds, and what the packed engine runs does not need it.
        from peft.tuners.tuners_utils import BaseTunerLayer
        from peft.utils.other import AuxiliaryTrainingWrapper

        return isinstance(module, (Switchable, TwoWeights, BaseTunerLayer, AuxiliaryTrainingWrapper))

    def set(self, module: nn.Module, on: bool) -> None:
        """Switch one module."""
        if module.disable_adapters == on:
            module.enable_adapters(on)

    def refusal(self, module: nn.Module) -> str:
        """Why a module's switch would not give the base model; empty if it does."""
        return "its adapters are merged into the weights" if getattr(module, "merged", False) else ""

    def inside(self, module: nn.Module) -> dict[str, nn.Module]:
        """All modules that can be switched, by their names inside `module`."""
        return {name: found for name, found in module.named_modules() if self.holds(found)}
