"""Checkpoints in memory; apart from what loads them, which imports PEFT, in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from adapter_probe.data.spec import TaskSpec
from adapter_probe.errors import CheckpointError
from adapter_probe.models.adapters.imported import ImportedMethod
from adapter_probe.models.methods import Adapters
from adapter_probe.spans import Span

from .kinds import Head
from .native import Description

if TYPE_CHECKING:
    from peft import PeftModel
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from adapter_probe.replay.two_states import Difference

    from .embedding import Embedding

Opened = TypeVar("Opened", bound="OpenedPeft")

OWN = ".adapter."
"""In the names of an adapter's tensors in this project's format."""


@dataclass(frozen=True)
class OpenedPeft:
    """A checkpoint on its base, loaded by PEFT.

    Attributes:
        model: the `PeftModel` in evaluation mode on the CPU: one adapter, active and not merged. The model of
            transformers is ``model.get_base_model()``.
        tokenizer: tokenizer of the base, or that of the checkpoint.
        description: description of the checkpoint, with the base that was actually used.
        head: what the model computes. The task's kind of a ``seq2seq`` model is ``causal``.
        trained: names of the parameters in the checkpoint's file.
        missing: names of the parameters that the base lacks, all of which are in the file.
        notes: remarks on how it was read, one sentence each.
        own_tokenizer: whether the tokenizer is the checkpoint's, which encodes differently from the base's.
        quantised: the method of the base's quantisation, or None.
        alone: whether a text must not share a batch with others, because its outputs depend on them.
        dequantised: whether the base is stored quantised, and was dequantised while it was loaded.
        embedding: of a model of embeddings, what makes them of its outputs; else None.
    """

    model: PeftModel
    tokenizer: PreTrainedTokenizerBase
    description: Description
    head: Head
    trained: frozenset[str]
    missing: frozenset[str]
    folder: Path
    notes: tuple[str, ...] = ()
    own_tokenizer: bool = False
    quantised: str | None = None
    alone: bool = False
    dequantised: bool = False
    embedding: Embedding | None = None

    def with_task(self: Opened, task: TaskSpec) -> Opened:
        """The same checkpoint with another task, such as one that its library does not record."""
        return replace(self, description=replace(self.description, task=task))


@dataclass(frozen=True)
class OpenedPlaced(OpenedPeft):
    """A checkpoint of AdapterHub, of the paper's code or of this project.

    Attributes:
        tensors: what differs from the base, by its names in this project's format.
        layer_names: the layers' modules in the whole model, bottom first.
        shapes: of all parameters, by their names in this project's format.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    layer_names: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def without(self, span: Span) -> tuple[Adapters | ImportedMethod, dict[str, Tensor]]:
        """The method and the tensors without the adapters of a span's layers.

        Raises:
            CheckpointError: nothing would be left.
        """
        method, layers = self.description.method, range(span.first, span.last + 1)
        assert isinstance(method, Adapters | ImportedMethod), "nothing else is put into a model"
        gone = tuple(f"{self.layer_names[layer]}." for layer in layers)
        kept = {n: t for n, t in self.tensors.items() if not (OWN in n and n.startswith(gone))}
        if not kept:
            raise CheckpointError(f"checkpoint {self.folder} would have nothing left; use its base instead")
        if isinstance(method, Adapters):
            return replace(method, skip_layers=tuple(sorted({*method.skip_layers, *layers}))), kept
        bottlenecks = tuple(spec for spec in method.bottlenecks if spec.layer not in layers)
        inner = tuple(spec for spec in method.inner if not f"{spec.module}.".startswith(gone))
        return replace(method, bottlenecks=bottlenecks, inner=inner), kept


@dataclass(frozen=True)
class OpenedFinetuned(OpenedPlaced):
    """A fine-tuned model whose layers also hold the tensors of its base.

    Attributes:
        difference: where the two differ.
        others: the base's tensors in place of those outside the layers that differ.
    """

    difference: Difference | None = None
    others: Mapping[str, Tensor] = field(default_factory=dict)
