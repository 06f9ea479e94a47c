"""What a request needs to know of a model before it runs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from adapter_probe.data.batches import EncodedBatches
from adapter_probe.data.encoding import Encoded
from adapter_probe.data.prompts import EncodedPrompts
from adapter_probe.data.requests_encoding import EncodedRequests
from adapter_probe.errors import ModelError
from adapter_probe.replay.recording import Inputs, base_of, configs_of_text, device_of
from adapter_probe.replay.replay import layers_in_order
from adapter_probe.replay.stacks import Layer, layer_strengths, stacks_of
from adapter_probe.replay.switches import Switches
from adapter_probe.replay.two_states import TwoStates
from adapter_probe.replay.two_weights import STRENGTH, strength_of
from adapter_probe.settings import NormChoice
from adapter_probe.spans import Site, Stack
from adapter_probe.units import Unit

from .rows import arguments_of

if TYPE_CHECKING:
    from adapter_probe.checkpoints.opened_peft import OpenedPeft

_FEW_POSITIONS = 8  # of which an example of a model has at least so many, if a text does
_BASE = ("base_layer", "original_module")  # where PEFT's modules keep what they change


class SwitchableModel:
    """A model of transformers with tuners of PEFT.

    Args:
        module: the model in evaluation mode.
        example: arguments of its forward, to see which layers it calls.
        fixed: whether its weights must stay in their precision and on their devices.
        layers: names of the layers of a model without adapters.
        by: the unit that is a site of its own, see `adapter_probe.replay.stacks.find_layers`.

    Attributes:
        layers: the layer of every call, in order; an encoder's come before its decoder's.
        example: as given.
    """

    def __init__(
        self,
        module: nn.Module,
        example: Inputs,
        fixed: bool = False,
        layers: Sequence[str] = (),
        by: Unit = "span",
    ):
        self.module, self.fixed, self.example = module.eval(), fixed, example
        self.layers = [Layer(name, module.get_submodule(name), ((), ())) for name in layers]
        if not layers:
            self.layers = layers_in_order(module, example, by)

    @property
    def sites(self) -> tuple[Site, ...]:
        """The sites of every layer."""
        return self.layers[0].sites

    @property
    def adapters(self) -> list[str]:
        """The names of the active adapters, if there are several."""
        return [name for name in dict.fromkeys(site.adapter for site in self.sites) if name]

    @property
    def has_adapter(self) -> np.ndarray:
        """Bool ``[sites]``: which sites hold an adapter that can be switched off, or scaled."""
        return np.array([any(strength_of(m, 0.0) != 1 for m in own) for own in self.site_modules])

    @property
    def site_modules(self) -> list[tuple[nn.Module, ...]]:
        """The modules that each site switches; a layer that is called again has the same ones again."""
        return [part for layer in self.layers for part in layer.parts]

    def set_strengths(self, strengths: Sequence[float] | Mapping[str, float]) -> None:
        """Give every tuned module the strength that it has where it is off, see `layer_strengths`."""
        for module, strength in layer_strengths(strengths, self.layers).items():
            vars(module)[STRENGTH] = strength

    @contextmanager
    def switched_off(self, mask: np.ndarray, strength: float = 0.0, rank: int = 0) -> Iterator[None]:
        """Inside, the adapters of some sites are off: those where the mask, bool ``[sites]``, is false.

        Args:
            strength: what their change is multiplied by.
            rank: how many of their directions are kept.

        Raises:
            ModelError: a layer that is called several times would be on in one call and off in another.
        """
        both = (
            {m for own, on in zip(self.site_modules, mask) if on == state for m in own} for state in (0, 1)
        )
        off, on = both
        if off & on:
            raise ModelError(
                "several layers share their adapters, which are switched off together here; switch off all "
                "of these layers"
            )
        needed = [(parameter, parameter.requires_grad) for parameter in self.module.parameters()]
        was, switches = [(module, module.disable_adapters) for module in off], Switches(strength, rank)
        try:
            for module in off:
                switches.set(module, False)
            yield
        finally:
            for module, disabled in was:
                switches.set(module, True)
                switches.switch(module, not disabled)
            for parameter, grad in needed:  # which PEFT changes with its switches
                parameter.requires_grad_(grad)

    @property
    def forks_early(self) -> np.ndarray:
        """Bool ``[sites]``: a switch changes the computation inside the sublayer, not only its result."""
        return np.array(
            [not all(hasattr(module, "restore_norm") for module in part) for part in self.site_modules]
        )

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The stacks of layers, such as an encoder and a decoder, in the order of `layers`."""
        return tuple(Stack(*one) for one in stacks_of(self.layers, getattr(self.module, "config", None)))

    @property
    def site_parameters(self) -> tuple[int, ...] | None:
        """Number of parameters of each site's adapter ``[sites]``; None if sites share adapters."""
        own = [_added(part) for part in self.site_modules]
        if len(set().union(*own)) < sum(map(len, own)):
            return None
        return tuple(sum(counts.values()) for counts in own)

    @property
    def inner_size(self) -> int:
        """The widest states inside a layer."""
        widths = (
            getattr(module, "out_features", 0) for layer in self.layers for module in layer.module.modules()
        )
        return max(*(width or 0 for width in widths), int(getattr(self.config, "hidden_size", 0)), 1)

    @property
    def config(self) -> object:
        """The configuration of the model of transformers, or of the part of it that reads text."""
        return next(reversed(configs_of_text(self.module)), None)

    def check_norms(self, norms: NormChoice) -> None:
        """Let the base's LayerNorms stand after adapters that are off, if `norms` is "pretrained".

        Raises:
            ModelError: they belong to no site.
        """
        if norms == "trained":
            return
        placed = [module for module in self.module.modules() if hasattr(module, "restore_norm")]
        if not placed:
            raise ModelError(
                f"--layernorm {norms} is not possible with adapters of PEFT: what they change in a layer is "
                "switched as one; use --layernorm trained"
            )
        for adapter in placed:
            adapter.restore_norm()

    def check_sites(self, sites: str) -> None:
        """Refuse one sublayer of layers in which the sublayers cannot be told apart.

        Raises:
            ModelError: there are such layers, and `sites` is not "both".
        """
        unclear = next((layer.unclear for layer in self.layers if layer.unclear), "")
        if sites != "both" and unclear:
            raise ModelError(
                f"--sites {sites} is not possible with this model: {unclear} belongs neither to an attention "
                "nor to a feed-forward network by its name; use --sites both"
            )


