"""A Hugging Face model with one method installed, with or without adapters, run on packed batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from adapter_probe.errors import ModelError
from adapter_probe.models.adapters.imported import ImportedMethod
from adapter_probe.models.adapters.install import install_adapters, install_imported
from adapter_probe.models.bases.anatomy import anatomy_for, check_config
from adapter_probe.models.bases.angles import Angles
from adapter_probe.models.bases.encoder import embed, embedding_modules, layer_parts, outer_norms
from adapter_probe.models.bases.family import Anatomy
from adapter_probe.models.bases.heads import (
    classification_head,
    head_kind,
    position_logits,
)
from adapter_probe.models.bases.parts import linear_shape
from adapter_probe.settings import NormChoice as NormChoice
from adapter_probe.spans import Stack

from .layer import ADAPTER, Layer, Site
from .methods import Adapters, Method, ParameterRole, check_depth, check_shared
from .own_forward import OwnForward
from .parameters import ParameterRoles
from .verification import check_anatomy

if TYPE_CHECKING:
    from typing_extensions import Self

    from adapter_probe.data.packing import PackedBatch

_FEWEST_ROWS = 32  # to which the rows of a batch are rounded up in training; more for longer batches
_MOST_ADDED = 0.04  # of a batch's rows, in evaluation


class AdaptedModel(nn.Module):
    """A base model with a method installed, run without padding.

    The base is a transformers model for the classification of sequences or tokens, or for question answering.
    Adapters are modules inside it, so its own `forward` applies them too and its state dict contains them;
    the `forward` of this class takes packed batches and is used by training and the probe.

    Frozen layers below all trained parameters run without dropout even in training, so that their outputs are
    the same in every epoch. A frozen layer above a trained one keeps its dropout.

    An anatomy that does not fit is refused at construction: if a layer has parameters that no part owns, or
    if embeddings, a layer or the head differ from the forward of transformers on a few tokens.

    Args:
        base: the transformers model.
        anatomy: anatomy of the model; None for the one of its family.
        check: verify the anatomy on the model; not needed if done before on the same weights.

    Attributes:
        base: the transformers model, adapters included.
        anatomy: anatomy of the model.
        layers: the Transformer layers, bottom first, with two sites each.
        method: the installed method, or None before `install`.
        head_kind: kind of head, "classification", "extractive" (question answering) or "tokens" (tags).
        lowest_trained_layer: the lowest layer with a trained parameter; -1 for the embeddings, the number of
            layers if only pooler or head train. Set by `choose_trained`; -1 before.
    """

    def __init__(self, base: PreTrainedModel, anatomy: Anatomy | None = None, *, check: bool = True):
        super().__init__()
        if not isinstance(base, PreTrainedModel):
            raise ModelError(f"{type(base).__name__} is not supported; give a transformers model")
        self.anatomy = anatomy or anatomy_for(base.config)
        check_config(self.anatomy, base.config)
        self.head_kind = head_kind(base, self.anatomy)
        self.base = base
        self.method: Method | ImportedMethod | None = None
        self.lowest_trained_layer = -1
        self._roles = ParameterRoles(base, self.anatomy)
        encoder, angles = base.base_model, Angles(base.base_model)
        shared = self.anatomy.layer_groups is not None
        self.layers = [
            Layer(
                parts,
                self.anatomy.attention(encoder, parts.attention, angles),
                self.anatomy.pre_norm,
                number=number if shared else None,
            )
            for number, parts in enumerate(layer_parts(encoder, self.anatomy))
        ]
        # The base's LayerNorms, kept so that variants can restore them.
        self._pretrained_norms = nn.ModuleList(deepcopy(site.norm) for site in self.sites)
        self._pretrained_norms.requires_grad_(False)
        for site, norm in zip(self.sites, self._pretrained_norms):
            site.pretrained_norm = norm
        if check:
            check_anatomy(self)
        for whole in dict.fromkeys(layer.parts.whole for layer in self.layers):
            using = [layer for layer in self.layers if layer.parts.whole is whole]
            sites = [layer.sites for layer in using]
            OwnForward(base.base_model, using[0].parts, self.anatomy.pre_norm, sites)

    @property
    def sites(self) -> list[Site]:
        """All sites in the order of computation, two per layer, with or without adapters."""
        return [site for layer in self.layers for site in layer.sites]

    @property
    def site_modules(self) -> list[list[nn.Module]]:
        """The adapters that each site switches."""
        return [site.modules for site in self.sites]

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The only stack of layers."""
        return (Stack("", len(self.layers)),)

    @property
    def has_adapter(self) -> np.ndarray:
        """Bool ``[sites]``: which sites hold an adapter that can be switched off."""
        return np.array(list(map(bool, self.site_modules)))

    @contextmanager
    def switched_off(self, mask: np.ndarray) -> Iterator[None]:
        """Inside, the adapters of some sites are off: those where the mask, bool ``[sites]``, is false."""
        with ExitStack() as stack:
            for site in np.flatnonzero(~mask):
                stack.enter_context(self.sites[site].switched(False))
            yield

    def scale_off(self, strength: float) -> None:
        """Multiply the change of adapters that are off by a number, instead of leaving it out."""
        for site in self.sites:
            site.strength = strength

    @property
    def numbers_layers_as_peft(self) -> bool:
        """Whether a layer has the number that PEFT's ``layers_to_transform`` gives it."""
        return True

    @property
    def site_parameters(self) -> tuple[int, ...] | None:
        """Number of parameters of each site's adapter ``[sites]``; None if sites share adapters."""
        own = [{p: p.numel() for m in site.modules for p in m.parameters()} for site in self.sites]
        if len(set().union(*own)) < sum(map(len, own)):
            return None
        return tuple(sum(counts.values()) for counts in own)

    @property
    def forks_early(self) -> np.ndarray:
        """Bool ``[sites]``: sites whose switch changes the computation inside the sublayer: none."""
        return np.zeros(len(self.sites), dtype=bool)

    @property
    def reads_all_positions(self) -> bool:
        """Whether the head reads every token instead of only the first of each example."""
        return self.head_kind != "classification"

    @property
    def hidden_size(self) -> int:
        """Width d of the hidden states."""
        return int(self.base.config.hidden_size)

    @property
    def inner_size(self) -> int:
        """Width inside the feed-forward network."""
        return linear_shape(self.layers[0].parts.ffn_in, "the feed-forward network's first map")[1]

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.base.parameters()).device

    def install(self, method: Method | ImportedMethod, generator: torch.Generator | None) -> None:
        """Install a method; its adapters, if any, are added at their sites with new initial weights.

        Args:
            method: the method. Adapters of another library are added without values, to be loaded.
            generator: CPU generator from which adapters draw their weights, in site order; torch's global
                generator is not used. None for adapters whose weights will be loaded.

        Raises:
            ModelError: a method is installed already, it needs more layers than there are, or it has
                adapters inside the sublayers, which the general engine runs.
        """
        if self.method is not None:
            raise ModelError(f"this model already has a method, {self.method.name}")
        if isinstance(method, ImportedMethod):
            install_imported(self.base, self.layers, method)
            self.base.train(self.training).to(self.device)
            self.method = method
            return
        check_depth(method, len(self.layers))
        check_shared(method, self._roles.layer_names)
        if isinstance(method, Adapters):
            for adapter in install_adapters(self.layers, self.hidden_size, method, generator):
                adapter.to(device=self.device).train(self.training)
        self.method = method

    def embed(self, batch: PackedBatch) -> Tensor:
        """Hidden states ``[1, tokens, hidden]`` that enter layer 0."""
        pieces = []
        for group in batch.groups:
            size, shape = group.n * group.length, (group.n, group.length)
            ids, types = batch.input_ids.narrow(0, group.start, size).view(shape), batch.token_type_ids
            types = None if types is None else types.narrow(0, group.start, size).view(shape)
            hidden = embed(self.base.base_model, self.anatomy, ids, types)
            pieces.append(hidden.reshape(1, size, -1))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)

    def check_norms(self, norms: NormChoice) -> None:
        """Refuse to restore the base's LayerNorms if they do not belong to single sites.

        A LayerNorm after a site's residual sum belongs to the site. A LayerNorm at the start of a sublayer
        reads the sum of all sites below, so it belongs to no single site.

        Raises:
            ModelError: the base has LayerNorms of the second kind, and `norms` is not "trained".
        """
        if norms != "trained" and self.anatomy.pre_norm:
            raise ModelError(
                f"--layernorm {norms} is not possible with a {self.base.config.model_type} base, whose "
                "LayerNorms precede the sublayers and belong to no single site; use --layernorm trained"
            )

    def wanted_positions(self, layer: int, batch: PackedBatch) -> Tensor | None:
        """Positions ``[read]`` at which a layer's outputs are needed; None for all.

        In the last layer, only the positions that the head reads are computed from the attention on, unless
        an adapter there uses all tokens of an example.
        """
        if layer < len(self.layers) - 1 or self._last_reads_whole:
            return None
        return self.read_positions(batch)

    @property
    def _last_reads_whole(self) -> bool:
        return any(getattr(site.adapter, "gate", None) is not None for site in self.layers[-1].sites)

    @property
    def _normalises_batches(self) -> bool:
        return isinstance(self.method, Adapters) and self.method.norm == "batchnorm"

    def read_positions(self, batch: PackedBatch) -> Tensor | None:
        """Positions ``[read]`` that the head reads, None for all."""
        if self.reads_all_positions:
            return None
        return batch.first

    def read(self, hidden: Tensor, batch: PackedBatch) -> Tensor:
        """The part of the last layer's hidden states ``[nodes, rows, hidden]`` that the head reads."""
        positions = self.read_positions(batch) if self._last_reads_whole else None
        return hidden if positions is None else hidden[:, positions]

    def head(self, hidden: Tensor) -> Tensor:
        """Logits from the last layer's hidden states at the positions that the head reads.

        Args:
            hidden: ``[rows, hidden]``, one token per example (see `wanted_positions`), all tokens for
                question answering and tags. A LayerNorm between the last
                layer and the head is applied here.

        Returns:
            ``[rows, labels]``; in question answering ``[rows, 2]``, start and end.
        """
        if self.reads_all_positions:
            return position_logits(self.base, self.anatomy, self.head_kind, hidden)
        return classification_head(self.base, self.anatomy, hidden)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Logits with every adapter on, in the batch's packed order.

        Returns:
            ``[examples, labels]``; in question answering ``[tokens, 2]``, start and end; of tags
            ``[tokens, tags]``.
        """
        if self.lowest_trained_layer < 0:
            return self.head(self._run(self.embed(batch), batch, 0, len(self.layers))[0])
        return self.forward_from(self.frozen_features(batch), batch)

    @torch.no_grad()
    def frozen_features(self, batch: PackedBatch) -> Tensor:
        """The input of the lowest trained layer, which stays the same for a batch during training.

        Returns:
            ``[tokens, hidden]`` in packed order, without gradient; ``[examples, hidden]`` if only pooler or
            head train and the head reads one token per example.

        Raises:
            ValueError: the embeddings train (or `choose_trained` was not called), so nothing is frozen.
        """
        if self.lowest_trained_layer < 0:
            raise ValueError("the embeddings train, so no part of the model below them is frozen")
        return self._run(self.embed(batch), batch, 0, self.lowest_trained_layer)[0]

    def forward_from(self, features: Tensor, batch: PackedBatch) -> Tensor:
        """The rest of `forward`, from the (possibly cached) `frozen_features` of the same batch."""
        return self.head(self._run(features[None], batch, self.lowest_trained_layer, len(self.layers))[0])

    def _run(self, hidden: Tensor, batch: PackedBatch, start: int, stop: int) -> Tensor:
        """Hidden states ``[1, rows, hidden]`` through layers `start` to `stop` - 1."""
        if start == stop:
            return hidden
        hidden = self.with_added_rows(hidden, batch)
        for index in range(start, stop):
            layer = self.layers[index]
            wanted = self.wanted_positions(index, batch)
            hidden = layer.run(hidden, batch.groups, wanted)
        hidden = self.read(hidden, batch) if stop == len(self.layers) else hidden
        return hidden[:, : batch.n_tokens]

    def with_added_rows(self, hidden: Tensor, batch: PackedBatch) -> Tensor:
        """States ``[nodes, tokens, hidden]`` with rows of zeros at the end, which belong to no example.

        In bfloat16 on a CPU, the matrix products' library generates code for each number of rows, which takes
        as long as the products of a small batch. With the added rows, few numbers of rows occur.
        """
        return F.pad(hidden, (0, 0, 0, self._rows_added(hidden, batch.n_tokens)))

    def _rows_added(self, hidden: Tensor, tokens: int) -> int:
        if hidden.device.type != "cpu" or self._normalises_batches:
            return 0
        if torch.is_autocast_enabled("cpu"):
            return -tokens % max(_FEWEST_ROWS, (1 << tokens.bit_length()) // _FEWEST_ROWS)
        if hidden.dtype != torch.bfloat16:
            return 0
        return next(n for k in range(6, -1, -1) if (n := -tokens % (1 << k)) <= _MOST_ADDED * tokens)

    def named_roles(self) -> Iterator[tuple[ParameterRole, str, nn.Parameter]]:
        """Every parameter once, as (role, name, parameter).

        Roles: ``adapters`` (with what is inside them), ``layernorms`` (the base's, those of the embeddings
        and after the last layer included), ``pooler``, ``head`` and ``base``.
        """
        modules = [norm for layer in self.layers for norm in layer.parts.norms]
        modules += outer_norms(self.base.base_model, self.anatomy)
        norms = {id(p) for module in modules for p in module.parameters()}
        for name, parameter in self.base.named_parameters():
            yield self._roles.role(name, id(parameter) in norms), name, parameter

    def choose_trained(self, missing: frozenset[str]) -> dict[str, nn.Parameter]:
        """Make the method's parameters trainable, freeze the others, and return the trainable ones by name.

        Args:
            missing: names of parameters that the base lacks; they are random, so they always train.

        Raises:
            ModelError: no method is installed.
        """
        if self.method is None:
            raise ModelError("this model has no method; call install first")
        n_layers, trained = len(self.layers), {}
        for role, name, parameter in self.named_roles():
            trains = name in missing or self.method.trains(
                role, self._roles.layer(name), n_layers, name.endswith("bias")
            )
            parameter.requires_grad_(trains)
            if trains:
                trained[name] = parameter
        self.lowest_trained_layer = min(map(self._roles.layer, trained), default=n_layers)
        self.train(self.training)  # newly frozen layers lose their dropout at once
        return trained

    def named_delta(self) -> dict[str, Tensor]:
        """Every tensor that training changes, by its name in the base's state dict.

        These are the parameters chosen by `choose_trained`, and the running averages inside adapters with
        batch normalisation. A model with these tensors on the same base is the same model.
        """
        delta: dict[str, Tensor] = {n: p for n, p in self.base.named_parameters() if p.requires_grad}
        return delta | {n: b for n, b in self.base.named_buffers() if f".{ADAPTER}." in n}

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode; frozen layers below all trained ones stay in evaluation mode."""
        super().train(mode)
        if self.lowest_trained_layer >= 0:
            frozen = [layer.parts.whole for layer in self.layers[: self.lowest_trained_layer]]
            for module in (*embedding_modules(self.base.base_model, self.anatomy), *frozen):
                module.eval()
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or cast. Computed buffers that are not stored keep their precision, as in transformers.

        This includes rotary frequencies, whose rounding to bfloat16 would destroy late positions.
        """
        kept = [
            (module, name, buffer)
            for module in self.base.modules()
            for name, buffer in module.named_buffers(recurse=False)
            if name in module._non_persistent_buffers_set and buffer.is_floating_point()
        ]
        super()._apply(fn, recurse)
        for module, name, buffer in kept:
            setattr(module, name, buffer.to(getattr(module, name).device))
        return self

    @property
    def adapter_parameters(self) -> int:
        """Number of parameters of all adapters."""
        return self.parameter_counts()["adapters"]

    def parameter_counts(self) -> dict[ParameterRole, int]:
        """Parameters by role (see `named_roles`)."""
        counts: dict[ParameterRole, int] = dict.fromkeys(get_args(ParameterRole), 0)
        for role, _, parameter in self.named_roles():
            counts[role] += parameter.numel()
        return counts
