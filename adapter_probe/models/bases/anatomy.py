"""The table of model families, and the supported configurations of each family.

No other code refers to particular families. A family whose layers are attention and feed-forward sublayers
with residual sums is added as a row in encoders.py; a new kind of attention is a subclass in
attention.py.
"""

from __future__ import annotations

from transformers import PretrainedConfig

from adapter_probe.errors import ModelError, must_be

from .encoders import ENCODERS
from .family import Anatomy

ANATOMIES: tuple[Anatomy, ...] = ENCODERS


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
        f"{', '.join(supported_model_types())}; add another as a row in "
        "adapter_probe/models/bases, or in Python with AdaptedModel(base, anatomy=...)"
    )


def check_config(anatomy: Anatomy, config: PretrainedConfig) -> None:
    """Refuse a configuration that changes the computation of a family.

    Raises:
        ModelError: a field has an unsupported value.
    """
    for name, allowed in anatomy.allowed:
        value = getattr(config, name, None)
        if value in allowed:
            continue
        if name in {"is_decoder", "add_cross_attention"}:
            raise ModelError(f"{config.model_type} configured as a decoder is not supported")
        raise ModelError(f"{name} {value!r} is not supported; allowed is {allowed[0]!r}")


def length_limit(
    asked: int | None, config: PretrainedConfig, tokenizer_limit: int, anatomy: Anatomy | None = None
) -> int:
    """Maximum number of tokens per example: `asked`, limited by the model and its tokenizer.

    Raises:
        ModelError: `asked` leaves no room for a token between the two special tokens, or the model or its
            tokenizer none for any.
    """
    refuse_short(asked)
    anatomy = anatomy or anatomy_for(config)
    positions = int(config.max_position_embeddings) - anatomy.positions_lost
    if anatomy.positions_follow_padding:
        positions -= int(config.pad_token_id) + 1
    limit = int(min(limit for limit in (asked, positions, tokenizer_limit) if limit is not None))
    if limit < 1:
        raise ModelError(must_be("max_length", "at least 1", limit))
    return limit


def refuse_short(asked: int | None) -> None:
    """Refuse a limit that leaves no room for a token between the two special tokens.

    Raises:
        ModelError: it is one.
    """
    if asked is not None and asked < 3:
        raise ModelError(must_be("max_length", "at least 3", asked))
