"""Description of a model family: where its modules are, and in which respects it is special."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from adapter_probe.errors import ModelError

from .attention import Attention
from .parts import LayerNames

HeadStep = str | Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Anatomy:
    """One family: names relative to the encoder (`PreTrainedModel.base_model`) unless said otherwise.

    Attributes:
        model_types: the `config.model_type` values that this row serves.
        head: what turns the hidden state at the position that the head reads into logits, in order: dotted
            names of modules, relative to the whole model, or functions of ``[rows, features]``. A module
            named in `reads_sequence` takes ``[rows, positions, hidden]`` and reads position 0 itself; the
            others take ``[rows, features]``.
        reads_sequence: the entries of `head` that index the sequence themselves.
        span_head: what turns every position's hidden state into start and end logits, in the family's class
            for question answering; the last is a linear map.
        tag_head: the same for the logits of tags, in its class for token classification.
        embeddings: the module that takes token ids; with `token_types` also `token_type_ids`.
        projection: a map from embedding width to hidden width.
        norms: LayerNorms outside the layers, `final_norm` aside.
        final_norm: the LayerNorm between the last layer and the head.
        pooler: a pooler that is part of the head.
        may_lack: names in `norms` and `projection` that are optional.
        positions_follow_padding: position numbers begin at `pad_token_id` + 1, so that many are lost.
        positions_lost: number of positions that are never used.
        layers: pattern of the layers' names, in which {} is replaced by the number.
        layer_groups: name in the configuration of the number of layer modules, if there are fewer modules
            than layers, each shared by adjacent layers; {} in `layers` is then the number of the module.
        pre_norm: whether sublayers normalise their input instead of their residual sum.
        attention: the class of attention.
        layer: the names inside a layer.
        allowed: configuration fields with their supported values.
    """

    model_types: tuple[str, ...]
    head: tuple[HeadStep, ...]
    reads_sequence: tuple[str, ...] = ()
    span_head: tuple[str, ...] = ("qa_outputs",)
    tag_head: tuple[str, ...] = ("dropout", "classifier")
    embeddings: str = "embeddings"
    token_types: bool = True
    projection: str | None = None
    norms: tuple[str, ...] = ("embeddings.LayerNorm",)
    final_norm: str | None = None
    pooler: str | None = None
    may_lack: tuple[str, ...] = ()
    positions_follow_padding: bool = False
    positions_lost: int = 0
    layers: str = "encoder.layer.{}"
    layer_groups: str | None = None
    pre_norm: bool = False
    attention: type[Attention] = Attention
    layer: LayerNames = field(default_factory=LayerNames)
    allowed: tuple[tuple[str, tuple[object, ...]], ...] = ()

    def layer_names(self, config: object) -> tuple[str, ...]:
        """Dotted name of every layer's module, bottom first; a module that serves several layers repeats."""
        n_layers = int(config_value(config, "num_hidden_layers"))
        n_modules = n_layers if self.layer_groups is None else int(config_value(config, self.layer_groups))
        # As in the code of shared layers, whose groups need not be of equal size.
        return tuple(self.layers.format(int(i / (n_layers / n_modules))) for i in range(n_layers))


def config_value(config: object, name: str) -> Any:
    """A field that an anatomy names.

    Raises:
        ModelError: the configuration has no such field.
    """
    value = getattr(config, name, None)
    if value is None:
        raise ModelError(f"{type(config).__name__} has no {name!r}; the anatomy does not fit the model")
    return value
