"""Bases that train by the forward of Transformers: what of them, or of bottlenecks in them, trains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from adapter_probe.checkpoints.any_base import AnyLoaded, choose_class, load_any_base
from adapter_probe.checkpoints.base import n_outputs, refuse_lost
from adapter_probe.checkpoints.base_config import AnyBase
from adapter_probe.checkpoints.places import DECODERS
from adapter_probe.checkpoints.quantised import method_of
from adapter_probe.data.packing import PackedBatch
from adapter_probe.data.spec import TaskSpec
from adapter_probe.errors import CheckpointError, ModelError
from adapter_probe.models.adapters.bottleneck import TokenBatchNorm
from adapter_probe.models.bases.anatomy import supported_model_types
from adapter_probe.models.methods import (
    Adapters,
    Biases,
    HeadOnly,
    Method,
    ParameterRole,
    PeftMethod,
    TfidfLinear,
    check_depth,
)

from .padded import PaddedModel

_OWN = ".adapter."  # in the names of an adapter's tensors


def load_whole_base(found: AnyBase, task: TaskSpec, method: Method, seed: int) -> AnyLoaded:
    """A base of any family that Transformers has, with a head for the task.

    Args:
        found: the base.
        task: the task.
        method: what is to train.
        seed: seed of the head's initialisation.

    Raises:
        CheckpointError: it is quantised, or it lacks weights.
        ModelError: the method does not fit the task or the family.
    """
    refuse_method(method, task.kind, found.config.model_type)
    if quantised := method_of(found.fields):
        raise CheckpointError(
            f"base {found.name} is quantised with {quantised}; give the model in full to train on"
        )
    writes = task.kind == "causal"
    head: Any = "seq2seq" if writes and found.config.is_encoder_decoder else task.kind
    cls = choose_class(found.name, found.config, head, ())
    loaded = load_any_base(found, cls, n_outputs(task), torch.float32, seed=seed)
    prefix = "" if writes else f"{loaded.model.base_model_prefix}."
    refuse_lost(found.name, loaded.missing, prefix, f"{prefix}pooler.")
    return loaded


def refuse_method(method: Method, kind: str, family: str) -> None:
    """Refuse methods that do not fit the task, or are not known for the family.

    Args:
        method: the method.
        kind: kind of the task.
        family: the base's model type.

    Raises:
        ModelError: it is one.
    """
    if kind == "causal" and isinstance(method, Adapters | HeadOnly | TfidfLinear):
        raise ModelError(
            f"the method {method.name} is for classifiers; a language model trains with a method of PEFT, "
            "such as lora:r=8, or with top_layers, layernorm_only, bitfit or full"
        )
    known = family in (*supported_model_types(), *DECODERS)
    if kind != "causal" and not isinstance(method, PeftMethod | TfidfLinear) and not known:
        raise ModelError(
            f"the method {method.name} does not know where the layers of a {family} model are; a classifier "
            "of this family trains with a method of PEFT, such as --method lora:r=8"
        )


class WholeModel(PaddedModel):
    """A base of which parameters of its own train, with the paper's bottlenecks in its layers or without.

    Frozen layers below all trained parameters of a classifier run without dropout, and what they compute can
    be kept, as in `AdaptedModel`.

    Args:
        loaded: the base, which is changed.
        method: the method; of a language model full fine-tuning, top layers, LayerNorms or biases.
        kind: kind of the task.
        seed: of the bottlenecks' initialisation.

    Raises:
        ModelError: the method does not fit, or finds nothing to train.
    """

    def __init__(self, loaded: AnyLoaded, method: Method, kind: str, seed: int):
        super().__init__(loaded.model, kind, loaded.identity.n_layers, loaded.model)
        refuse_method(method, kind, loaded.model.config.model_type)
        self._stacks = _stacks_of(self.base, self.n_layers)
        self.n_layers = max(self._stacks.values())
        check_depth(method, self.n_layers)
        self._placed = _put_bottlenecks(loaded, method, seed) if isinstance(method, Adapters) else []
        trained = {}
        for role, layer, name, parameter in self._parameters_with_layers():
            parameter.requires_grad = name in loaded.missing or method.trains(
                role, layer, self.n_layers, name.endswith("bias")
            )
            if parameter.requires_grad:
                trained[name] = layer
        if not trained or (isinstance(method, Biases) and not trained.keys() - loaded.missing):
            raise ModelError(
                f"base {loaded.identity.name} has nothing that {method.name} trains; give another method"
            )
        if kind != "causal":
            self.lowest_trained_layer = min(trained.values())
        self._batch_norms = [m for m in self.base.modules() if isinstance(m, TokenBatchNorm)]

    def named_roles(self) -> Iterator[tuple[ParameterRole, str, nn.Parameter]]:
        """Every parameter once, as (role, name, parameter); see `AdaptedModel.named_roles`."""
        for role, _, name, parameter in self._parameters_with_layers():
            yield role, name, parameter

    def _parameters_with_layers(self) -> Iterator[tuple[ParameterRole, int, str, nn.Parameter]]:
        """Every parameter with its layer, the top equal: -1 in embeddings, `n_layers` after the layers."""
        norms = {f"{n}." for n, module in self.base.named_modules() if is_norm(module)}
        embedding = {id(p) for p in self.base.get_input_embeddings().parameters()}
        encoder = "" if self._kind == "causal" else f"{self.base.base_model_prefix}."
        passed, two = False, len(self._stacks) > 1
        for name, parameter in self.base.named_parameters():
            stack = next((one for one in self._stacks if name.startswith(f"{one}.")), None)
            passed = not two and (passed or stack is not None)
            norm = any(map(name.startswith, norms)) and _OWN not in name
            last = passed or ((norm or two) and "embed" not in name)  # OPT makes its last norm first
            layer = self.n_layers
            if stack is not None:
                layer += int(name.removeprefix(f"{stack}.").partition(".")[0]) - self._stacks[stack]
            elif id(parameter) in embedding or not last:
                layer = -1
            role: ParameterRole = "adapters" if _OWN in name else "layernorms" if norm else "base"
            if not name.startswith(encoder):
                role, layer = "head", self.n_layers
            yield role, layer, name, parameter

    def named_delta(self) -> dict[str, Tensor]:
        """Every tensor that training changes, by its name in this project's format."""
        trained = ((n, p) for n, p in self.base.named_parameters() if p.requires_grad)
        found: dict[str, Tensor] = {name: parameter for name, parameter in trained if _OWN not in name}
        for name, adapter in self._placed:
            own = (*adapter.named_parameters(), *adapter.named_buffers())
            found |= {f"{name}.{part}": tensor for part, tensor in own}
        return found

    def train(self, mode: bool = True) -> WholeModel:
        """Set training or evaluation mode; what lies below all trained layers stays in evaluation mode."""
        super().train(mode)
        if self.lowest_trained_layer >= 0:
            for module in (*self._before(), *self._layers()[: self.lowest_trained_layer]):
                module.eval()
        return self

    def _layers(self) -> list[nn.Module]:
        return list(self.base.get_submodule(*self._stacks))

    def _before(self) -> Iterator[nn.Module]:
        """The modules beside the stack of layers that were made before it: embeddings and their dropout."""
        owner, _, name = next(iter(self._stacks)).rpartition(".")
        for other, module in self.base.get_submodule(owner).named_children():
            if other == name:
                return
            yield module

    def save_memory(self) -> None:
        """See `PaddedModel.save_memory`.

        Raises:
            ModelError: it is not possible, or statistics of batches would count each batch twice.
        """
        if self._batch_norms:
            raise ModelError(
                "--checkpointing is not possible with norm 'batchnorm', which would count every batch twice"
            )
        super().save_memory()

    def compute(self, inputs: dict[str, Tensor], inside: Tensor, padding: int) -> Any:
        """See `PaddedModel.compute`."""
        for norm in self._batch_norms:
            norm.counted = None if inside.all() else inside.flatten()
        return super().compute(inputs, inside, padding)

    @torch.no_grad()
    def frozen_features(self, batch: PackedBatch) -> Tensor:
        """The input of the lowest trained layer; see `AdaptedModel.frozen_features`.

        Returns:
            ``[tokens, hidden]`` in packed order; ``[examples, hidden]`` if only what follows the layers
            trains and the head reads one token per example.
        """
        padding = self.padding(batch)
        inputs, inside = self.pad_rows(batch, padding)
        handle = self._layers()[self.lowest_trained_layer - 1].register_forward_hook(_stop)
        try:
            self.compute(inputs, inside, padding)
            raise AssertionError("the layer was not called")
        except _Stopped as reached:
            states = reached.states
        finally:
            handle.remove()
        if not self._keeps_one:
            return states[inside]
        places = torch.arange(inside.shape[1], device=inside.device)
        read = (places * (inputs["input_ids"] != padding)).argmax(dim=1)  # as the head finds it
        return states[torch.arange(len(read), device=read.device), read]

    def forward_from(self, features: Tensor, batch: PackedBatch) -> Tensor:
        """The rest of `forward`, from the `frozen_features` of the same batch."""
        padding = self.padding(batch)
        inputs, inside = self.pad_rows(batch, padding)
        if self._keeps_one:  # rows of one token that is no padding
            inputs = {name: tensor[:, :1] for name, tensor in inputs.items()}
            inputs["input_ids"] = torch.full_like(inputs["input_ids"], int(padding == 0))
            inside = inside[:, :1]
        states = features.new_zeros(*inside.shape, features.shape[-1])
        states[inside] = features
        with self._beginning_with(states):
            return self.read_out(self.compute(inputs, inside, padding), inside)

    @property
    def _keeps_one(self) -> bool:
        """Whether `frozen_features` are of the one token that the head reads."""
        return self.lowest_trained_layer == self.n_layers and not self.reads_all_positions

    @contextmanager
    def _beginning_with(self, states: Tensor) -> Iterator[None]:
        """Inside, the frozen layers pass on these states in place of computing."""
        with ExitStack() as after:
            for layer in self._layers()[: self.lowest_trained_layer]:
                assert "forward" not in vars(layer), "a layer with its own forward cannot be passed over"
                layer.forward = lambda *_, **__: states  # type: ignore[method-assign]
                after.callback(delattr, layer, "forward")
            yield


