"""The embeddings, layers and outer LayerNorms of one encoder, found by its family's names."""

from __future__ import annotations

from torch import Tensor, nn

from .family import Anatomy
from .parts import LayerParts, find_parts, submodule


def layer_parts(encoder: nn.Module, anatomy: Anatomy) -> list[LayerParts]:
    """The parts of every layer, bottom first; layers that share a module have the same parts.

    Raises:
        ModelError: a part of the anatomy does not exist.
    """
    made: dict[str, LayerParts] = {}
    for name in anatomy.layer_names(encoder.config):
        if name not in made:
            made[name] = find_parts(submodule(encoder, name), anatomy.layer)
    return [made[name] for name in anatomy.layer_names(encoder.config)]


def outer_norms(encoder: nn.Module, anatomy: Anatomy) -> list[nn.Module]:
    """The LayerNorms outside the layers."""
    names = (*anatomy.norms, *(() if anatomy.final_norm is None else (anatomy.final_norm,)))
    return [submodule(encoder, name) for name in names if _is_there(encoder, anatomy, name)]


def embedding_modules(encoder: nn.Module, anatomy: Anatomy) -> list[nn.Module]:
    """The modules that compute the input of layer 0."""
    names = (anatomy.embeddings, anatomy.projection)
    return [submodule(encoder, n) for n in names if n is not None and _is_there(encoder, anatomy, n)]


def _is_there(encoder: nn.Module, anatomy: Anatomy, name: str) -> bool:
    if name not in anatomy.may_lack:
        return True
    owner, _, attribute = name.rpartition(".")
    return getattr(submodule(encoder, owner), attribute, None) is not None


def embed(
    encoder: nn.Module,
    anatomy: Anatomy,
    input_ids: Tensor,
    token_type_ids: Tensor | None,
) -> Tensor:
    """Hidden states ``[examples, tokens, hidden]`` that enter layer 0, for rows without padding.

    Args:
        encoder: the encoder.
        anatomy: anatomy of the encoder.
        input_ids: int64 ``[examples, tokens]``.
        token_type_ids: array of the same shape, or None.
    """
    words = submodule(encoder, anatomy.embeddings)
    hidden = words(input_ids, token_type_ids=token_type_ids) if anatomy.token_types else words(input_ids)
    if anatomy.projection is not None and _is_there(encoder, anatomy, anatomy.projection):
        hidden = submodule(encoder, anatomy.projection)(hidden)
    return hidden
