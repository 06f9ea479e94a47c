"""The methods that are not PEFT's on a base: bottlenecks in its layers, and which of its parameters train."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from adapter_probe.checkpoints.base import (
    AnyLoaded,
    load_any_base,
    n_outputs,
    refuse_lost,
)
from adapter_probe.checkpoints.base_config import AnyBase, method_of
from adapter_probe.checkpoints.foreign import BaseShape
from adapter_probe.checkpoints.model_class import choose_class, head_of_kind
from adapter_probe.checkpoints.opened_peft import OWN
from adapter_probe.checkpoints.placed import PlacedAdapter, put_bottlenecks
from adapter_probe.checkpoints.places import FAMILIES, Places, places_in, places_on
from adapter_probe.data.task_spec import TaskSpec
from adapter_probe.errors import CheckpointError, ModelError
from adapter_probe.kinds.table import about_kind
from adapter_probe.models.methods import (
    Adapters,
    Biases,
    HeadOnly,
    Method,
    ParameterRole,
    PeftMethod,
    check_depth,
    check_shared,
)


class Known(NamedTuple):
    """What is known of a parameter.

    Attributes:
        layer: -1 in the embeddings, the number of layers in what follows the layers; with a tuner of PEFT 0.
        name: in the base, or of an adapter in this project's format.
    """

    role: ParameterRole
    layer: int
    name: str


@dataclass(frozen=True)
class Prepared:
    """A base with a method in it, with the parameters that train chosen.

    Attributes:
        base: the model that is called; of PEFT, its own.
        inner: the model of Transformers in it.
        kind: kind of the task.
        n_layers: number of layers of the base.
        parameters: what is known of every parameter, by its name in `base`.
        layers: the layers, bottom first, a module that serves several repeated; empty of language models and
            of PEFT's methods.
        below: the modules that compute the input of the first layer.
        averages: names of running averages in adapters, by those in `base`.
        first_alone: modules of the last layer that compute the first token of each text alone, where the head
            reads it, see `computing_first`.
    """

    base: nn.Module
    inner: Any
    kind: str
    n_layers: int
    parameters: Mapping[str, Known]
    layers: Sequence[nn.Module] = ()
    below: Sequence[nn.Module] = ()
    averages: Mapping[str, str] = field(default_factory=dict)
    first_alone: Sequence[nn.Module] = ()


def load_base(found: AnyBase, task: TaskSpec, method: Method, seed: int) -> AnyLoaded:
    """A base of any family that Transformers has, with a head for the task.

    Raises:
        CheckpointError: it is quantised, it lacks weights, or its configuration is not supported.
        ModelError: the method does not fit the task or the family.
    """
    kind = task.kind
    refuse_method(method, kind, found.config.model_type)
    if quantised := method_of(found.fields):
        raise CheckpointError(
            f"base {found.name} is quantised with {quantised}; give the model in full to train on"
        )
    headless = task.about.is_language_model
    if not headless and found.config.model_type in FAMILIES:
        places_on(found.name, found.config)
    head = head_of_kind(kind, found.config.is_encoder_decoder)
    cls = choose_class(found.name, found.config, head, ())
    loaded = load_any_base(found, cls, n_outputs(task), torch.float32, seed=seed)
    refuse_lost(loaded, headless)
    return loaded


def refuse_method(method: Method, kind: str, family: str) -> None:
    """Refuse methods that do not fit the task, or are not known for the family."""
    is_language_model = about_kind(kind).is_language_model
    if is_language_model and isinstance(method, Adapters | HeadOnly):
        raise ModelError(
            f"the method {method.name} is for classifiers; a language model trains with a method of PEFT, "
            "such as lora:r=8, or with top_layers, layernorm_only, bitfit or full"
        )
    if not (is_language_model or isinstance(method, PeftMethod)) and family not in FAMILIES:
        raise ModelError(
            f"the method {method.name} does not know where the layers of a {family} model are; a classifier "
            "of this family trains with a method of PEFT, such as --method lora:r=8"
        )


def prepare_own(loaded: AnyLoaded, method: Method, kind: str, seed: int) -> Prepared:
    """Put a method into a base, and choose what trains.

    Args:
        loaded: the base, which is changed.
        method: the method; of a language model full fine-tuning, top layers, LayerNorms or biases.

    Raises:
        ModelError: the method does not fit, or finds nothing to train.
    """
    model, config = loaded.model, loaded.model.config
    refuse_method(method, kind, config.model_type)
    places = None if about_kind(kind).is_language_model else places_in(config)
    if places is None:
        names = _stacks_of(model, loaded.identity.n_layers)
    else:
        names = [[f"{model.base_model_prefix}.{name}" for name in places.layer_names(config)]]
    n_layers = max(map(len, names))
    check_depth(method, n_layers)
    if places is not None:
        check_shared(method, names[0])
    own: dict[Tensor, str] = {}
    if places is not None and isinstance(method, Adapters):
        own = _put_bottlenecks(model, places, method, seed)
    known = _describe(model, names, places, own)
    _choose_trained(loaded, method, known, n_layers)
    if places is None:
        return Prepared(model, model, kind, n_layers, known)
    layers = [model.get_submodule(name) for name in names[0]]
    alone: list[nn.Module] = []
    if places.reads_first and not about_kind(kind).reads_all:
        ends = (places.attention.end, places.attention.norm or places.ffn.start)
        alone = [layers[-1].get_submodule(end) for end in ends]
        alone += [module for module in layers[-1].modules() if isinstance(module, PlacedAdapter)]
    below = list(_before(model, names[0][0]))
    averages = {name: own[buffer] for name, buffer in model.named_buffers() if buffer in own}
    return Prepared(model, model, kind, n_layers, known, layers, below, averages, alone)


def _choose_trained(loaded: AnyLoaded, method: Method, known: Mapping[str, Known], n_layers: int) -> None:
    """Mark the parameters that train; refuse a base that has none besides what it lacks."""
    trained = set()
    for name, parameter in loaded.model.named_parameters():
        role, layer, _ = known[name]
        is_bias = name.endswith("bias")
        parameter.requires_grad = name in loaded.missing or method.trains(role, layer, n_layers, is_bias)
        trained |= {name} if parameter.requires_grad else set()
    biases = [name for name in trained - loaded.missing if name.endswith("bias")]
    if not trained or (isinstance(method, Biases) and not biases):
        raise ModelError(
            f"base {loaded.identity.name} has nothing that {method.name} trains; give another method"
        )


def _put_bottlenecks(model: Any, places: Places, method: Adapters, seed: int) -> dict[Tensor, str]:
    """Put new adapters into a model, which draw their weights in the order of the sites.

    Returns:
        the names of their tensors in this project's format.
    """
    shape = BaseShape.of(model, places)
    generator = torch.Generator().manual_seed(seed)
    names: dict[Tensor, str] = {}
    for name, adapter in put_bottlenecks(model, shape, method):
        adapter.initialise(method.init_std, generator)  # type: ignore[union-attr, operator]
        tensors = (*adapter.named_parameters(), *adapter.named_buffers())
        names |= {tensor: f"{name}.{part}" for part, tensor in tensors}
    return names


def _describe(
    model: Any, stacks: Sequence[Sequence[str]], places: Places | None, own: Mapping[Tensor, str]
) -> dict[str, Known]:
    """What is known of every parameter.

    Args:
        stacks: the layers of every stack of layers, bottom first; the top layers are equal.
        places: of a classifier.
        own: names of the tensors of adapters.
    """
    n_layers = max(map(len, stacks))
    layers = {
        f"{name}.": n_layers - len(names) + names.index(name)
        for names in stacks
        for name in dict.fromkeys(names)
    }
    prefix = "" if places is None else f"{model.base_model_prefix}."
    norms = tuple(f"{name}." for name, module in model.named_modules() if is_norm(module))
    if places is not None and places.reads_first:
        ends = tuple(f"{prefix}{end}." for end in ("pooler", places.final_norm) if end)
        after = {name for name, _ in model.named_parameters() if name.startswith(ends)}
    else:
        after = _after_layers(model, tuple(layers), len(stacks) > 1, norms)
    known = {}
    for name, parameter in model.named_parameters():
        layer = next((number for start, number in layers.items() if name.startswith(start)), -1)
        role: ParameterRole = "base"
        if not name.startswith(prefix):
            role, layer = "head", n_layers
        elif parameter in own:
            role = "adapters"
        elif name.startswith(norms):
            role = "layernorms"
        elif places is not None and name.startswith(f"{prefix}pooler."):
            role = "pooler"
        known[name] = Known(role, n_layers if name in after else layer, own.get(parameter, name))
    return known


def _after_layers(model: Any, layers: tuple[str, ...], two: bool, norms: tuple[str, ...]) -> set[str]:
    """Names of the parameters of what follows the layers.

    Args:
        layers: the beginnings of the names of parameters in layers.
        two: whether there are two stacks of layers.
        norms: the beginnings of those of norms.
    """
    embedding = {id(parameter) for parameter in model.get_input_embeddings().parameters()}
    found, passed = set(), False
    for name, parameter in model.named_parameters():
        inside = name.startswith(layers)
        passed = not two and (passed or inside)
        norm = name.startswith(norms) and OWN not in name
        last = passed or ((norm or two) and "embed" not in name)  # OPT makes its last norm first
        if last and not inside and id(parameter) not in embedding:
            found.add(name)
    return found


def _before(model: nn.Module, layer: str) -> Iterator[nn.Module]:
    """The modules that were made before the layers: embeddings and their dropout."""
    path = layer.split(".")
    for depth in range(len(path)):
        for name, module in model.get_submodule(".".join(path[:depth])).named_children():
            if name == path[depth]:
                break
            yield module


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a LayerNorm or one of its kind."""
    return isinstance(module, nn.LayerNorm) or type(module).__name__.endswith(("RMSNorm", "LayerNorm"))


def _stacks_of(model: Any, n_layers: int) -> list[list[str]]:
    """The names of a language model's layers, bottom first; two lists of an encoder-decoder."""
    lists = {n: len(m) for n, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m)}
    found = [[name for name, size in lists.items() if size == n_layers]]
    if model.config.is_encoder_decoder:
        sides = (model.get_encoder(), model.get_decoder())
        names = [f"{name}." for name, module in model.named_modules() if module in sides]
        found = [[name for name in lists if name.startswith(side)] for side in names]
    if not all(found):
        raise ModelError(f"a {type(model).__name__} has no list of its layers; give a method of PEFT")
    outer = [min(names, key=lambda name: name.count(".")) for names in found]
    return [[f"{name}.{number}" for number in range(lists[name])] for name in outer]