def model_of(
    opened: OpenedPeft,
    encoded: Encoded | EncodedRequests | EncodedBatches | EncodedPrompts,
    by: Unit = "span",
) -> SwitchableModel:
    """The model of a checkpoint; `encoded` are the examples that it will read.

    Raises:
        ModelError: it has no adapter that can be switched off, or no such task.
    """
    module: nn.Module = opened.model
    if getattr(opened, "alone", False):
        raise ModelError(
            "the base is quantised in 8 bits with an outlier threshold, so the outputs for a text depend on "
            "the other texts and variants of its batch, in PEFT too; ablate it with --dequantise, or give "
            "a base in 4 bits, with llm_int8_threshold 0, or in full with --base"
        )
    ignore_padding(module)
    device = device_of(module)
    if isinstance(encoded, EncodedPrompts):
        ids = torch.from_numpy(encoded.input_ids[int(np.argmin(encoded.lengths))][None, :])
        example = {"input_ids": ids.to(device)}
        if encoded.reads:
            example |= {"attention_mask": torch.ones_like(ids), "decoder_input_ids": ids[:, :1].to(device)}
    elif encoded.in_trees:
        shortest = encoded.trees[int(np.argmin(encoded.lengths))]
        in_a_row = shortest.parents == np.arange(len(shortest.parents)) - 1
        one_text = int(in_a_row.argmin()) or len(in_a_row)  # all branches in a row may be too long a text
        inputs = arguments_of([shortest], shortest.tokens[None, :one_text].copy())
        example = {name: x.to(device) for name, x in inputs.items()}
    else:
        example = inputs_of(module, encoded, example_of(encoded)[:1], device)
    names = () if Switches().inside(module) else getattr(opened, "layer_names", ())
    return SwitchableModel(module, example, getattr(opened, "quantised", None) is not None, names, by)


