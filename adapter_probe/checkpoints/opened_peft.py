"""A checkpoint that PEFT loaded; apart from what loads it, because the import of PEFT takes seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from adapter_probe.data.spec import TaskSpec

from .description import Description
from .kinds import Head

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedTokenizerBase


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
        folder: the folder with its files.
        notes: remarks on how it was read, one sentence each.
        own_tokenizer: whether the tokenizer is the checkpoint's, which encodes differently from the base's.
        quantised: the method of the base's quantisation, or None.
        alone: whether a text must not share a batch with others, because its outputs depend on them.
        reason: why the general engine runs it, as the end of a sentence.
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
    reason: str = ""

    def with_task(self, task: TaskSpec) -> OpenedPeft:
        """The same checkpoint with another task, such as one that its library does not record."""
        return replace(self, description=replace(self.description, task=task))
