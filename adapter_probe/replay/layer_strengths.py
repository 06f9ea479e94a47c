"""What the change of each tuned module is multiplied by, where layers or modules have different strengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from torch import nn

from adapter_probe.errors import ModelError, shown

from .stacks import Layer

_MOST_LISTED = 3


def layer_strengths(
    strengths: Sequence[float] | Mapping[str, float], layers: Sequence[Layer]
) -> dict[nn.Module, float]:
    """The strength of every tuned module in the layers.

    Args:
        strengths: of every layer, or by pattern. A pattern is compared with a module's name in the model and
            with every end of it after a dot; a later pattern overrides an earlier one, and what none matches
            has strength 1.
        layers: the layers.

    Raises:
        ModelError: there are more or fewer strengths than layers, a pattern matches no module, or layers that
            share a module have different strengths.
    """
    if isinstance(strengths, Mapping):
        return _by_pattern(strengths, layers)
    if len(strengths) != len(layers):
        raise ModelError(
            f"--strengths-by-layer has {len(strengths)} strengths for a model of {len(layers)} layers; give "
            "one for each layer"
        )
    found: dict[nn.Module, float] = {}
    for layer, strength in zip(layers, strengths):
        for module in (module for part in layer.parts for module in part):
            if found.setdefault(module, strength) != strength:
                raise ModelError(
                    f"--strengths-by-layer: layers share the adapters of {layer.name}; give them one strength"
                )
    return found


def _by_pattern(strengths: Mapping[str, float], layers: Sequence[Layer]) -> dict[nn.Module, float]:
    named = {
        module: f"{layer.name}.{name}"
        for layer in layers
        for name, module in layer.module.named_modules()
        if any(module in part for part in layer.parts)
    }
    found = dict.fromkeys(named, 1.0)
    for pattern, strength in strengths.items():
        chosen = [module for module, name in named.items() if _matches(name, pattern)]
        if not chosen:
            listed = ", ".join(list(named.values())[:_MOST_LISTED])
            raise ModelError(
                f"--strengths-by-layer: the pattern {shown(pattern)} matches no tuned module; the model has "
                f"{len(named)}, such as {listed}"
            )
        found |= dict.fromkeys(chosen, strength)
    return found


def _matches(name: str, pattern: str) -> bool:
    names = name.split(".")
    return any(fnmatchcase(".".join(names[n:]), pattern) for n in range(len(names)))
