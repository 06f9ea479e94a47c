"""A base with a method in it, ready to be trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import nn

from adapter_probe.checkpoints.embedding import Embedding
from adapter_probe.models.methods import ParameterRole


class Known(NamedTuple):
    """What is known of a parameter.

    Attributes:
        role: its role.
        layer: -1 in the embeddings, the number of layers in what follows the layers; with a tuner of PEFT 0.
        name: in the base, or of an adapter in this project's format.
    """

    role: ParameterRole
    layer: int
    name: str


@dataclass(frozen=True)
class Prepared:
    """A base with a method in it, with the parameters that train chosen.

    Attributes:
        base: the model that is called; of PEFT, its own.
        inner: the model of Transformers in it.
        kind: kind of the task, or ``embedding``.
        n_layers: number of layers of the base.
        parameters: what is known of every parameter, by its name in `base`.
        layers: the layers, bottom first, a module that serves several repeated; empty where no frozen layer's
            outputs can be kept.
        below: the modules that compute the input of the first layer.
        averages: names of running averages in adapters, by those in `base`.
        reads_first: whether the head reads the first token of each text, not the last.
        first_alone: modules of the last layer that compute this token alone, see `computing_first`.
        embedding: what makes an embedding of the states; None of other models.
    """

    base: nn.Module
    inner: Any
    kind: str
    n_layers: int
    parameters: Mapping[str, Known]
    layers: Sequence[nn.Module] = ()
    below: Sequence[nn.Module] = ()
    averages: Mapping[str, str] = field(default_factory=dict)
    reads_first: bool = False
    first_alone: Sequence[nn.Module] = ()
    embedding: Embedding | None = None
