"""A model that computes by the forward of Transformers, on rows that are padded or hold several examples."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from adapter_probe.errors import ModelError

if TYPE_CHECKING:
    from adapter_probe.data.packing import PackedBatch
    from adapter_probe.models.methods import ParameterRole


class PaddedModel(nn.Module):
    """A base of Transformers, with or without a tuner of PEFT in it.

    Args:
        base: the model; of PEFT, its own.
        kind: kind of task.
        n_layers: number of layers.
        inner: the model of Transformers in it.

    Attributes:
        base: the model.
        layers: empty; no layer is computed here.
        n_layers: number of layers of the base.
        lowest_trained_layer: -1 where nothing is computed once and kept.
        reads_all_positions: whether the head reads every token.
        joins: whether a row holds several examples; only of a language model.
    """

    layers: tuple[Any, ...] = ()
    lowest_trained_layer = -1

    def __init__(self, base: nn.Module, kind: str, n_layers: int, inner: Any):
        super().__init__()
        self.base: Any = base
        self.n_layers, self._kind, self._inner = n_layers, kind, [inner]  # in a list: no submodule of its own
        self.reads_all_positions = kind in ("extractive", "tokens", "causal")
        self.joins = False
        self._pad = inner.config.get_text_config().pad_token_id

    @property
    def hidden_size(self) -> int:
        """Width of the base's hidden states."""
        return int(self._inner[0].config.get_text_config().hidden_size)

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.base.parameters()).device

    def named_roles(self) -> Iterator[tuple[ParameterRole, str, nn.Parameter]]:
        """Every parameter once, as (role, name in the base, parameter); see `AdaptedModel.named_roles`."""
        raise NotImplementedError

    def named_delta(self) -> dict[str, Tensor]:
        """Every tensor that training changes, by its name in the model."""
        return {name: p for name, p in self.base.named_parameters() if p.requires_grad}

    def frozen_features(self, batch: PackedBatch) -> Tensor:
        """Nothing is frozen below all that trains; see `lowest_trained_layer`."""
        raise NotImplementedError

    def forward_from(self, features: Tensor, batch: PackedBatch) -> Tensor:
        """See `frozen_features`."""
        raise NotImplementedError

    def save_memory(self) -> None:
        """Compute the states inside the layers again in the backward pass, in place of keeping them.

        Raises:
            ModelError: Transformers does not have this for the model.
        """
        model = self._inner[0]
        if not model.supports_gradient_checkpointing:
            raise ModelError(
                f"a {type(model).__name__} has no gradient checkpointing; leave out --checkpointing"
            )
        # Its name changed in Transformers 5.
        enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
        enable({"use_reentrant": False})

    def forward(self, batch: PackedBatch) -> Tensor:
        """Logits in the batch's packed order, of a language model at the positions `PackedBatch.read`."""
        if self._kind == "causal":
            return self._next_tokens(batch)
        padding = self.padding(batch)
        inputs, inside = self.pad_rows(batch, padding)
        return self.read_out(self.compute(inputs, inside, padding), inside)

    def pad_rows(self, batch: PackedBatch, padding: int) -> tuple[dict[str, Tensor], Tensor]:
        """The base's arguments, an example a row, and which tokens are no padding ``[rows, length]``."""
        lengths = torch.tensor([group.length for group in batch.groups for _ in range(group.n)])
        inside = (torch.arange(int(lengths.max())) < lengths[:, None]).to(batch.input_ids.device)
        ids = torch.full_like(inside, padding, dtype=torch.long)
        ids[inside] = batch.input_ids[: batch.n_tokens]  # tokens [examples, length], laid end to end
        inputs = {"input_ids": ids, "attention_mask": inside.long()}
        if batch.token_type_ids is not None:
            types = torch.zeros_like(ids)
            types[inside] = batch.token_type_ids[: batch.n_tokens]
            inputs["token_type_ids"] = types
        return inputs, inside

    def padding(self, batch: PackedBatch) -> int:
        """The padding token; of a base without one, a token that no text of the batch ends with.

        A head that looks for the last token that is not the padding token then finds the end of every text.
        """
        if self._pad is not None or self.reads_all_positions:
            return self._pad or 0
        ends = set(batch.input_ids[batch.last].tolist())
        return next(token for token in itertools.count() if token not in ends)

    def compute(self, inputs: dict[str, Tensor], inside: Tensor, padding: int) -> Any:
        """The base's outputs for rows of `pad_rows`."""
        config = self._inner[0].config.get_text_config()
        config.pad_token_id = padding
        try:
            return self.base(**inputs)
        finally:
            config.pad_token_id = self._pad

    def read_out(self, out: Any, inside: Tensor) -> Tensor:
        """The logits in packed order, of the base's outputs for rows of `pad_rows`."""
        if self._kind == "extractive":
            return torch.stack([out.start_logits, out.end_logits], dim=-1)[inside]  # [tokens, 2]
        logits: Tensor = out.logits
        return logits[inside] if self.reads_all_positions else logits  # [tokens, tags]

    def _next_tokens(self, batch: PackedBatch) -> Tensor:
        """Logits ``[read, vocabulary]`` of the tokens after the positions that are read."""
        inputs, row, column, width = self._texts(batch) if batch.sources is None else self._pairs(batch)
        if not self._adds_tokens:  # whose tokens PEFT gives the model as a cache
            inputs["use_cache"] = False
        with self._only(row, column, width):
            logits: Tensor = self.base(**inputs).logits
        return logits[0]

    def _texts(self, batch: PackedBatch) -> tuple[dict[str, Any], Tensor, Tensor, int]:
        """The base's arguments; row and column of the positions that are read; and the width of rows."""
        lengths = [group.length for group in batch.groups for _ in range(group.n)]
        rows, begins, width = _joined(lengths) if self.joins else _alone(lengths)
        device = batch.input_ids.device
        sizes = torch.tensor(lengths, device=device)
        owner = torch.repeat_interleave(torch.arange(len(lengths), device=device), sizes)  # [tokens]
        place = torch.arange(len(owner), device=device) - batch.first[owner]
        row = torch.tensor(rows, device=device)[owner]
        column = torch.tensor(begins, device=device)[owner] + place
        shape = (max(rows) + 1, width)
        ids = torch.full(shape, self._pad or 0, device=device)
        ids[row, column] = batch.input_ids
        of = torch.full(shape, -1, device=device)
        of[row, column] = owner
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": (of >= 0).long()}
        if self.joins:
            inputs["attention_mask"] = self._apart(of)
            inputs["position_ids"] = torch.zeros_like(ids)
            inputs["position_ids"][row, column] = place
        assert batch.read is not None, "a language model's batch says what is scored"
        return inputs, row[batch.read], column[batch.read], width

    def _pairs(self, batch: PackedBatch) -> tuple[dict[str, Any], Tensor, Tensor, int]:
        """As `_texts`, of an encoder-decoder, whose decoder reads all but the last token."""
        assert batch.sources is not None, "the encoder reads the beginning of each example"
        assert batch.read is not None, "the batch says what is scored"
        lengths = np.array([group.length for group in batch.groups for _ in range(group.n)])
        sources = torch.from_numpy(batch.sources).to(batch.first.device)
        written = torch.from_numpy(lengths - batch.sources - 1).to(batch.first.device)
        ids, inside = self._cut(batch, batch.first, sources, int(batch.sources.max()))
        width = int((lengths - batch.sources).max()) - 1
        decoder_ids, _ = self._cut(batch, batch.first + sources, written, width)
        row = torch.searchsorted(batch.first, batch.read, right=True) - 1
        inputs = {"input_ids": ids, "attention_mask": inside.long(), "decoder_input_ids": decoder_ids}
        return inputs, row, batch.read - (batch.first + sources)[row], width

    def _cut(self, batch: PackedBatch, first: Tensor, sizes: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Rows of tokens ``[examples, width]`` from `first` on, padded, and which are no padding."""
        columns = torch.arange(width, device=first.device)
        inside = columns < sizes[:, None]
        ids = torch.full(inside.shape, self._pad or 0, device=first.device)
        ids[inside] = batch.input_ids[(first[:, None] + columns)[inside]]
        return ids, inside

    def _apart(self, of: Tensor) -> Tensor:
        """Mask ``[rows, 1, columns, columns]``: a token sees itself and the earlier ones of its example."""
        columns = of.shape[1]
        earlier = torch.ones(columns, columns, dtype=torch.bool, device=of.device).tril()
        sees = (of[:, :, None] == of[:, None, :]) & earlier
        dtype = self._inner[0].dtype
        if torch.is_autocast_enabled(of.device.type):
            dtype = torch.get_autocast_dtype(of.device.type)
        hidden = torch.zeros(sees.shape, dtype=dtype, device=of.device)
        return hidden.masked_fill_(~sees, torch.finfo(dtype).min)[:, None]

    @contextmanager
    def _only(self, row: Tensor, column: Tensor, width: int) -> Iterator[None]:
        """Inside, the output embedding is given the states at these places alone, ``[1, places, hidden]``.

        Trained tokens before the text, as of prompt tuning, shift the places.
        """

        def pick(module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            states = given[0]
            if (
                states.dim() != 3
            ):  # FSMT embeds the decoder's tokens with it, ProphetNet predicts several each
                raise ModelError(f"a {type(self._inner[0]).__name__} is not trained here; train it with PEFT")
            return (states[row, column + states.shape[1] - width][None], *given[1:])

        handle = self._inner[0].get_output_embeddings().register_forward_pre_hook(pick)
        try:
            yield
        finally:
            handle.remove()

    @property
    def _adds_tokens(self) -> bool:
        """Whether a method of PEFT puts trained tokens before the text."""
        return bool(getattr(getattr(self.base, "active_peft_config", None), "is_prompt_learning", False))

    def join_examples(self, batch: PackedBatch, tolerance: float) -> None:
        """Put several examples into a row from now on, once it is seen that they do not see each other.

        Args:
            batch: some examples.
            tolerance: of logits, relative to their largest.

        Raises:
            ModelError: the outputs depend on the other examples of a row.
        """
        what = f"a {type(self._inner[0]).__name__}"
        if self._adds_tokens:
            raise ModelError("--packing is not possible with a method that puts tokens before every text")
        if "position_ids" not in inspect.signature(self._inner[0].forward).parameters:
            raise ModelError(
                f"{what} takes no positions, so examples cannot share a row; leave out --packing"
            )
        self.eval()
        with torch.no_grad():
            alone = self(batch).float()
            self.joins = True
            together = self(batch).float()
        if (alone - together).abs().max() > tolerance * alone.abs().max():
            raise ModelError(f"{what} does not keep examples apart that share a row; leave out --packing")


def _alone(lengths: list[int]) -> tuple[list[int], list[int], int]:
    """Every example in a row of its own: rows, columns of the first tokens, and width."""
    return list(range(len(lengths))), [0] * len(lengths), max(lengths)


def _joined(lengths: list[int]) -> tuple[list[int], list[int], int]:
    """Examples in as few rows as first-fit finds, longest first; as `_alone`."""
    width = max(lengths)
    rows, begins, ends = [0] * len(lengths), [0] * len(lengths), list[int]()
    for number in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        row = next((r for r, end in enumerate(ends) if end + lengths[number] <= width), len(ends))
        if row == len(ends):
            ends.append(0)
        rows[number], begins[number] = row, ends[row]
        ends[row] += lengths[number]
    return rows, begins, width
