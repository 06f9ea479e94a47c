"""The modules of one model, found by its family's names."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adapter_probe.errors import ModelError

from .family import Anatomy, LayerNames


class _Rate:
    """A dropout probability that a module keeps as a number."""

    def __init__(self, owner: nn.Module, name: str):
        self._owner, self._name = owner, name

    @property
    def p(self) -> float:
        return float(getattr(self._owner, self._name))

    @property
    def training(self) -> bool:
        return self._owner.training


@dataclass(frozen=True)
class LayerParts:
    """One layer's modules, found by `LayerNames`; None for what the family does not have.

    Attributes:
        whole: the layer.
    """

    whole: nn.Module
    attention: nn.Module
    query: nn.Module | None
    key: nn.Module | None
    value: nn.Module | None
    qkv: nn.Module | None
    attention_dropout: nn.Dropout | _Rate
    attention_out: nn.Module
    attention_out_dropout: nn.Dropout | None
    attention_norm: nn.Module
    attention_site: nn.Module
    ffn_in: nn.Module
    ffn_gate: nn.Module | None
    activation: nn.Module
    ffn_out: nn.Module
    ffn_out_dropout: nn.Dropout | None
    ffn_norm: nn.Module
    ffn_site: nn.Module


def layer_parts(encoder: nn.Module, anatomy: Anatomy) -> list[LayerParts]:
    """The parts of every layer, bottom first; layers that share a module have the same parts.

    Raises:
        ModelError: a part is not where the anatomy says.
    """
    made: dict[str, LayerParts] = {}
    for name in anatomy.layer_names(encoder.config):
        if name not in made:
            made[name] = _parts_of(submodule(encoder, name), anatomy.layer)
    return [made[name] for name in anatomy.layer_names(encoder.config)]


def _parts_of(layer: nn.Module, names: LayerNames) -> LayerParts:
    found = {
        part: None if name is None else submodule(layer, name)
        for part, name in vars(names).items()
        if part != "attention_dropout"
    }
    owner, _, attribute = names.attention_dropout.rpartition(".")
    dropout = getattr(submodule(layer, owner), attribute, None)
    if dropout is None:
        raise _absent(layer, names.attention_dropout)
    if not isinstance(dropout, nn.Module):
        dropout = _Rate(submodule(layer, owner), attribute)
    return LayerParts(whole=layer, attention_dropout=dropout, **found)


def submodule(module: nn.Module, name: str) -> nn.Module:
    """The part that a dotted name leads to; "" is the module itself.

    Raises:
        ModelError: there is none.
    """
    try:
        return module.get_submodule(name)
    except AttributeError as error:
        raise _absent(module, name) from error


def _absent(module: nn.Module, name: str) -> ModelError:
    return ModelError(f"{type(module).__name__} has no part {name!r}; the anatomy does not fit the model")


def outer_norms(encoder: nn.Module, anatomy: Anatomy) -> list[nn.Module]:
    """The LayerNorms outside the layers."""
    names = (*anatomy.norms, *(() if anatomy.final_norm is None else (anatomy.final_norm,)))
    return [submodule(encoder, name) for name in names if _is_there(encoder, anatomy, name)]


def embedding_modules(encoder: nn.Module, anatomy: Anatomy) -> list[nn.Module]:
    """What makes the states that enter layer 0."""
    names = (anatomy.embeddings, anatomy.position_embeddings, anatomy.embedding_dropout, anatomy.projection)
    return [submodule(encoder, n) for n in names if n is not None and _is_there(encoder, anatomy, n)]


def _is_there(encoder: nn.Module, anatomy: Anatomy, name: str) -> bool:
    if name not in anatomy.may_lack:
        return True
    owner, _, attribute = name.rpartition(".")
    return getattr(submodule(encoder, owner), attribute, None) is not None


def embed(encoder: nn.Module, anatomy: Anatomy, input_ids: Tensor, token_type_ids: Tensor | None) -> Tensor:
    """Hidden states ``[examples, tokens, hidden]`` that enter layer 0, for rows without padding."""
    words = submodule(encoder, anatomy.embeddings)
    hidden = words(input_ids, token_type_ids=token_type_ids) if anatomy.token_types else words(input_ids)
    if anatomy.position_embeddings is not None:
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden = hidden + submodule(encoder, anatomy.position_embeddings)(positions)
    for name in (anatomy.embedding_dropout, anatomy.projection):
        if name is not None and _is_there(encoder, anatomy, name):
            hidden = submodule(encoder, name)(hidden)
    return hidden
