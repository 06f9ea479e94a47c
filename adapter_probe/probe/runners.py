"""One interface to both engines: variants in, outputs out. A runner belongs to one lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from adapter_probe.data.answers import decode_windows
from adapter_probe.data.packing import pack
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.models.packed import can_pack, pack_maps

from .lanes import twin
from .outputs import Arrays
from .pairs import pair_logits
from .request import AblationRequest
from .tree import forward_variants


class Runner(Protocol):
    """A model in one precision, for the exclusive use of one lane."""

    def outputs(
        self, items: np.ndarray, masks: np.ndarray, tokens_per_pass: int, each_pass: Callable[[], None]
    ) -> Arrays:
        """The outputs of every variant for one batch of items, in the order given.

        Args:
            items: int ``[items]``.
            masks: bool ``[variants, sites]``.
            tokens_per_pass: see `forward_variants`.
            each_pass: see `forward_variants`.
        """
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
        request, encoded = self._request, self._request.encoded
        batch, norms = pack(encoded, items).to(request.device), request.settings.layernorm
        out = forward_variants(
            self._model, batch, masks, tokens_per_pass=tokens_per_pass, norms=norms, each_pass=each_pass
        )
        logits = out.float().cpu().numpy()
        if (words := request.examples.words) is not None:
            examples = zip(batch.index[:, None], batch.rows)
            tags = [words.predicted(item, logits[:, None, own]) for item, own in examples]
            found: Arrays = {"tags": np.concatenate(tags, axis=1)}
        elif (windows := request.examples.windows) is not None:
            found = vars(decode_windows(windows, batch.index, batch.rows, logits))
        else:
            found = {"logits": logits}
        packed_place = {item: place for place, item in enumerate(batch.index.tolist())}
        order = [packed_place[item] for item in items.tolist()]
        return {name: values[:, order] for name, values in found.items()}

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