def place_of(module: nn.Module) -> tuple[torch.device, torch.dtype]:
    """The device of a model's inputs, and the precision of its states."""
    tensors = (*module.parameters(), *module.buffers())
    return device_of(module), next(t.dtype for t in tensors if t.is_floating_point())


def ignore_padding(module: nn.Module) -> None:
    """Let heads that read the last token find it in a model without padding."""
    for config in configs_of_text(module):
        if getattr(config, "pad_token_id", None) is None:
            config.pad_token_id = -1


def example_of(encoded: Encoded | EncodedBatches) -> np.ndarray:
    """A shortest item of some positions, with another of its length if there is one."""
    lengths = encoded.lengths
    shortest = np.min(lengths[lengths >= min(_FEW_POSITIONS, lengths.max())])
    return np.flatnonzero(lengths == shortest)[:2]


def few_lengths(encoded: Encoded) -> np.ndarray:
    """Items of the two smallest lengths, at most two of each."""
    lengths = np.unique(encoded.lengths)[:2]
    return np.concatenate([np.flatnonzero(encoded.lengths == length)[:2] for length in lengths])


def inputs_of(
    model: nn.Module, encoded: Encoded | EncodedBatches, items: np.ndarray, device: torch.device
) -> dict[str, Tensor]:
    """The arguments of the model's forward for items of one length; texts of several get padding."""
    if encoded.in_batches:
        return encoded.inputs(
            items, device, next(p.dtype for p in model.parameters() if p.is_floating_point())
        )
    texts = [encoded.input_ids[item] for item in items]
    padding = (getattr(config, "pad_token_id", None) for config in configs_of_text(model))
    takes = inspect.signature(base_of(model).forward).parameters
    arrays = {"input_ids": _stacked(texts, max(0, next(padding, None) or 0))}
    if "attention_mask" in takes:
        arrays["attention_mask"] = _stacked([np.ones_like(text) for text in texts], 0)
    if encoded.token_type_ids is not None and "token_type_ids" in takes:
        arrays["token_type_ids"] = _stacked([encoded.token_type_ids[item] for item in items], 0)
    return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}


def _stacked(texts: Sequence[np.ndarray], padding: int) -> np.ndarray:
    """Numbers of several texts, ``[texts, longest]``."""
    longest = max(map(len, texts))
    return np.stack([np.pad(text, (0, longest - len(text)), constant_values=padding) for text in texts])


def added_parameters(module: nn.Module) -> int:
    """Number of parameters that a model's tuners add, those outside the layers included."""
    return sum(_added(tuple(Switches().inside(module).values())).values())


def _is_idle(module: nn.Module, name: str) -> bool:
    """Whether a parameter belongs to an adapter that is there beside the active ones."""
    there = {own for part in getattr(module, "adapter_layer_names", ()) for own in getattr(module, part, ())}
    idle = there - {*getattr(module, "active_adapters", ())}
    return bool(idle.intersection(name.split(".")))


def _added(part: tuple[nn.Module, ...]) -> dict[Tensor, int]:
    """The parameters that a site's tuners add, and their sizes."""
    return {
        parameter: parameter.numel()
        for module in part
        for name, parameter in (
            module.changed().items() if isinstance(module, TwoStates) else module.named_parameters()
        )
        if not any(own in _BASE for own in name.split(".")) and not _is_idle(module, name)
    }
