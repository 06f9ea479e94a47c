"""A method of PEFT: its configuration, from which follow a family's name and the size on a line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from adapter_probe.records import RecordError

if TYPE_CHECKING:
    from .methods import ParameterRole


@runtime_checkable
class PeftConfig(Protocol):
    """A configuration of PEFT, whose import takes seconds."""

    peft_type: Any

    def to_dict(self) -> dict[str, Any]:
        """Its fields."""


SIZES = ("r", "rank", "num_virtual_tokens", "n_frequency", "boft_block_size", "oft_block_size")
"""Names of the fields that a family's line is drawn over."""

LISTS = (
    "target_modules",
    "exclude_modules",
    "modules_to_save",
    "layers_to_transform",
    "feedforward_modules",
)
"""Fields whose values may be written in short, joined by +."""

VARIANTS_OF_LORA = {"use_dora": "dora", "use_rslora": "rslora"}
"""Fields of LoRA with which it has another name."""


@dataclass(frozen=True)
class PeftMethod:
    """A tuner of PEFT; the tuner, the head, and what its configuration names besides, train.

    Attributes:
        config: PEFT's configuration as JSON with sorted keys: its type, its size, and the fields that differ
            from PEFT's defaults.
        init_std: standard deviation of a LoRA's matrix A, while B is zero; None for PEFT's initialisation.
    """

    name: ClassVar[str] = "peft"

    config: str
    init_std: float | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The configuration's fields."""
        return dict(json.loads(self.config))

    @property
    def size(self) -> int | None:
        """The size that a line is drawn over, such as the rank; None for a type without one."""
        return next((self.fields[name] for name in SIZES if self.fields.get(name)), None)

    @property
    def family(self) -> str:
        """The type in short, with all settings but the size: ``lora``, ``lora:target_modules=key+query``."""
        fields = self.fields
        name = str(fields.pop("peft_type")).lower()
        for flag, variant in VARIANTS_OF_LORA.items():
            if name == "lora" and fields.get(flag):
                name = variant
                del fields[flag]
        sized = next((field for field in SIZES if fields.get(field)), None)
        others = {field: value for field, value in fields.items() if field != sized}
        return name + ":" * bool(others) + ",".join(f"{k}={_as_text(v)}" for k, v in others.items())

    @property
    def text(self) -> str:
        """All of it, as a user may give it: ``lora:r=8,target_modules=key+query``, or ``peft:`` and JSON."""
        if not all(_is_short(name, value) for name, value in self.fields.items()):
            std = {} if self.init_std is None else {"init_std": self.init_std}
            return f"peft:{json.dumps({**self.fields, **std})}"
        name, _, others = self.family.partition(":")
        given = [f"{field}={self.fields[field]}" for field in SIZES if self.fields.get(field)][:1]
        given += [others] * bool(others)
        given += [] if self.init_std is None else [f"init_std={self.init_std:g}"]
        return name + ":" * bool(given) + ",".join(given)

    def trains(self, role: ParameterRole, layer: int, n_layers: int, is_bias: bool = False) -> bool:
        """Whether a parameter trains; see `TopLayers.trains`."""
        return role in ("adapters", "head") or role in (self.fields.get("modules_to_save") or ())

    def to_json(self) -> dict[str, Any]:
        """A plain dict, with the family and the size for tables; see `method_from_json`."""
        std = {} if self.init_std is None else {"init_std": self.init_std}
        return {"name": self.name, "family": self.family, "size": self.size, "config": self.fields, **std}

    @staticmethod
    def from_json(record: Mapping[str, Any], where: str) -> PeftMethod:
        """The inverse of `to_json`; family and size follow from the configuration.

        Raises:
            RecordError: the configuration or the standard deviation is of another type.
        """
        config, std = record.get("config"), record.get("init_std")
        if not isinstance(config, Mapping) or not isinstance(config.get("peft_type"), str):
            raise RecordError(f"{where}.config is {config!r}, expected PEFT's configuration as an object")
        if not (std is None or isinstance(std, float)):
            raise RecordError(f"{where}.init_std is {std!r}, expected a number")
        return PeftMethod(json.dumps(config, sort_keys=True), std)


def _is_short(name: str, value: object) -> bool:
    parts = value if isinstance(value, list) and name in LISTS else [value]
    return not any(isinstance(one, list | dict) or set(str(one)) & set(",+") for one in parts)


def _as_text(value: object) -> str:
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)
