"""Logits of texts by an open checkpoint, outside a study."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.checkpoints.opened_peft import OpenedPeft
from adapter_probe.data.encoding import Encoded, encode
from adapter_probe.data.examples import Examples
from adapter_probe.data.labels import Split
from adapter_probe.replay.recording import base_of

from .general import GeneralRunner, all_logits, general_runners
from .general_model import model_of
from .plan import choose_tokens_per_pass, cut_batches
from .request import AblationRequest


class OpenModel:
    """An open checkpoint, ready to run.

    Args:
        opened: the checkpoint.

    Attributes:
        opened: the checkpoint.
        model: its model.
        base: the model of transformers, whose own forward applies the adapters.
    """

    def __init__(self, opened: OpenedPeft, device: torch.device):
        self.opened = opened
        self._prepared: GeneralRunner | None = None
        if opened.quantised is None:
            opened.model.to(device)
        self.base = base_of(opened.model)
        self.model = model_of(opened, self._encoded(("a",), None))

    def _encoded(self, first: Sequence[str], second: Sequence[str] | None) -> Encoded:
        split = Split(tuple(first), second and tuple(second), np.zeros(len(first), np.int64), "texts", "")
        return encode(self.opened.tokenizer, split, self.opened.description.max_length)

    def variants(
        self,
        first: Sequence[str],
        second: Sequence[str] | None,
        masks: np.ndarray,
        tokens_per_pass: int | None,
    ) -> np.ndarray:
        """Logits of texts, or of pairs of texts, under every mask.

        Args:
            first: the texts, or the first ones of the pairs.
            second: the second texts of the pairs.
            masks: bool ``[variants, sites]``.
            tokens_per_pass: see `choose_tokens_per_pass`.

        Returns:
            float32 ``[variants, examples, labels]``.

        Raises:
            DataError: a text has no tokens.
        """
        encoded, model = self._encoded(first, second), self.model
        rows = Split((), None, np.zeros(len(encoded), np.int64), "texts", "")
        metric, examples = self.opened.description.task.metric, Examples(rows, encoded)
        request = AblationRequest(self.opened, examples, metric, AblationSettings(), model.device)
        if not model.has_adapter.any():
            return all_logits(request, model.module)[None].repeat(len(masks), axis=0)
        width = choose_tokens_per_pass(tokens_per_pass, model.device.type, model.inner_size)
        if self._prepared is None:
            self._prepared = next(general_runners(request, model.dtype, 1))
        runner = self._prepared.on(request)
        order = np.argsort(encoded.lengths, kind="stable")
        batches = cut_batches(encoded.lengths, order, width)
        logits = [runner.outputs(items, masks, width, lambda: None)["logits"] for items in batches]
        return np.concatenate(logits, axis=1)[:, np.argsort(np.concatenate(batches))]