class _Stopped(Exception):
    """The states that a forward was run for are there."""

    def __init__(self, states: Tensor):
        super().__init__()
        self.states = states


def _stop(_module: nn.Module, _inputs: tuple, output: Any) -> None:
    raise _Stopped(output if isinstance(output, Tensor) else output[0])


def _put_bottlenecks(loaded: AnyLoaded, method: Adapters, seed: int) -> list[tuple[str, nn.Module]]:
    """Put new adapters into a decoder, which draw their weights in the order of the sites.

    Returns:
        each with its name.
    """
    from adapter_probe.checkpoints.foreign import BaseShape  # whose import takes seconds
    from adapter_probe.checkpoints.placed import put_bottlenecks

    places = DECODERS[loaded.model.config.model_type]
    shape = BaseShape.of(loaded.model, places, places.layer_names(loaded.model.config))
    generator = torch.Generator().manual_seed(seed)
    placed: list[tuple[str, nn.Module]] = []
    for name, adapter in put_bottlenecks(loaded.model, shape, method):
        adapter.initialise(method.init_std, generator)  # type: ignore[union-attr, operator]
        placed.append((name, adapter))
    return placed


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a LayerNorm or one of its kind."""
    return isinstance(module, nn.LayerNorm) or type(module).__name__.endswith(("RMSNorm", "LayerNorm"))


def _stacks_of(model: Any, n_layers: int) -> dict[str, int]:
    """The names of the lists of a model's layers, two of an encoder-decoder, with their sizes."""
    lists = {n: len(m) for n, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m)}
    found = [[name for name, size in lists.items() if size == n_layers]]
    if model.config.is_encoder_decoder:
        sides = (model.get_encoder(), model.get_decoder())
        names = [f"{name}." for name, module in model.named_modules() if module in sides]
        found = [[name for name in lists if name.startswith(side)] for side in names]
    if not all(found):
        raise ModelError(f"a {type(model).__name__} has no list of its layers; give a method of PEFT")
    outer = [min(names, key=lambda name: name.count(".")) for names in found]
    return {name: lists[name] for name in outer}
