"""A Hugging Face encoder under one method, with adapters in it or not, run on packed batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import TYPE_CHECKING, get_args

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from adapter_probe.errors import ModelError
from adapter_probe.models.adapters.bottleneck import Bottleneck
from adapter_probe.models.adapters.imported import SITE_KINDS, ImportedMethod
from adapter_probe.models.adapters.install import install_imported
from adapter_probe.models.adapters.low_rank import linear_shape
from adapter_probe.models.bases.anatomy import anatomy_for, check_config
from adapter_probe.models.bases.angles import Angles
from adapter_probe.models.bases.encoder import embed, embedding_modules, layer_parts, outer_norms
from adapter_probe.models.bases.family import Anatomy
from adapter_probe.models.bases.heads import (
    classification_head,
    final_states,
    head_kind,
    logits_in_parts,
    output_embedding,
    read_positions,
    span_logits,
)
from adapter_probe.spans import NormChoice as NormChoice

from .layer import ADAPTER, Layer, Site
from .methods import Adapters, Method, ParameterRole, check_depth, check_shared
from .own_forward import OwnForward
from .parameters import ParameterRoles
from .verification import check_forward, check_owners

if TYPE_CHECKING:
    from typing_extensions import Self

    from adapter_probe.data.packing import PackedBatch


class AdaptedModel(nn.Module):
    """A base under a method, run without padding.

    The base is a transformers model for sequence classification, for question answering or for causal
    language modelling. Adapters are
    modules inside it, so its own `forward` applies them too and its state dict names them; `forward` here
    takes packed batches and is what training and the probe use.

    Frozen layers below everything that trains are no place for regularisation: they run without dropout even
    in training, so that what comes out of them is the same in every epoch. A frozen layer above a trained
    one keeps its dropout.

    An anatomy that does not fit is refused at construction: a layer with parameters that no part owns, and
    embeddings, a layer or a head that differ from those of transformers' own forward on a few tokens.

    Args:
        base: the transformers model.
        anatomy: where its parts are; None for its family's row of the table.
        check: hold the anatomy against the model; not needed where that was done on the same weights.

    Attributes:
        base: the transformers model, adapters included.
        anatomy: where its parts are.
        layers: the Transformer layers, bottom first, two sites each.
        method: what was installed, or None before `install`.
        head_kind: what the head does, "classification", "extractive" (question answering) or "causal".
        lowest_trained_layer: the lowest layer with a trained parameter, -1 for the embeddings, the number of
            layers where only pooler or head train. Set by `choose_trained`; -1 before.
    """

    def __init__(self, base: PreTrainedModel, anatomy: Anatomy | None = None, *, check: bool = True):
        super().__init__()
        if not isinstance(base, PreTrainedModel):
            raise ModelError(f"{type(base).__name__} is not supported; a transformers model is needed")
        self.anatomy = anatomy or anatomy_for(base.config)
        check_config(self.anatomy, base.config)
        self.head_kind = head_kind(base, self.anatomy)
        self.base = base
        self.method: Method | ImportedMethod | None = None
        self.lowest_trained_layer = -1
        self._roles = ParameterRoles(base, self.anatomy, self.head_kind)
        self.layers = self._make_layers()
        # The base's own LayerNorms, kept so that a variant can put them back.
        self._pretrained_norms = nn.ModuleList(deepcopy(site.norm) for site in self.sites)
        self._pretrained_norms.requires_grad_(False)
        for site, norm in zip(self.sites, self._pretrained_norms):
            site.pretrained_norm = norm
        if check:
            check_owners(self.layers, base.config.model_type)
            check_forward(self)
        self._serve_own_forward()

    def _make_layers(self) -> list[Layer]:
        encoder, anatomy = self.base.base_model, self.anatomy
        shared, angles = anatomy.layer_groups is not None, Angles(encoder)
        parallel = anatomy.is_parallel(encoder.config)
        return [
            Layer(
                parts,
                anatomy.attention(encoder, parts.attention, angles),
                anatomy.pre_norm,
                parallel,
                number=number if shared else None,
            )
            for number, parts in enumerate(layer_parts(encoder, anatomy))
        ]

    def _serve_own_forward(self) -> None:
        """Have the transformers model's own forward apply the adapters too."""
        served: dict[nn.Module, list[Layer]] = {}
        for layer in self.layers:
            served.setdefault(layer.parts.whole, []).append(layer)
        for layers in served.values():
            sites = [layer.sites for layer in layers]
            OwnForward(self.base.base_model, layers[0].parts, self.anatomy.pre_norm, sites)

    @property
    def sites(self) -> list[Site]:
        """Every site in the order the data meets them, two a layer, with an adapter or without."""
        return [site for layer in self.layers for site in layer.sites]

    @property
    def has_adapter(self) -> np.ndarray:
        """Bool ``[sites]``: which sites hold an adapter, so that there is something to switch off."""
        return np.array([bool(site.modules) for site in self.sites])

    @property
    def site_parameters(self) -> tuple[int, ...] | None:
        """Parameters of each site's adapter ``[sites]``; None where sites share adapters."""
        own = [{p: p.numel() for m in site.modules for p in m.parameters()} for site in self.sites]
        if len(set().union(*own)) < sum(map(len, own)):
            return None
        return tuple(sum(counts.values()) for counts in own)

    @property
    def forks_early(self) -> np.ndarray:
        """Bool ``[sites]``: where switching changes what the sublayer computes, see `Site`."""
        return np.array([site.forks_early for site in self.sites])

    @property
    def reads_all_positions(self) -> bool:
        """Whether the head reads every token, or only each example's first or last."""
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
        """Where the parameters are."""
        return next(self.base.parameters()).device

    def install(self, method: Method | ImportedMethod, generator: torch.Generator | None) -> None:
        """Take on a method; one with adapters puts them, freshly initialised, at its sites.

        Args:
            method: what is added and what trains. What another library trained comes empty, to be loaded.
            generator: a CPU generator; each adapter draws its own weights from it, in site order. Nothing
                is drawn from torch's global one. None for adapters whose weights are to be loaded.

        Raises:
            ModelError: a method is installed already, or needs more layers than there are.
        """
        if self.method is not None:
            raise ModelError(f"this model has a method already, {self.method.name}")
        if isinstance(method, ImportedMethod):
            install_imported(self.base, self.layers, method)
            self.base.train(self.training).to(self.device)
            self.method = method
            return
        check_depth(method, len(self.layers))
        check_shared(method, self._roles.layer_names)
        if isinstance(method, Adapters):
            wanted = SITE_KINDS if method.sites == "both" else (method.sites,)
            for number, layer in enumerate(self.layers):
                for kind, site in zip(SITE_KINDS, layer.sites):
                    if kind in wanted and number not in method.skip_layers:
                        site.install(self._new_adapter(method, generator))
        self.method = method

    def _new_adapter(self, method: Adapters, generator: torch.Generator | None) -> Bottleneck:
        adapter = Bottleneck(
            self.hidden_size,
            method.size,
            method.activation,
            norm=method.norm,
            hidden_layers=method.hidden_layers,
            placement=method.placement,
            interaction=method.interaction,
        )
        if generator is not None:  # before the move: the same draw on every device
            adapter.initialise(method.init_std, generator)
        return adapter.to(device=self.device).train(self.training)

    def embed(self, batch: PackedBatch) -> Tensor:
        """Hidden states ``[1, tokens, hidden]`` that enter layer 0."""
        pieces = []
        for group in batch.groups:
            span, shape = slice(group.start, group.stop), (group.n, group.length)
            types = None if batch.token_type_ids is None else batch.token_type_ids[span].view(shape)
            ids = batch.input_ids[span].view(shape)
            hidden = embed(self.base.base_model, self.anatomy, ids, types, group.positions)
            pieces.append(hidden.reshape(1, group.n * group.length, -1))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)

    def check_norms(self, norms: NormChoice) -> None:
        """Refuse to put the base's own LayerNorms back where there is no telling which a site has.

        A LayerNorm that follows a site's residual sum is the site's. One that a sublayer begins with reads
        what all sites below have added up, so switching a single site off says nothing about it.

        Raises:
            ModelError: the base has LayerNorms of the second kind, and `norms` is not "trained".
        """
        if norms != "trained" and self.anatomy.pre_norm:
            raise ModelError(
                f"LayerNorms {norms!r} are not possible with a {self.base.config.model_type} base, whose "
                "LayerNorms stand before the sublayers and belong to no single site; allowed is 'trained'"
            )

    def wanted_positions(self, layer: int, batch: PackedBatch) -> Tensor | None:
        """Positions ``[read]`` that a layer's states are wanted at, None for all.

        Nothing reads the last layer's other positions than those that the head reads, so from that layer's
        attention on they are not computed, unless an adapter there looks at an example as a whole.
        """
        if layer < len(self.layers) - 1 or self._last_reads_whole:
            return None
        return self.read_positions(batch)

    @property
    def _last_reads_whole(self) -> bool:
        return any(getattr(site.adapter, "gate", None) is not None for site in self.layers[-1].sites)

    def read_positions(self, batch: PackedBatch) -> Tensor | None:
        """Positions ``[read]`` that the head reads, None for all."""
        if self.reads_all_positions:
            return batch.read
        return read_positions(batch, self.anatomy, self.base.config.pad_token_id)

    def read(self, hidden: Tensor, batch: PackedBatch) -> Tensor:
        """What the head reads of the last layer's hidden states ``[nodes, rows, hidden]``."""
        positions = self.read_positions(batch) if self._last_reads_whole else None
        return hidden if positions is None else hidden[:, positions]

    def head(self, hidden: Tensor) -> Tensor:
        """Logits from the last layer's hidden states at the positions that the head reads.

        Args:
            hidden: ``[rows, hidden]``, of one token an example (see `wanted_positions`); in question
                answering of all; of a causal model wherever the next token is asked for. A LayerNorm between
                the last layer and the head is applied here.

        Returns:
            ``[rows, labels]``; in question answering ``[rows, 2]``, start and end; of a causal model
            ``[rows, vocabulary]``.
        """
        if self.head_kind == "causal":
            return self.output_embedding(self.final_states(hidden))
        read = span_logits if self.head_kind == "extractive" else classification_head
        return read(self.base, self.anatomy, hidden)

    def final_states(self, hidden: Tensor) -> Tensor:
        """What a causal model's output embedding reads of the last layer's states ``[rows, hidden]``."""
        return final_states(self.base, self.anatomy, hidden)

    def output_embedding(self, states: Tensor) -> Tensor:
        """A causal model's logits ``[rows, vocabulary]`` from its `final_states` ``[rows, hidden]``."""
        return output_embedding(self.base, states)

    def logits_in_parts(self, states: Tensor, size: int) -> Iterator[tuple[int, Tensor]]:
        """The same, so many tokens of the vocabulary at a time; see `heads.logits_in_parts`."""
        return logits_in_parts(self.base, states, size)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Logits with every adapter on, in the batch's packed order.

        Returns:
            ``[examples, labels]``; in question answering ``[tokens, 2]``, start and end; of a causal model
            ``[tokens, vocabulary]``.
        """
        if self.lowest_trained_layer < 0:
            return self.head(self._run(self.embed(batch), batch, 0, len(self.layers))[0])
        return self.forward_from(self.frozen_features(batch), batch)

    @torch.no_grad()
    def frozen_features(self, batch: PackedBatch) -> Tensor:
        """What enters the lowest trained layer: the same for a batch however long training lasts.

        Returns:
            ``[tokens, hidden]`` in packed order, without gradient; where only pooler or head train and the
            head reads one token an example, ``[examples, hidden]``.

        Raises:
            ValueError: the embeddings train (or nothing was chosen to train yet), so nothing is frozen.
        """
        if self.lowest_trained_layer < 0:
            raise ValueError("the embeddings train, so no part of the model below them is frozen")
        return self._run(self.embed(batch), batch, 0, self.lowest_trained_layer)[0]

    def forward_from(self, features: Tensor, batch: PackedBatch) -> Tensor:
        """The rest of `forward`, from `frozen_features` of the same batch, which may have been kept."""
        return self.head(self._run(features[None], batch, self.lowest_trained_layer, len(self.layers))[0])

    def _run(self, hidden: Tensor, batch: PackedBatch, start: int, stop: int) -> Tensor:
        """Hidden states ``[1, rows, hidden]`` through layers `start` to `stop` - 1."""
        for index in range(start, stop):
            layer = self.layers[index]
            wanted = self.wanted_positions(index, batch)
            attended = layer.attention(hidden, batch.groups, wanted)
            hidden = layer.sites[0].finish(*attended, batch.groups)
            hidden = layer.sites[1].finish(*layer.ffn(hidden), batch.groups)
        return self.read(hidden, batch) if start < stop == len(self.layers) else hidden

    def named_roles(self) -> Iterator[tuple[ParameterRole, str, nn.Parameter]]:
        """Every parameter once, as (role, name, parameter).

        Roles: ``adapters`` (with what is inside them), ``layernorms`` (the base's, those of the embeddings
        and after the last layer included), ``pooler``, ``head`` and ``base``. A causal model's output
        embedding is pretrained, so it is of the ``base``.
        """
        modules = [norm for layer in self.layers for norm in layer.parts.norms]
        modules += outer_norms(self.base.base_model, self.anatomy)
        norms = {id(p) for module in modules for p in module.parameters()}
        for name, parameter in self.base.named_parameters():
            yield self._roles.role(name, id(parameter) in norms), name, parameter

    def choose_trained(self, missing: frozenset[str]) -> dict[str, nn.Parameter]:
        """Let the method's parameters train, freeze the others, and return those that train by name.

        Args:
            missing: names that the base did not contain; they are random until trained, so always train.

        Raises:
            ModelError: no method is installed.
        """
        if self.method is None:
            raise ModelError("this model has no method yet, so nothing says what trains")
        n_layers, trained = len(self.layers), {}
        for role, name, parameter in self.named_roles():
            trains = self.method.trains(role, self._roles.layer(name), n_layers) or name in missing
            parameter.requires_grad_(trains)
            if trains:
                trained[name] = parameter
        self.lowest_trained_layer = min(map(self._roles.layer, trained), default=n_layers)
        self.train(self.training)  # what is newly frozen loses its dropout at once
        return trained

    def named_delta(self) -> dict[str, Tensor]:
        """Every tensor that training changes, by its name in the base's state dict.

        These are the parameters that `choose_trained` chose, and the running averages inside adapters with
        batch normalisation. A model with these tensors on the same base is the same model.
        """
        delta: dict[str, Tensor] = {n: p for n, p in self.base.named_parameters() if p.requires_grad}
        return delta | {n: b for n, b in self.base.named_buffers() if f".{ADAPTER}." in n}

    def train(self, mode: bool = True) -> Self:
        """Training or evaluation mode; the frozen part below everything that trains stays in evaluation."""
        super().train(mode)
        for module in self._frozen_modules():
            module.eval()
        return self

    def _frozen_modules(self) -> Iterator[nn.Module]:
        """The modules that lie whole below the lowest trained layer."""
        if self.lowest_trained_layer < 0:
            return
        yield from embedding_modules(self.base.base_model, self.anatomy)
        yield from (layer.parts.whole for layer in self.layers[: self.lowest_trained_layer])

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or cast. Buffers that are computed and not stored keep their precision, as in transformers.

        Rotary frequencies among them: rounded to bfloat16, positions far into a text are lost.
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

    def parameter_counts(self) -> dict[ParameterRole, int]:
        """Parameters by role (see `named_roles`)."""
        counts: dict[ParameterRole, int] = dict.fromkeys(get_args(ParameterRole), 0)
        for role, _, parameter in self.named_roles():
            counts[role] += parameter.numel()
        return counts
