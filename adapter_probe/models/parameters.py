"""The role and layer of each parameter of a model, determined by its name."""

from __future__ import annotations

from transformers import PreTrainedModel

from adapter_probe.models.bases.family import Anatomy

from .layer import ADAPTER
from .methods import ParameterRole


class ParameterRoles:
    """The roles and layers of one model's parameters.

    Args:
        base: the transformers model.
        anatomy: anatomy of the model.

    Attributes:
        layer_names: name of every layer's module in the encoder, bottom first; one that serves as several
            layers repeats.
    """

    def __init__(self, base: PreTrainedModel, anatomy: Anatomy):
        self._anatomy = anatomy
        self._encoder = f"{base.base_model_prefix}."
        self.layer_names = anatomy.layer_names(base.config)

    def role(self, name: str, is_norm: bool) -> ParameterRole:
        """A parameter's role, see `AdaptedModel.named_roles`."""
        if f".{ADAPTER}." in name:
            return "adapters"
        if is_norm:
            return "layernorms"
        if self._lies_in(name, self._anatomy.pooler):
            return "pooler"
        pretrained = name.startswith(self._encoder)
        return "base" if pretrained else "head"

    def layer(self, name: str) -> int:
        """A parameter's layer: -1 in the embeddings, the number of layers in all that follows the layers.

        Of the layers that share it, the lowest; -1 is also for what the encoder keeps for all of its layers.
        """
        after = self._lies_in(name, self._anatomy.pooler) or self._lies_in(name, self._anatomy.final_norm)
        if after or not name.startswith(self._encoder):
            return len(self.layer_names)
        inside = (i for i, layer in enumerate(self.layer_names) if self._lies_in(name, layer))
        return next(inside, -1)

    def _lies_in(self, name: str, part: str | None) -> bool:
        return part is not None and name.startswith(f"{self._encoder}{part}.")
