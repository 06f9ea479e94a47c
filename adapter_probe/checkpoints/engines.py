"""Which engine runs a checkpoint, and why: decided here and nowhere else.

The packed engine runs encoders that it knows part by part, with adapters of this project, of AdapterHub and
of adapter-bert. The general engine runs the modules of transformers with PEFT's own tuners, whatever their
class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .places import DECODERS
from .quantised import method_of


@dataclass(frozen=True)
class EngineChoice:
    """An engine for a checkpoint.

    Attributes:
        name: "packed" or "general".
        reason: why, as the end of a sentence.
        quantised: whether it is that the base is stored quantised.
    """

    name: Literal["packed", "general"]
    reason: str
    quantised: bool = False


PACKED = EngineChoice("packed", "it knows this family part by part and runs its texts without padding")


def choose_engine(document: Mapping[str, Any] | None, fields: Mapping[str, Any]) -> EngineChoice:
    """The engine for a checkpoint.

    Args:
        document: PEFT's adapter_config.json; None for checkpoints of other libraries.
        fields: the base's config.json.
    """
    if document is None:
        return PACKED
    if method := method_of(fields):
        return EngineChoice("general", f"the base is quantised with {method}", quantised=True)
    return EngineChoice(
        "general", "it runs what PEFT loads by the model's own modules and PEFT's own switches"
    )


def choose_placed(family: object, inside: bool) -> EngineChoice:
    """The engine for a checkpoint of this project or of AdapterHub.

    Args:
        family: the base's model type.
        inside: whether it has adapters inside sublayers, such as LoRA.
    """
    if inside:
        return EngineChoice("general", "it has adapters inside the sublayers")
    if family in DECODERS:
        return EngineChoice("general", f"a {family} model is a decoder, and the packed engine runs encoders")
    return PACKED
