"""Checkpoints in memory and what they contain; apart from what loads them, which imports PEFT, in seconds."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from adapter_probe.data.task_spec import TaskSpec
from adapter_probe.errors import CheckpointError
from adapter_probe.models.adapters.imported import ImportedMethod
from adapter_probe.models.methods import Adapters, ParameterRole
from adapter_probe.replay.stacks import find_layers, stacks_of
from adapter_probe.replay.switches import Switches
from adapter_probe.spans import Span

from .adapter_folder import read_adapter
from .model_class import Head, without_weights
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


@dataclass(frozen=True, kw_only=True)
class OpenedPlaced(OpenedPeft):
    """A checkpoint of AdapterHub, of the paper's code or of this project.

    Attributes:
        tensors: what differs from the base, by its names in this project's format.
        layer_names: the layers' modules in the whole model, bottom first.
        shapes: of all parameters, by their names in this project's format.
    """

    tensors: Mapping[str, Tensor]
    layer_names: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]

    def without(self, span: Span) -> tuple[Adapters | ImportedMethod, dict[str, Tensor]]:
        """The method and the tensors without the adapters of a span's layers."""
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


@dataclass(frozen=True, kw_only=True)
class OpenedFinetuned(OpenedPlaced):
    """A fine-tuned model whose layers also hold the tensors of its base.

    Attributes:
        difference: where the two differ.
        others: the base's tensors in place of those outside the layers that differ.
    """

    difference: Difference
    others: Mapping[str, Tensor]


Shapes = Mapping[str, tuple[int, ...]]


def contents_of(opened: OpenedPeft) -> dict[str, Any]:
    """What `inspect` says of an open checkpoint, whose weights need not be in memory."""
    model, about = opened.model, opened.description
    layers = find_layers(model, Switches()) if Switches().inside(model) else []
    stacks = dict(stacks_of(layers, getattr(model, "config", None))) if layers else {}
    if isinstance(opened, OpenedPlaced):
        base, names = model, list(opened.layer_names)
        prefix = "" if opened.head == "features" else f"{base.base_model_prefix}."
        found = count_parameters(opened.shapes, opened.trained, opened.missing, prefix)
    else:
        base, names = model.get_base_model(), [layer.name for layer in layers]
        found = _count_of_peft(opened)
    counts, trained, trained_body, pretrained = found
    parts = {layer.name: layer.parts for layer in layers}
    method = about.method
    return {
        "base": about.base.name,
        "family": base.config.model_type,
        "quantised": f"quantised with {opened.quantised}" if opened.quantised else "",
        "task": about.task.name,
        "metric": about.task.metric,
        "scores": about.scores,
        "n_layers": len(names),
        "stacks": stacks if len(stacks) > 1 else {},
        "n_sites": sum(bool(part) for name in names for part in parts.get(name, ())),
        "hidden_size": about.base.hidden_size,
        "method": method.summary() if isinstance(method, ImportedMethod) else method.to_json(),
        "parameters": counts,
        "trained_by_role": trained,
        "trained_parameters": sum(trained.values()),
        "trained_parameters_without_head": trained_body,
        "percent_of_base": 100 * trained_body / pretrained,
        "adapters_percent_of_base": 100 * counts["adapters"] / pretrained,
        "notes": list(opened.notes),
    }


def _count_of_peft(
    opened: OpenedPeft,
) -> tuple[dict[ParameterRole, int], dict[ParameterRole, int], int, int]:
    """As `count_parameters`; what PEFT trains as a whole has the role of the parameter in the base."""
    from .peft_loading import own_name

    base = opened.model.get_base_model()
    plain = without_weights(type(base), base.config)  # as it was before PEFT's modules were put into it
    first = {id(one): name for name, one in plain.named_parameters()}
    names = {name: first[id(one)] for name, one in plain.named_parameters(remove_duplicate=False)}
    shapes = {name: tuple(one.shape) for name, one in plain.named_parameters()}
    whole, added = {}, 0
    for name, tensor in read_adapter(opened.folder)[0].items():
        if own := names.get(own_name(name).replace(".modules_to_save.", ".")):
            whole[own] = tuple(tensor.shape)
        else:
            added += tensor.numel()
    whole_base = base.get_output_embeddings() is not None or opened.head == "features"
    prefix = "" if whole_base else f"{base.base_model_prefix}."
    counts, trained, body, pretrained = count_parameters(
        {**shapes, **whole}, whole.keys(), opened.missing, prefix
    )
    counts["adapters"], trained["adapters"] = added, added
    return counts, trained, body + added, pretrained


def count_parameters(
    shapes: Shapes, trained: Collection[str], lacked: Collection[str], prefix: str
) -> tuple[dict[ParameterRole, int], dict[ParameterRole, int], int, int]:
    """Numbers of parameters by role, those in the checkpoint, in its body, and in the base's body."""
    counts: dict[ParameterRole, int] = dict.fromkeys(get_args(ParameterRole), 0)
    changed, body, trained_body = dict(counts), 0, 0
    for name, shape in shapes.items():
        role, size = role_of(name, prefix, shapes), math.prod(shape)
        counts[role] += size
        changed[role] += size if name in trained else 0
        if role == "adapters" or (role != "head" and name not in lacked):
            body += size if role != "adapters" else 0
            trained_body += size if name in trained else 0
    return counts, changed, trained_body, body


def role_of(name: str, prefix: str, shapes: Shapes) -> ParameterRole:
    """A parameter's role, by the prefix of the encoder's names and the shapes of all parameters.

    A norm is the only module whose weight has one axis.
    """
    if OWN in name:
        return "adapters"
    if not name.startswith(prefix):
        return "head"
    if len(shapes.get(f"{name.rpartition('.')[0]}.weight", (0, 0))) == 1:
        return "layernorms"
    return "pooler" if name.startswith(f"{prefix}pooler.") else "base"
