"""Adapters of AdapterHub and of this project in Transformers' own models.

Bottlenecks become modules with hooks, see `places`; LoRA and (IA)³ become modules of PEFT.
All are filled from tensors under the names that they have in this project's format.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from adapter_probe.errors import CheckpointError, ModelError, one_line
from adapter_probe.models.adapters.bottleneck import Bottleneck, ConfiguredBottleneck, FirstToken, StackedHead
from adapter_probe.models.adapters.imported import SITE_KINDS, HeadSpec, ImportedMethod, InnerSpec
from adapter_probe.models.methods import Adapters, Method
from adapter_probe.replay.switches import Application, Switchable

from .base import AnyLoaded
from .base_config import quiet_quantisers
from .foreign import BaseShape
from .opened_peft import OWN
from .places import Place

if TYPE_CHECKING:
    from peft import PeftConfig

_ADAPTER = "default"
_PARTS = {
    "down.weight": "lora_A.{}.weight",
    "up.weight": "lora_B.{}.weight",
    "factor": "ia3_l.{}",
}
"""The parts of an adapter inside a sublayer, in this project's format and in PEFT's modules."""


class PlacedAdapter(Switchable):
    """A bottleneck in a layer's own forward, by hooks on the layer's modules."""

    def __init__(self, bottleneck: Bottleneck | ConfiguredBottleneck):
        super().__init__()
        self.bottleneck = bottleneck
        # In tuples, so that they are not registered below itself.
        self._norm: tuple[nn.Module, ...] = ()  # the checkpoint's, once it is filled, and the base's
        self._place: tuple[nn.Module, Place] | None = None
        self._residual: Tensor | None = None

    def attach(
        self,
        layer: nn.Module,
        place: Place,
        part: int,
        application: Application | None = None,
        number: int = 0,
    ) -> None:
        """Act whenever the layer runs, or in one of its calls.

        Args:
            application: which of the layer's calls is running; None of a layer that runs once.
        """
        holder, name = layer.get_submodule(place.holder or place.end), "adapter"
        self.part, self.application, self.number = part, application, number
        if application is not None:
            if not hasattr(holder, name):
                holder.add_module(name, nn.Module())
            holder, name = holder.get_submodule(name), str(number)
        holder.add_module(name, self)
        norm = nn.Identity() if place.norm is None else layer.get_submodule(place.norm)
        self._norm, self._place = (norm, deepcopy(norm)), (layer, place)
        layer.get_submodule(place.start).register_forward_pre_hook(self._enter)
        layer.get_submodule(place.end).register_forward_hook(self._leave)

    def restore_norm(self) -> None:
        """Let the base's LayerNorm stand after the adapter where it is off.

        Raises:
            ModelError: it follows no LayerNorm.
        """
        assert self._place is not None, "it is attached"
        layer, place = self._place
        if place.norm is None:
            raise ModelError(
                "--layernorm pretrained is not possible with this base, whose LayerNorms precede the "
                "sublayers and belong to no single site; use --layernorm trained"
            )
        tuned, base = layer.get_submodule(place.norm), deepcopy(self._norm[1])
        base.to(self._norm[0].weight.dtype)
        if isinstance(tuned, PlacedNorm) and tuned.number == self.number:
            tuned.base_layer = base
        else:
            layer.set_submodule(place.norm, PlacedNorm(tuned, base, self))

    def leave_out_norm(self) -> None:
        """Let no LayerNorm follow the adapter where it is on, if its output is not normalised."""
        assert self._place is not None, "it is attached"
        layer, place = self._place
        if place.norm is not None and not self._is_normalised:
            layer.set_submodule(place.norm, PlacedNorm(None, layer.get_submodule(place.norm), self))

    @property
    def _is_normalised(self) -> bool:
        return isinstance(self.bottleneck, Bottleneck) or self.bottleneck.spec.norm_after

    def _enter(self, _module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._residual = inputs[0]

    def _leave(self, _module: nn.Module, _inputs: tuple, output: Any) -> Any:
        residual, self._residual = self._residual, None
        if not self.acts:
            return None
        if isinstance(output, tuple):
            return (self(output[0], residual), *output[1:])
        return self(output, residual)

    @property
    def only_adds(self) -> bool:
        """Whether it returns the sublayer's output with its `change` added."""
        return self.bottleneck.only_adds

    @property
    def change_reads(self) -> int:
        """How many of its arguments its `change` reads."""
        return 2 if self.bottleneck.parallel else 1

    def change(self, *given: Tensor) -> Tensor:
        """What it adds to the sublayer's output while it is on; arguments as in `forward`."""
        return self.bottleneck.change(*given)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """The sublayer's output ``[rows, positions, hidden]``, with the change if it is on."""
        if self.disable_adapters:
            return x
        if not self._is_normalised:
            return self.bottleneck.finish(x, residual, self._norm[0], strength=self.strength) - residual
        return self.bottleneck.adapt(x, residual, self._norm[0], self.strength)


