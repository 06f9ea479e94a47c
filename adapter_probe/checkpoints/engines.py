"""Which engine runs a checkpoint, and why: decided here and nowhere else.

The packed engine runs the families that it knows part by part. The general engine runs the modules of
transformers with PEFT's own tuners, whatever their class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from adapter_probe.errors import AdapterProbeError

from .files import CONFIG, UnknownField, Unsupported
from .peft_config import read_config
from .places import DECODERS
from .quantised import method_of


@dataclass(frozen=True)
class Engine:
    """An engine for a checkpoint.

    Attributes:
        name: "packed" or "general".
        reason: why, as the end of a sentence.
        quantised: whether it is that the base is stored quantised.
        sure: whether the configuration has only settings that are known here; PEFT itself may know more.
    """

    name: Literal["packed", "general"]
    reason: str
    sure: bool = True
    quantised: bool = False


PACKED = Engine("packed", "it knows this family part by part and runs its texts without padding")


def choose_engine(folder: Path, document: Mapping[str, Any] | None, fields: Mapping[str, Any]) -> Engine:
    """The engine for a checkpoint; loads torch only where the table of families decides.

    Args:
        folder: the checkpoint, for messages.
        document: PEFT's adapter_config.json; None for checkpoints of other libraries, which only the packed
            engine runs.
        fields: the base's config.json.

    Raises:
        CheckpointError: the configuration is damaged.
    """
    if document is None:
        return PACKED
    if method := method_of(fields):
        return Engine("general", f"the base is quantised with {method}", quantised=True)
    try:
        read_config(folder / CONFIG, document)
    except Unsupported as error:
        said = str(error).removeprefix(f"checkpoint {folder} has ").removeprefix(f"{folder / CONFIG} has ")
        said = said.partition(";")[0].partition(", which")[0]
        return Engine(
            "general", f"the packed engine does not run {said}", not isinstance(error, UnknownField)
        )
    if _adapts_embedding(folder):
        return Engine("general", "the packed engine does not run a LoRA of an embedding")
    from adapter_probe.models.bases.anatomy import anatomy_for

    try:
        anatomy_for(_with_defaults(fields))  # type: ignore[arg-type]
    except AdapterProbeError as error:
        return Engine("general", f"in the packed engine {str(error).partition(';')[0]}")
    return PACKED


def choose_placed(family: object, inside: bool) -> Engine:
    """The engine for a checkpoint of this project or of AdapterHub.

    Args:
        family: the base's model type.
        inside: whether it has adapters inside sublayers, such as LoRA.
    """
    if inside:
        return Engine("general", "it has adapters inside the sublayers")
    if family in DECODERS:
        return Engine("general", f"a {family} model is a decoder, and the packed engine runs encoders")
    return PACKED


def _adapts_embedding(folder: Path) -> bool:
    """Whether a LoRA changes an embedding, by its tensors; the configuration may be a pattern."""
    from .peft_headers import WEIGHTS, stored_in

    try:
        return any(".lora_embedding_" in name for name, _ in stored_in(folder / WEIGHTS[0]))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # whoever reads the file says so
        return False


def _with_defaults(fields: Mapping[str, Any]) -> object:
    """The configuration of a base, or its plain fields where transformers cannot read them."""
    from transformers import CONFIG_MAPPING

    from .base_config import silent_transformers

    try:
        with silent_transformers():
            return CONFIG_MAPPING[fields["model_type"]].from_dict(dict(fields))
    except Exception:  # an invalid configuration, for which transformers may raise anything
        return SimpleNamespace(**{"model_type": None, **fields})
