"""The table of the model families, and what a family's configuration allows.

Nothing else in the project names a family. One whose layers are attention and feed-forward sublayers with
residual sums joins by adding a row to encoders.py or decoders.py; attention of a new kind is a subclass in
attention.py.
"""

from __future__ import annotations

from transformers import PretrainedConfig

from adapter_probe.errors import ModelError

from .decoders import DECODERS
from .encoders import ENCODERS
from .family import Anatomy

ANATOMIES: tuple[Anatomy, ...] = (*ENCODERS, *DECODERS)


def supported_model_types() -> tuple[str, ...]:
    """Every `config.model_type` that has a row in the table."""
    return tuple(name for anatomy in ANATOMIES for name in anatomy.model_types)


def anatomy_for(config: PretrainedConfig) -> Anatomy:
    """The table row for a model's configuration.

    Raises:
        ModelError: the family has no row, or the configuration changes the layer's computation (a decoder,
            cross-attention, relative positions).
    """
    for anatomy in ANATOMIES:
        if config.model_type in anatomy.model_types:
            check_config(anatomy, config)
            return anatomy
    raise ModelError(
        f"model family {config.model_type!r} is not supported; supported are "
        f"{', '.join(supported_model_types())}; another joins by a row in "
        "adapter_probe/models/bases, or from Python by AdaptedModel(base, anatomy=...)"
    )


def check_config(anatomy: Anatomy, config: PretrainedConfig) -> None:
    """Refuse a configuration under which a family computes something else.

    Raises:
        ModelError: a field has a value that the engine cannot run.
    """
    for name, allowed in anatomy.allowed:
        value = getattr(config, name, None)
        if value in allowed:
            continue
        if name in {"is_decoder", "add_cross_attention"}:
            role = "with cross-attention" if anatomy.attention.causal else "as a decoder"
            raise ModelError(f"{config.model_type} configured {role} is not supported")
        raise ModelError(f"{name} {value!r} is not supported; allowed is {allowed[0]!r}")


def length_limit(
    asked: int | None, config: PretrainedConfig, tokenizer_limit: int, anatomy: Anatomy | None = None
) -> int:
    """The most tokens an example may have: `asked`, within what the model and its tokenizer can read.

    Raises:
        ModelError: `asked` leaves no room for a token between the two special ones.
    """
    if asked is not None and asked < 3:
        raise ModelError(f"max_length {asked} is not allowed; give at least 3")
    anatomy = anatomy or anatomy_for(config)
    positions = int(config.max_position_embeddings) - anatomy.positions_lost
    if anatomy.positions_follow_padding:
        positions -= int(config.pad_token_id) + 1
    return int(min(limit for limit in (asked, positions, tokenizer_limit) if limit is not None))
