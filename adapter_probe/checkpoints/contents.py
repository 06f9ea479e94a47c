"""What a checkpoint contains: its layers, its sites, and numbers of parameters by role."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import get_args

import torch

from adapter_probe.models.methods import ParameterRole
from adapter_probe.replay.stacks import find_layers, stacks_of
from adapter_probe.replay.switches import Switches

from .adapter_folder import read_adapter
from .description import Description
from .opened_peft import OWN, OpenedPeft, OpenedPlaced

_POOLER = "pooler."
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Contents:
    """The contents of a model with adapters.

    Attributes:
        description: description of the checkpoint, with the base that was found.
        family: the base's `model_type`.
        n_layers, hidden_size: dimensions of the base.
        n_sites: number of sites with an adapter.
        counts: numbers of parameters by role.
        trained: those in the checkpoint.
        trained_body: number of these without the head and other parameters that the base lacks.
        pretrained: number of parameters of the base without a head.
        notes: remarks for the user, one sentence each.
        quantised: the method of the base's quantisation; empty without one.
        stacks: numbers of layers by stack of a model with several; empty for one.
    """

    description: Description
    family: str
    n_layers: int
    hidden_size: int
    n_sites: int
    counts: dict[ParameterRole, int]
    trained: dict[ParameterRole, int]
    trained_body: int
    pretrained: int
    notes: tuple[str, ...] = ()
    quantised: str = ""
    stacks: Mapping[str, int] = field(default_factory=dict)


def contents_of(opened: OpenedPeft) -> Contents:
    """The contents of an open checkpoint, whose weights need not be in memory."""
    model = opened.model
    layers = find_layers(model, Switches()) if Switches().inside(model) else []
    names = list(opened.layer_names) if isinstance(opened, OpenedPlaced) else [one.name for one in layers]
    parts = {layer.name: layer.parts for layer in layers}
    stacks = stacks_of(layers, getattr(model, "config", None)) if layers else []
    of_peft = not isinstance(opened, OpenedPlaced)
    base = model.get_base_model() if of_peft else model
    return Contents(
        opened.description,
        base.config.model_type,
        len(names),
        opened.description.base.hidden_size,
        sum(bool(part) for name in names for part in parts.get(name, ())),
        *(_counts_of_peft(opened) if of_peft else _counts_of_placed(opened)),
        opened.notes,
        opened.quantised or "",
        dict(stacks) if len(stacks) > 1 else {},
    )


def _counts_of_placed(
    opened: OpenedPlaced,
) -> tuple[dict[ParameterRole, int], dict[ParameterRole, int], int, int]:
    prefix = f"{opened.model.base_model_prefix}."
    return count_parameters(opened.shapes, opened.trained, opened.missing, prefix)


def _counts_of_peft(
    opened: OpenedPeft,
) -> tuple[dict[ParameterRole, int], dict[ParameterRole, int], int, int]:
    """As `count_parameters`; what PEFT trains as a whole has the role of the parameter in the base."""
    from .peft_loading import own_name

    base = opened.model.get_base_model()
    with torch.device("meta"):  # the base as it was before PEFT's modules were put into it
        plain = type(base)(copy.deepcopy(base.config))
    first = {id(one): name for name, one in plain.named_parameters()}
    names = {name: first[id(one)] for name, one in plain.named_parameters(remove_duplicate=False)}
    shapes = {name: tuple(one.shape) for name, one in plain.named_parameters()}
    whole, added = {}, 0
    for name, tensor in read_adapter(opened.folder)[0].items():
        if own := names.get(own_name(name).replace(".modules_to_save.", ".")):
            whole[own] = tuple(tensor.shape)
        else:
            added += tensor.numel()
    prefix = f"{base.base_model_prefix}." if base.get_output_embeddings() is None else ""
    counts, trained, body, pretrained = count_parameters(
        {**shapes, **whole}, whole.keys(), opened.missing, prefix
    )
    counts["adapters"], trained["adapters"] = added, added
    return counts, trained, body + added, pretrained


def count_parameters(
    shapes: Shapes, trained: Collection[str], lacked: Collection[str], prefix: str
) -> tuple[dict[ParameterRole, int], dict[ParameterRole, int], int, int]:
    """Numbers of parameters by role, those in the checkpoint, in its body, and in the base's body.

    Args:
        shapes: of all parameters, by name.
        trained: those in the checkpoint.
        lacked: those that the base lacks.
        prefix: of the encoder's names.
    """
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
    return "pooler" if name.startswith(prefix + _POOLER) else "base"
