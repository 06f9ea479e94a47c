"""What a checkpoint contains: its layers, its sites, and numbers of parameters by role."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, get_args

from adapter_probe.models.adapters.imported import ImportedMethod
from adapter_probe.models.methods import ParameterRole
from adapter_probe.replay.stacks import find_layers, stacks_of
from adapter_probe.replay.switches import Switches

from .adapter_folder import read_adapter
from .model_class import without_weights
from .opened_peft import OWN, OpenedPeft, OpenedPlaced

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
    """Numbers of parameters by role, those in the checkpoint, in its body, and in the base's body.

    Args:
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
    return "pooler" if name.startswith(f"{prefix}pooler.") else "base"
