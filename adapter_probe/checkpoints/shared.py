"""One base in memory for several checkpoints, which share all unchanged weights."""

from __future__ import annotations

from dataclasses import replace

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from adapter_probe.errors import CheckpointError
from adapter_probe.replay.sharing import sharing

from .any_base import AnyLoaded, load_any_base
from .base import load_tokenizer
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
        """Like `load_any_base`, but uses the weights in memory if there are any.

        Raises:
            CheckpointError: it is another base than the one in memory.
        """
        key = (found.name, found.revision, cls, n_outputs)
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
        return replace(self._any[key], model=sharing(self._any[key].model), shared=True)
