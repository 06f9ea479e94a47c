"""The common representation of checkpoints of other libraries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from adapter_probe.errors import CheckpointError
from adapter_probe.metrics import Kind
from adapter_probe.models.adapters.imported import ImportedMethod, SiteKind

from .files import first_of
from .places import Places


@dataclass(frozen=True)
class ForeignCheckpoint:
    """The contents of another library's checkpoint, before its base is known.

    Attributes:
        files: all files that determine its numbers.
        documents: the parsed JSON files, by name.
        tensors: tensors of all weight files, under the library's names.
        n_outputs: number of logits of its head, or None without a head.
        label_names: label names in the order of the logits, or empty if not recorded.
    """

    folder: Path
    library: str
    name: str
    files: tuple[Path, ...]
    documents: dict[str, dict[str, Any]]
    tensors: dict[str, Tensor]
    base: str | None = None
    kind: Kind | None = None
    n_outputs: int | None = None
    label_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class TranslatedCheckpoint:
    """A checkpoint of another library, translated into this project's representation.

    Attributes:
        method: the adaptation that is added to the base.
        tensors: its weights and the replaced weights of the base, under the names of this project's model.
        notes: remarks for the user, one sentence each.
        frozen: the `tensors` that were not trained, in a checkpoint that contains the whole model.
    """

    method: ImportedMethod
    tensors: dict[str, Tensor]
    notes: tuple[str, ...] = ()
    frozen: frozenset[str] = frozenset()

    def without_copies(self, base: Mapping[str, Tensor], base_name: str) -> TranslatedCheckpoint:
        """Drop untrained tensors that equal the base; others are reported in a note."""
        copies = {n for n in self.frozen if n in base and torch.equal(base[n], self.tensors[n])}
        kept = {name: tensor for name, tensor in self.tensors.items() if name not in copies}
        others = self.frozen - copies
        if not others:
            return replace(self, tensors=kept)
        note = (
            f"{len(others)} of the {len(self.frozen)} untrained tensors differ from those of the "
            f"base {base_name}, {min(others)} first; those of the checkpoint are used."
        )
        return replace(self, tensors=kept, notes=(*self.notes, note))


@dataclass(frozen=True)
class BaseShape:
    """The facts about the base that a reader needs.

    Attributes:
        places: where the adapters sit.
        prefix: prefix of the encoder's names in the whole model, including the dot.
        modules: names of all modules of the whole model.
        layer_names: module of every layer in the encoder, bottom first.
        tied: names of the input and the output embedding where they are one tensor, else empty.
        shared: whether layers share modules, so that each has an adapter of its own in them.
    """

    places: Places
    config: PretrainedConfig
    prefix: str
    modules: frozenset[str]
    layer_names: tuple[str, ...] = field(default=())
    tied: tuple[str, ...] = ()
    shared: bool = False

    @classmethod
    def of(cls, model: PreTrainedModel, places: Places) -> BaseShape:
        """The facts about a base in memory."""
        modules = frozenset(name for name, _ in model.named_modules())
        prefix = f"{model.base_model_prefix}."
        names, shared = places.layer_names(model.config), places.layer_groups is not None
        ends = (model.get_input_embeddings(), model.get_output_embeddings())
        first, last = (getattr(end, "weight", None) for end in ends)
        every = model.named_parameters(remove_duplicate=False)
        tied = tuple(name for name, parameter in every if parameter is first is last)
        return cls(places, model.config, prefix, modules, names, tied, shared)

    def layers_but(self, left_out: Iterable[int]) -> list[int]:
        """The layers, counted from the bottom, that are not in `left_out`."""
        modules = list(dict.fromkeys(self.layer_names))
        left_out = set(left_out)
        return [n for n, name in enumerate(self.layer_names) if modules.index(name) not in left_out]

    def adapter_name(self, layer: int, site: SiteKind) -> str:
        """The name inside the encoder of the bottleneck of a layer after a sublayer."""
        holder = getattr(self.places, site).holder
        parts = (self.layer_names[layer], holder, "adapter", str(layer) if self.shared else "")
        return ".".join(part for part in parts if part)

    def full_name(self, name: str) -> str:
        """A module's name in the whole model, from one that may lack the encoder's prefix."""
        known = name in self.modules or f"{self.prefix}{name}" not in self.modules
        return name if known else f"{self.prefix}{name}"


def refuse_left(folder: Path, left: Iterable[str]) -> None:
    """Refuse a checkpoint with tensors that were not read."""
    names = sorted(left)
    if names:
        raise CheckpointError(f"checkpoint {folder} contains unknown tensors: {first_of(names)}")
