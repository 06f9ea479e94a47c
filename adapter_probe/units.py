"""The rows of the map that `--by` draws: how the tuned modules of a layer are joined into units.

A unit is a function here, with a row in `UNITS` and its name in `Unit` and in the help of `--by`. It takes
the tuned modules of every layer with their names inside the layer, and gives the name of each one's unit:
modules of one name are switched together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

Unit = Literal["span", "module", "sublayer"]
"""What the variants of an ablation switch: spans of layers, whose sites are the two sublayers; or the units
of a map, each in single layers and in all."""
SUBLAYERS = ("attention", "ffn")
ATTENTION, FFN = range(2)
_ATTENTION = ("attn", "attention")
_FFN = ("mlp", "ffn", "feed_forward", "feedforward", "densereludense", "moe", "expert", "intermediate")
_FFN_NAMES = ("output", "ff", "fc1", "fc2", "ffn_output")  # names that mean this only as a whole
Names = Mapping[Any, str]


def by_module(layers: Sequence[Names]) -> list[Names]:
    """A unit for each kind of tuned module.

    The numbers of experts are left out of its name, and those of sublayers where a layer's modules have
    different names without them.
    """
    without = [{m: ".".join(n for n in path.split(".") if not n.isdecimal()) for m, path in own.items()}
               for own in layers]  # fmt: skip
    merged = {
        short
        for own, shorter in zip(layers, without)
        for short in shorter.values()
        if len({own[m] for m in own if shorter[m] == short}) > 1
    }
    return [
        {m: path if shorter[m] in merged else shorter[m] for m, path in own.items()}
        for own, shorter in zip(layers, without)
    ]


def by_sublayer(layers: Sequence[Names]) -> list[Names]:
    """Attention and feed-forward network; a module that belongs to neither by its name is a unit alone."""
    return [
        {m: name if (part := part_of(name)) is None else SUBLAYERS[part] for m, name in own.items()}
        for own in by_module(layers)
    ]


UNITS: dict[str, Callable[[Sequence[Names]], list[Names]]] = {"module": by_module, "sublayer": by_sublayer}
"""How the tuned modules of a layer are joined, by unit; spans of layers need none."""


def part_of(path: str) -> int | None:
    """The sublayer of a module, by the outermost name of its path inside a layer that says it; else None.

    Experts belong to the feed-forward network.

    Returns:
        its number in `SUBLAYERS`.
    """
    for name in path.lower().split("."):
        if name.startswith(("post_attention_", "post_attn_")):  # in some families a norm of the next sublayer
            return None
        if any(word in name for word in _ATTENTION):
            return ATTENTION
        if name in _FFN_NAMES or any(word in name for word in _FFN):
            return FFN
    return None