class PlacedNorm(Switchable):
    """The LayerNorm after a placed adapter, which may depend on whether the adapter is on.

    Args:
        on: where it is on; None if the adapter returns finished states.
        off: where it is off.
    """

    def __init__(self, on: nn.Module | None, off: nn.Module, adapter: PlacedAdapter):
        super().__init__()
        self.original_module, self.base_layer = on, off  # names by which they count as the base's
        self.part, self.application, self.number = adapter.part, adapter.application, adapter.number

    def forward(self, x: Tensor) -> Tensor:
        """``[..., hidden]`` to ``[..., hidden]``."""
        on = self.original_module
        if not self.acts:
            return (on or self.base_layer)(x)
        if self.disable_adapters:
            return self.base_layer(x)
        if on is None or self.strength == 1:
            return x if on is None else on(x)
        off = self.base_layer(x)
        # Equal to a norm with interpolated factors and biases, in which its output is linear.
        return off + self.strength * (on(x) - off)


def put_method(
    loaded: AnyLoaded,
    shape: BaseShape,
    method: Method | ImportedMethod,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Put a method's adapters and head into a base, to be filled.

    Args:
        loaded: the base, which is changed.

    Returns:
        every tensor that can be filled, by its name in this project's format.

    Raises:
        ModelError: the method does not fit the base.
    """
    model = loaded.model
    targets: dict[str, Tensor] = dict(model.named_parameters())
    if isinstance(method, ImportedMethod) and method.head is not None:
        _put_head(model, shape, method.head)
        targets = dict(model.named_parameters())
    inner = method.inner if isinstance(method, ImportedMethod) else ()
    _put_inner(model, inner)
    placed = list(put_bottlenecks(model, shape, method))
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    for name, adapter in placed:
        adapter.to(dtype)
        own = (*adapter.named_parameters(), *adapter.named_buffers())
        targets |= {f"{name}.{part}": tensor for part, tensor in own}
    for spec in inner:
        targets |= _parts_of(model.get_submodule(spec.module), spec)
    return targets


def put_bottlenecks(
    model: PreTrainedModel, shape: BaseShape, method: Method | ImportedMethod
) -> Iterator[tuple[str, Bottleneck | ConfiguredBottleneck]]:
    """Put bottlenecks into a model; returns each with its name, in the order of the sites."""
    hidden, layers = int(model.config.get_text_config().hidden_size), shape.layer_names
    found: list[tuple[int, str, Bottleneck | ConfiguredBottleneck]] = []
    if isinstance(method, Adapters):
        kinds = SITE_KINDS if method.sites == "both" else (method.sites,)
        found = [
            (layer, kind, Bottleneck(hidden, method))
            for layer in range(len(layers))
            for kind in kinds
            if layer not in method.skip_layers
        ]
    elif isinstance(method, ImportedMethod):
        if above := [spec.layer for spec in method.bottlenecks if spec.layer >= len(layers)]:
            raise ModelError(
                f"an adapter in layer {above[0]} does not fit the base, whose {len(layers)} layers are 0 "
                f"to {len(layers) - 1}"
            )
        found = [(spec.layer, spec.site, ConfiguredBottleneck(hidden, spec)) for spec in method.bottlenecks]
    applications: dict[str, Application] = {}
    if found and not getattr(model.config, "do_layer_norm_before", True):
        raise ModelError(
            "bottlenecks in an OPT whose LayerNorms follow the sublayers (do_layer_norm_before false) are "
            "not supported; give a method of PEFT"
        )
    for layer, kind, adapter in found:
        place, name = getattr(shape.places, kind), f"{shape.prefix}{layers[layer]}"
        module = model.get_submodule(name)
        if shape.shared and name not in applications:
            applications[name] = Application()
            applications[name].attach(model.base_model, module)
        number = sum(other == layers[layer] for other in layers[:layer])
        PlacedAdapter(adapter).attach(module, place, SITE_KINDS.index(kind), applications.get(name), number)
        yield shape.prefix + shape.adapter_name(layer, kind), adapter


class _Kept(nn.Module):
    """In place of a head's first map; gives what it was given to what replaces the head's last map."""

    def forward(self, states: Tensor) -> Tensor:
        """The states ``[..., hidden]``, unchanged."""
        self._states = states
        return states

    def given(self, _module: nn.Module, _inputs: tuple) -> tuple[Tensor]:
        """The inputs of the last module of the head."""
        states, self._states = self._states, None  # type: ignore[assignment]
        return (states,)


def _put_head(model: PreTrainedModel, shape: BaseShape, head: HeadSpec) -> None:
    steps, sequence = shape.places.before_head, shape.places.reads_sequence
    if head.pooled and not shape.places.pooler:
        raise ModelError(
            f"a head that reads the pooler is not supported on a {model.config.model_type} base, whose "
            "model for classification has none"
        )
    last = shape.places.head
    stacked = StackedHead(
        int(model.config.hidden_size), int(model.config.num_labels), head, reads_sequence=last in sequence
    )
    model.set_submodule(last, stacked)
    names = () if head.pooled else [name for name in steps if name]
    for name in names:
        model.set_submodule(name, FirstToken() if name in sequence else nn.Identity())
    if len(names) < len(steps) and not head.pooled:  # a function between the modules
        kept = _Kept()
        model.set_submodule(names[0], kept)
        stacked.register_forward_pre_hook(kept.given)


def _put_inner(model: nn.Module, specs: Sequence[InnerSpec]) -> None:
    """Put PEFT's modules of the specs' kinds in the place of modules of the base."""
    if not specs:
        return
    with quiet_quantisers():
        from peft import inject_adapter_in_model  # whose import takes seconds

    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # advice on training
        try:
            inject_adapter_in_model(_config(specs), model, adapter_name=_ADAPTER)
        except (ValueError, TypeError) as error:  # a kind of module that PEFT does not know
            raise ModelError(one_line(error)) from error
    for spec in specs:
        module = model.get_submodule(spec.module)
        if hasattr(module, "scaling"):
            module.scaling[_ADAPTER] = spec.scale


def _config(specs: Sequence[InnerSpec]) -> PeftConfig:
    from peft import IA3Config, LoraConfig

    names, kinds = [spec.module for spec in specs], {spec.kind for spec in specs}
    if kinds == {"low_rank"}:
        ranks = {f"^{re.escape(spec.module)}": spec.rank for spec in specs}
        return LoraConfig(r=1, target_modules=names, rank_pattern=ranks)
    if kinds <= {"scale_input", "scale_output"}:
        reading = [spec.module for spec in specs if spec.scales_input]
        return IA3Config(target_modules=names, feedforward_modules=reading)
    raise ModelError(f"adapters of the kinds {', '.join(sorted(kinds))} are not supported in one model")


def _parts_of(module: nn.Module, spec: InnerSpec) -> dict[str, Tensor]:
    """The tensors of one of PEFT's modules, by their names in this project's format."""
    own = dict(module.named_parameters())
    found = {
        part: own[name.format(_ADAPTER)] for part, name in _PARTS.items() if name.format(_ADAPTER) in own
    }
    if "factor" in found:  # [outputs, 1] or [1, inputs]
        found["factor"] = found["factor"].data.view(-1)
    return {f"{spec.module}{OWN}{part}": tensor for part, tensor in found.items()}


@torch.no_grad()
def fill(
    model: PreTrainedModel, method: Method | ImportedMethod, tensors: Mapping[str, Tensor],
    targets: Mapping[str, Tensor], place: str, on_base: str,
) -> None:  # fmt: skip
    """Copy tensors into what `put_method` returned; weights of the base get memory of their own."""
    for name, tensor in tensors.items():
        if tensor.shape != targets[name].shape:
            wanted = list(targets[name].shape)
            raise CheckpointError(f"{place}: {name} has shape {list(tensor.shape)}, {on_base} needs {wanted}")
        if OWN in name:
            targets[name].copy_(tensor)
            continue
        holder, _, part = name.rpartition(".")
        own = nn.Parameter(tensor.to(targets[name]).clone(), requires_grad=False)
        module = model.get_submodule(holder)
        setattr(module.get_base_layer() if hasattr(module, "get_base_layer") else module, part, own)
    for spec in method.inner if isinstance(method, ImportedMethod) else ():
        if spec.is_factor:
            targets[f"{spec.module}{OWN}factor"].mul_(spec.scale)
    for module in [module for module in model.modules() if isinstance(module, PlacedAdapter)]:
        module.leave_out_norm()
    model.requires_grad_(False)
    model.eval()
