"""A model that trains: a base with a method, run by the forward of Transformers."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adapter_probe.data.encoding import Encoded, rows_of
from adapter_probe.data.packing import PackedBatch, in_batches
from adapter_probe.errors import ModelError
from adapter_probe.kinds.table import about_kind
from adapter_probe.models.adapters.bottleneck import TokenBatchNorm
from adapter_probe.models.methods import ParameterRole

from .forward import PaddedRows, computing_first, pad_rows, pair_rows
from .own_methods import Prepared

TOKENS_PER_BATCH = 4096  # in evaluation


class TrainingModel(nn.Module):
    """A base of which some parameters train.

    Frozen layers below all trained parameters run without dropout, so that their outputs are the same in
    every epoch. A frozen layer above a trained one keeps its dropout.

    Attributes:
        is_tuned: whether a tuner of PEFT trains, which is saved in PEFT's format.
        n_layers: number of layers of the base.
        lowest_trained_layer: the lowest layer with a trained parameter; -1 for the embeddings, and where the
            layers are not known; the number of layers if only what follows them trains.
        reads_all_positions: whether the head reads every token.
    """

    def __init__(self, prepared: Prepared):
        super().__init__()
        self.base: Any = prepared.base
        self.is_tuned = prepared.base is not prepared.inner
        self.n_layers = prepared.n_layers
        self._prepared = (prepared,)  # in a tuple: no submodules of its own
        self.reads_all_positions = about_kind(prepared.kind).reads_all
        self._config = prepared.inner.config.get_text_config()
        self._pad = self._config.pad_token_id
        self._has_types = "token_type_ids" in inspect.signature(prepared.inner.forward).parameters
        known = prepared.parameters
        trained = [known[n].layer for n, p in self.base.named_parameters() if p.requires_grad]
        self.lowest_trained_layer = min(trained) if prepared.layers else -1
        self._batch_norms = [m for m in self.base.modules() if isinstance(m, TokenBatchNorm)]
        self._computes_again = False  # the states inside layers, in the backward pass

    @property
    def layers(self) -> Sequence[nn.Module]:
        """The layers, bottom first, a module that serves several repeated; empty if they are not known."""
        return self._prepared[0].layers

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.base.parameters()).device

    def named_roles(self) -> Iterator[tuple[ParameterRole, str, nn.Parameter]]:
        """Every parameter once, as (role, name in the base, parameter).

        Roles: ``adapters`` (with what is inside them), ``layernorms`` (the base's), ``pooler``, ``head`` and
        ``base``; with a tuner of PEFT only ``adapters``, ``head`` and ``base``.
        """
        for name, parameter in self.base.named_parameters():
            known = self._prepared[0].parameters[name]
            yield known.role, known.name, parameter

    def named_delta(self) -> dict[str, Tensor]:
        """Every tensor that training changes, by its name in this project's format, or in PEFT's model.

        These are the parameters that train, and the running averages inside adapters with batch
        normalisation.
        """
        trained = {name: p for name, p in self.base.named_parameters() if p.requires_grad}
        if self.is_tuned:
            return trained
        known, averages = self._prepared[0].parameters, self._prepared[0].averages
        found: dict[str, Tensor] = {known[name].name: parameter for name, parameter in trained.items()}
        return found | {averages[n]: buffer for n, buffer in self.base.named_buffers() if n in averages}

    def saved(self) -> dict[str, Tensor]:
        """The tensors that are written, by their names in the file."""
        if not self.is_tuned:
            return self.named_delta()
        from .peft_tuners import saved_by_peft  # whose import takes seconds

        return saved_by_peft(self.base)

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put tensors of `named_delta` into the model."""
        for name, tensor in self.named_delta().items():
            tensor.copy_(tensors[name])

    def train(self, mode: bool = True) -> TrainingModel:
        """Set training or evaluation mode; what lies below all trained layers stays in evaluation mode."""
        super().train(mode)
        if self.lowest_trained_layer >= 0:
            for module in (*self._prepared[0].below, *self.layers[: self.lowest_trained_layer]):
                module.eval()
        return self

    def save_memory(self) -> None:
        """Compute the states inside the layers again in the backward pass, in place of keeping them.

        Raises:
            ModelError: Transformers does not have this for the model, or statistics of batches would count
                each batch twice.
        """
        if self._batch_norms:
            raise ModelError(
                "--checkpointing is not possible with norm 'batchnorm', which would count every batch twice"
            )
        model = self._prepared[0].inner
        if not model.supports_gradient_checkpointing:
            raise ModelError(
                f"a {type(model).__name__} has no gradient checkpointing; leave out --checkpointing"
            )
        # Its name changed in Transformers 5.
        enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
        enable({"use_reentrant": False})
        self._computes_again = True

    def forward(self, batch: PackedBatch) -> Tensor:
        """Outputs in the batch's packed order.

        Returns:
            ``[examples, labels]``; in question answering ``[tokens, 2]``,
            start and end; of tags ``[tokens, tags]``; of a language model ``[read, vocabulary]``, see
            `PackedBatch.read`.
        """
        if about_kind(self._prepared[0].kind).is_language_model:
            return self._next_tokens(batch)
        rows = self._rows(batch)
        return self._read_out(self._compute(rows), rows)

    def evaluate(self, encoded: Encoded) -> np.ndarray:
        """Logits of a dataset, in its order; leaves the model in evaluation mode.

        Returns:
            float32 ``[examples, labels]``; where the head reads all positions ``[tokens, 2]``, one example's
            tokens after the other's.
        """
        self.eval()
        each = encoded.lengths if self.reads_all_positions else np.ones_like(encoded.lengths)
        start = np.concatenate([[0], np.cumsum(each)])  # [examples + 1], rows of the logits
        logits: np.ndarray | None = None
        with torch.inference_mode():
            for batch in in_batches(encoded, TOKENS_PER_BATCH, self.device):
                out = self(batch).float().cpu().numpy()
                if logits is None:
                    logits = np.empty((start[-1], out.shape[1]), np.float32)
                logits[rows_of(start, batch.index)] = out
        assert logits is not None, "a dataset has at least one example"
        return logits

    def _rows(self, batch: PackedBatch) -> PaddedRows:
        """The rows of a batch.

        A base without a padding token gets one that no text of the batch ends with: a head that looks for the
        last token that is no padding then finds the end of every text.
        """
        padding = self._pad or 0
        if self._pad is None and not self.reads_all_positions:
            ends = set(batch.input_ids[batch.last].tolist())
            padding = next(token for token in itertools.count() if token not in ends)
        return pad_rows(batch, padding, self._has_types)

    def _compute(self, rows: PaddedRows) -> Any:
        for norm in self._batch_norms:
            norm.counted = rows.inside
        self._config.pad_token_id = rows.padding
        first = () if self._computes_again else self._prepared[0].first_alone
        try:
            with computing_first(self.layers, first) if first else nullcontext():
                return self.base(**rows.inputs)
        finally:
            self._config.pad_token_id = self._pad

    def _read_out(self, out: Any, rows: PaddedRows) -> Tensor:
        if "start_logits" in out:
            return rows.packed(torch.stack([out.start_logits, out.end_logits], dim=-1))  # [tokens, 2]
        logits: Tensor = out.logits
        return rows.packed(logits) if self.reads_all_positions else logits  # [tokens, tags]

    def _next_tokens(self, batch: PackedBatch) -> Tensor:
        """Logits ``[read, vocabulary]`` of the tokens after the positions that are read."""
        padding = self._pad or 0
        if batch.sources is not None:
            rows = pair_rows(batch, padding)
        else:
            rows = pad_rows(batch, padding, with_types=False)
        inputs: dict[str, Any] = rows.inputs
        if not self._adds_tokens:  # whose tokens PEFT gives the model as a cache
            inputs["use_cache"] = False
        assert batch.read is not None, "a language model's batch says what is scored"
        with self._only(rows.places[batch.read], rows.length):
            logits: Tensor = self.base(**inputs).logits
        return logits[0]

    @contextmanager
    def _only(self, places: Tensor, length: int) -> Iterator[None]:
        """Inside, the output embedding is given the states at some places alone, ``[1, read, hidden]``.

        Trained tokens before the text, as of prompt tuning, shift the places in their rows of `length`.
        """
        model = self._prepared[0].inner

        def pick(module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            states = given[0]
            # FSMT embeds the decoder's tokens with it, ProphetNet predicts several each
            if states.dim() != 3:
                raise ModelError(f"a {type(model).__name__} is not trained here; train it with PEFT")
            return (states[:, -length:].flatten(0, 1)[places][None], *given[1:])

        handle = model.get_output_embeddings().register_forward_pre_hook(pick)
        try:
            yield
        finally:
            handle.remove()

    @property
    def _adds_tokens(self) -> bool:
        """Whether a method of PEFT puts trained tokens before the text."""
        return bool(getattr(getattr(self.base, "active_peft_config", None), "is_prompt_learning", False))
