"""A Hugging Face encoder under one method, with adapters in it or not, run on packed batches."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from adapter_probe.errors import ModelError

from .anatomy import anatomy_for, classification_head, embed, has_span_head, layer_parts, span_logits
from .bottleneck import Bottleneck
from .layer import ADAPTER, Layer, Site
from .methods import Adapters, Group, Method, check_depth

if TYPE_CHECKING:
    from typing_extensions import Self

    from adapter_probe.data.packing import PackedBatch

NormChoice = Literal["trained", "pretrained"]
SITE_KINDS = ("attention", "ffn")


class AdaptedModel(nn.Module):
    """A base under a method, run without padding.

    The base is a transformers model for sequence classification or for question answering. Adapters are
    modules inside it, so its own `forward` applies them too and its state dict names them; `forward` here
    takes packed batches and is what training and the probe use.

    Frozen layers below everything that trains are no place for regularisation: they run without dropout even
    in training, so that what comes out of them is the same in every epoch. A frozen layer above a trained
    one keeps its dropout.

    Attributes:
        base: the transformers model, adapters included.
        layers: the Transformer layers, bottom first, two sites each.
        method: what was installed, or None before `install`.
        reads_all_positions: whether the head reads every token (question answering: start and end logits a
            token) or only each example's first.
        lowest_trained_layer: the lowest layer with a trained parameter, -1 for the embeddings, the number of
            layers where only pooler or head train. Set by `choose_trained`; -1 before.
    """

    def __init__(self, base: PreTrainedModel):
        super().__init__()
        self.anatomy = anatomy_for(base.config)
        self.reads_all_positions = has_span_head(base, self.anatomy)
        self.base = base
        self.method: Method | None = None
        self.lowest_trained_layer = -1
        head_dim = base.config.hidden_size // base.config.num_attention_heads
        self.layers = [Layer(parts, head_dim) for parts in layer_parts(base.base_model, self.anatomy)]
        # The base's own LayerNorms, kept so that a variant can put them back.
        self._pretrained_norms = nn.ModuleList(deepcopy(site.norm) for site in self.sites)
        self._pretrained_norms.requires_grad_(False)
        for site, norm in zip(self.sites, self._pretrained_norms):
            site.pretrained_norm = norm

    @property
    def sites(self) -> list[Site]:
        """Every site in the order the data meets them, two a layer, with an adapter or without."""
        return [site for layer in self.layers for site in layer.sites]

    @property
    def has_adapter(self) -> np.ndarray:
        """Bool ``[sites]``: which sites hold an adapter, so that there is something to switch off."""
        return np.array([site.adapter is not None for site in self.sites])

    @property
    def hidden_size(self) -> int:
        """Width d of the hidden states."""
        return int(self.base.config.hidden_size)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.base.parameters()).device

    def install(self, method: Method, generator: torch.Generator) -> None:
        """Take on a method; one with adapters puts them, freshly initialised, at its sites.

        Args:
            method: what is added and what trains.
            generator: a CPU generator; each adapter draws its own weights from it, in site order. Nothing
                is drawn from torch's global one.

        Raises:
            ModelError: a method is installed already, or needs more layers than there are.
        """
        if self.method is not None:
            raise ModelError(f"this model has a method already, {self.method.name}")
        check_depth(method, len(self.layers))
        if isinstance(method, Adapters):
            wanted = SITE_KINDS if method.sites == "both" else (method.sites,)
            for number, layer in enumerate(self.layers):
                for kind, site in zip(SITE_KINDS, layer.sites):
                    if kind in wanted and number not in method.skip_layers:
                        site.install(self._new_adapter(method, generator))
        self.method = method

    def _new_adapter(self, method: Adapters, generator: torch.Generator) -> Bottleneck:
        adapter = Bottleneck(
            self.hidden_size,
            method.size,
            method.activation,
            norm=method.norm,
            hidden_layers=method.hidden_layers,
            placement=method.placement,
            interaction=method.interaction,
        )
        adapter.initialise(method.init_std, generator)  # before the move: the same draw on every device
        return adapter.to(device=self.device).train(self.training)

    def embed(self, batch: PackedBatch) -> Tensor:
        """Hidden states ``[1, tokens, hidden]`` that enter layer 0."""
        pieces = []
        for group in batch.groups:
            span, shape = slice(group.start, group.stop), (group.n, group.length)
            types = None if batch.token_type_ids is None else batch.token_type_ids[span].view(shape)
            hidden = embed(self.base.base_model, self.anatomy, batch.input_ids[span].view(shape), types)
            pieces.append(hidden.reshape(1, group.n * group.length, -1))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)

    def wanted_positions(self, layer: int, batch: PackedBatch) -> Tensor | None:
        """Positions ``[examples]`` that a layer's states are wanted at, None for all.

        Nothing reads the last layer's other positions where the head reads only the first, so from that
        layer's attention on they are not computed.
        """
        last = layer == len(self.layers) - 1
        return batch.first if last and not self.reads_all_positions else None

    def head(self, hidden: Tensor) -> Tensor:
        """Logits from the last layer's hidden states at the positions that the head reads.

        Args:
            hidden: ``[rows, hidden]``, of the examples' first tokens or, in question answering, of all.

        Returns:
            ``[rows, labels]``; in question answering ``[rows, 2]``, start and end.
        """
        read = span_logits if self.reads_all_positions else classification_head
        return read(self.base, self.anatomy, hidden)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Logits with every adapter on, in the batch's packed order.

        Returns:
            ``[examples, labels]``; in question answering ``[tokens, 2]``, start and end.
        """
        if self.lowest_trained_layer < 0:
            return self.head(self._run(self.embed(batch), batch, 0, len(self.layers))[0])
        return self.forward_from(self.frozen_features(batch), batch)

    @torch.no_grad()
    def frozen_features(self, batch: PackedBatch) -> Tensor:
        """What enters the lowest trained layer: the same for a batch however long training lasts.

        Returns:
            ``[tokens, hidden]`` in packed order, without gradient; where only pooler or head train and the
            head reads first tokens, ``[examples, hidden]``.

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
            hidden = layer.sites[0].finish(*layer.attention(hidden, batch.groups, wanted))
            hidden = layer.sites[1].finish(*layer.ffn(hidden))
        return hidden

    def named_groups(self) -> Iterator[tuple[Group, str, nn.Parameter]]:
        """Every parameter once, as (group, name, parameter).

        Groups: ``adapters`` (with what is inside them), ``layernorms`` (the base's, the embedding LayerNorm
        included), ``pooler``, ``head`` and ``base``.
        """
        norms = {id(p) for site in self.sites for p in site.norm.parameters()}
        embedding_norm = self.base.base_model.get_submodule(self.anatomy.embedding_norm)
        norms |= {id(p) for p in embedding_norm.parameters()}
        for name, parameter in self.base.named_parameters():
            group: Group
            if f".{ADAPTER}." in name:
                group = "adapters"
            elif id(parameter) in norms:
                group = "layernorms"
            elif self._is_pooler(name):
                group = "pooler"
            else:
                group = "base" if name.startswith(self._encoder_prefix) else "head"
            yield group, name, parameter

    @property
    def _encoder_prefix(self) -> str:
        return f"{self.base.base_model_prefix}."

    def _is_pooler(self, name: str) -> bool:
        pooler = self.anatomy.pooler
        return pooler is not None and name.startswith(f"{self._encoder_prefix}{pooler}.")

    def _layer_of(self, name: str) -> int:
        """A parameter's layer: -1 in the embeddings, the number of layers in pooler and head."""
        if not name.startswith(self._encoder_prefix) or self._is_pooler(name):
            return len(self.layers)
        layers = f"{self._encoder_prefix}{self.anatomy.layers}."
        return int(name.removeprefix(layers).partition(".")[0]) if name.startswith(layers) else -1

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
        for group, name, parameter in self.named_groups():
            trains = self.method.trains(group, self._layer_of(name), n_layers) or name in missing
            parameter.requires_grad_(trains)
            if trains:
                trained[name] = parameter
        self.lowest_trained_layer = min(map(self._layer_of, trained), default=n_layers)
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
        encoder, anatomy = self.base.base_model, self.anatomy
        yield encoder.get_submodule(anatomy.embeddings)
        layers = encoder.get_submodule(anatomy.layers)
        yield from (layers[index] for index in range(self.lowest_trained_layer))

    def parameter_counts(self) -> dict[Group, int]:
        """Parameters by group (see `named_groups`)."""
        counts: dict[Group, int] = dict.fromkeys(("adapters", "layernorms", "pooler", "head", "base"), 0)
        for group, _, parameter in self.named_groups():
            counts[group] += parameter.numel()
        return counts
