"""One interface to both engines: variants in, outputs out. A runner belongs to one lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.models.packed import can_pack, pack_maps

from .lanes import twin
from .outputs import Arrays, batch_outputs
from .pairs import pair_logits
from .request import AblationRequest


class Runner(Protocol):
    """A model in one precision, for the exclusive use of one lane."""

    def outputs(
        self, items: np.ndarray, masks: np.ndarray, tokens_per_pass: int, each_pass: Callable[[], None]
    ) -> Arrays:
        """The outputs of every variant ``[variants, sites]`` for one batch; see `batch_outputs`."""
        ...

    def pairs(
        self, items: np.ndarray, masks: np.ndarray, tokens_per_pass: int, each_pass: Callable[[], None]
    ) -> np.ndarray:
        """Logits ``[pairs, labels]`` of an item and a variant each; see `pair_logits`."""
        ...


class PackedRunner:
    """A model that the packed engine runs."""

    def __init__(self, request: AblationRequest, model: AdaptedModel):
        self._request, self._model = request, model

    def outputs(
        self, items: np.ndarray, masks: np.ndarray, tokens_per_pass: int, each_pass: Callable[[], None]
    ) -> Arrays:
        """See `Runner.outputs`."""
        return batch_outputs(self._request, self._model, masks, items, tokens_per_pass, each_pass)

    def pairs(
        self, items: np.ndarray, masks: np.ndarray, tokens_per_pass: int, each_pass: Callable[[], None]
    ) -> np.ndarray:
        """See `Runner.pairs`."""
        return pair_logits(
            self._model,
            self._request.encoded,
            items,
            masks,
            tokens_per_pass=tokens_per_pass,
            norms=self._request.settings.layernorm,
            each_pass=each_pass,
        )


def make_runners(request: AblationRequest, dtype: torch.dtype, lanes: int) -> list[Runner]:
    """A runner for every lane, in a precision; all share the weights.

    Raises:
        ModelError: the general engine cannot run the model, or not exactly.
    """
    model = request.model
    if isinstance(model, AdaptedModel):
        model.scale_off(request.settings.strength)
        prepared = _prepared(model, request.device, dtype)
        return [PackedRunner(request, twin(prepared) if lane else prepared) for lane in range(lanes)]
    from .general import general_runners

    return list(general_runners(request, dtype, lanes))


def _prepared(model: AdaptedModel, device: torch.device, dtype: torch.dtype) -> AdaptedModel:
    own = next(model.parameters()).dtype
    if dtype in (torch.float32, own):
        model = model.to(device, dtype).eval()
    else:  # the checkpoint's model keeps its precision
        model = twin(model.to(device).eval(), dtype)
    if can_pack(model):
        model = twin(model)
        pack_maps(model, drop=dtype != own)
    return model
