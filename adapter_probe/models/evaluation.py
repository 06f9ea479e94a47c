"""Plain evaluation: every adapter on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from adapter_probe.data.encoding import Encoded
from adapter_probe.data.packing import PackedBatch, cut_by_tokens, pack

from .methods import ParameterRole

TOKENS_PER_BATCH = 4096


class Trainable(Protocol):
    """What the training loop asks of a model: `AdaptedModel`, or a base with a tuner of PEFT."""

    base: Any
    lowest_trained_layer: int

    @property
    def layers(self) -> Sequence[Any]:
        """The Transformer layers that it computes itself, bottom first."""

    @property
    def n_layers(self) -> int:
        """Number of layers of the base."""

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states."""

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""

    @property
    def reads_all_positions(self) -> bool:
        """Whether the head reads every token instead of only one of each example."""

    def __call__(self, *batch: Any) -> Any:
        """Outputs of a batch in its packed order."""

    def to(self, device: torch.device) -> Any:
        """Move to a device."""

    def train(self, mode: bool = True) -> Any:
        """Set training or evaluation mode."""

    def eval(self) -> Any:
        """Set evaluation mode."""

    def frozen_features(self, batch: PackedBatch) -> Tensor:
        """The input of the lowest trained layer, where layers below it are frozen."""

    def forward_from(self, features: Tensor, batch: PackedBatch) -> Tensor:
        """The outputs from these features."""

    def named_delta(self) -> dict[str, Tensor]:
        """Every tensor that training changes, by its name."""

    def named_roles(self) -> Iterator[tuple[ParameterRole, str, nn.Parameter]]:
        """Every parameter once, as (role, name in the base, parameter)."""


@runtime_checkable
class Saving(Protocol):
    """A model that is saved in another library's format."""

    def saved(self) -> dict[str, Tensor]:
        """The tensors of its file, by their names there."""

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Put tensors of such a file into the model."""


def evaluate(
    model: Trainable, encoded: Encoded, forward: Callable[[PackedBatch], Tensor] | None = None
) -> np.ndarray:
    """Logits of a dataset, in its order; leaves the model in evaluation mode.

    Args:
        model: to evaluate.
        encoded: the dataset.
        forward: function that computes a batch's outputs; by default the model.

    Returns:
        float32 ``[examples, labels]``; where the head reads all positions ``[tokens, 2]``, one example's
        tokens after the other's.
    """
    model.eval()
    each = encoded.lengths if model.reads_all_positions else np.ones_like(encoded.lengths)
    start = np.concatenate([[0], np.cumsum(each)])  # [examples + 1], rows of the logits
    order = np.argsort(encoded.lengths, kind="stable")
    logits: np.ndarray | None = None
    with torch.inference_mode():
        for run in cut_by_tokens(encoded.lengths, order, TOKENS_PER_BATCH):
            batch = pack(encoded, run).to(model.device)
            out = (forward or model)(batch).float().cpu().numpy()
            if logits is None:
                logits = np.empty((start[-1], out.shape[1]), np.float32)
            logits[np.concatenate([np.arange(start[i], start[i + 1]) for i in batch.index])] = out
    assert logits is not None, "a dataset has at least one example"
    return logits
