"""One base in memory for several checkpoints, which share all unchanged weights."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from adapter_probe.errors import CheckpointError
from adapter_probe.replay.sharing import sharing

from .any_base import AnyLoaded, load_any_base
from .base import initialise, load_tokenizer
from .base_config import AnyBase


class SharedBase:
    """A base that is read once and used by any number of checkpoints.

    Every checkpoint receives a model with separate modules whose parameters are views of the single copy in
    memory. Parameters are copied before they are changed, see `AnyLoaded.shared`, so the base's weights stay
    available for the next checkpoint.

    Args:
        device: device of the weights.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._any: dict[tuple[object, ...], AnyLoaded] = {}

    def tokenizer(self, name: str, revision: str | None) -> PreTrainedTokenizerBase:
        """The base's tokenizer, read once; see `load_tokenizer`."""
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(name, revision)
        return self._tokenizer

    def load_any(
        self, found: AnyBase, cls: type[PreTrainedModel], n_outputs: int | None, dtype: torch.dtype
    ) -> AnyLoaded:
        """Like `load_any_base`, but uses the weights in memory if there are any, also for another head.

        Raises:
            CheckpointError: it is another base than the one in memory.
        """
        key = (found.name, found.revision, cls)
        if key not in self._any:
            loaded = load_any_base(found, cls, n_outputs, dtype)
            first = next(iter(self._any.values()), loaded).identity
            if loaded.identity.weights_sha256 != first.weights_sha256:
                raise CheckpointError(
                    f"the weights of base {found.name} differ from those of the base in memory, "
                    f"{first.name}; open the checkpoint separately"
                )
            if loaded.quantised is None:
                loaded.model.to(self._device)
            self._any[key] = loaded
        kept = self._any[key]
        model, missing = sharing(kept.model), kept.missing
        if n_outputs is not None and n_outputs != model.config.num_labels:
            resized = _resize_head(model, n_outputs)
            initialise(model, resized, seed=0)
            missing |= resized
        return replace(kept, model=model.requires_grad_(False), missing=missing, shared=True)


class BaseWithoutWeights(SharedBase):
    """Bases whose weights are not read, for what can be told from names and shapes."""

    def __init__(self) -> None:
        super().__init__(torch.device("meta"))

    def load_any(
        self, found: AnyBase, cls: type[PreTrainedModel], n_outputs: int | None, dtype: torch.dtype
    ) -> AnyLoaded:
        """See `load_any_base`."""
        return load_any_base(found, cls, n_outputs, dtype, weights=False)


def _resize_head(model: PreTrainedModel, n_outputs: int) -> frozenset[str]:
    """Change the number of outputs of the head; returns the names of new, uninitialised parameters."""
    model.config.num_labels = n_outputs
    with torch.device("meta"):
        wanted = type(model)(copy.deepcopy(model.config))
    if hasattr(model, "num_labels"):
        model.num_labels = n_outputs
    parameters = dict(model.named_parameters())
    device, dtype = model.device, model.dtype
    resized = {name for name, p in wanted.named_parameters() if p.shape != parameters[name].shape}
    for owner in {name.rpartition(".")[0] for name in resized}:
        model.set_submodule(owner, wanted.get_submodule(owner).to_empty(device=device).to(dtype))
    return frozenset(resized)
