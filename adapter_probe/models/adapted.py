"""A Hugging Face encoder with adapters in it, run on packed batches."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from adapter_probe.errors import ModelError

from .anatomy import LayerParts, anatomy_for, classification_head, embed, layer_parts, split_heads
from .bottleneck import Bottleneck
from .methods import Adapters

if TYPE_CHECKING:
    from adapter_probe.data.packing import Group, PackedBatch

ADAPTER = "adapter"
NormChoice = Literal["trained", "pretrained"]


class Site:
    """One adapter's place: after a sublayer's projection and dropout, before residual sum and LayerNorm."""

    def __init__(self, holder: nn.Module, dropout: nn.Module, norm: nn.LayerNorm):
        self._holder = holder
        self.norm = norm
        self.pretrained_norm: nn.LayerNorm = norm
        # The packed forward below calls the adapter itself; this hook serves the model's own forward.
        dropout.register_forward_hook(self._adapt)

    @property
    def adapter(self) -> Bottleneck | None:
        """The adapter at this site, or None where there is none."""
        return getattr(self._holder, ADAPTER, None)

    def install(self, adapter: Bottleneck) -> None:
        """Put an adapter here; it shows in the model's state dict as ``<sublayer>.adapter.*``."""
        self._holder.add_module(ADAPTER, adapter)

    def _adapt(self, _module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        return None if self.adapter is None else self.adapter(output)

    def finish(self, x: Tensor, residual: Tensor) -> Tensor:
        """The sublayer's output with the adapter on: LayerNorm(adapter(x) + residual)."""
        return self.norm((x if self.adapter is None else self.adapter(x)) + residual)


class Layer:
    """One Transformer layer on packed hidden states ``[nodes, tokens, hidden]``.

    `nodes` are row groups that all hold the same examples (variants of the model); plain evaluation and
    training have one.
    """

    def __init__(self, parts: LayerParts, head_dim: int):
        self.parts = parts
        self._head_dim = head_dim
        self.sites = (
            Site(parts.attention_site, parts.attention_out_dropout, parts.attention_norm),
            Site(parts.ffn_site, parts.ffn_out_dropout, parts.ffn_norm),
        )

    def attention(
        self, hidden: Tensor, groups: tuple[Group, ...], first: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The attention sublayer up to its site: (projected output, residual).

        Args:
            hidden: ``[nodes, tokens, hidden]``.
            groups: the exact-length groups along the token axis.
            first: positions ``[examples]`` that alone are wanted (each example's first token); None for all.

        Returns:
            Two tensors ``[nodes, tokens or examples, hidden]``.
        """
        parts = self.parts
        wanted = hidden if first is None else hidden[:, first]
        query, key, value = parts.query(wanted), parts.key(hidden), parts.value(hidden)
        context, done = [], 0
        for group in groups:
            rows = group.n if first is not None else group.n * group.length
            span = slice(group.start, group.stop)
            context.append(
                self._attend(query[:, done : done + rows], key[:, span], value[:, span], group.length)
            )
            done += rows
        joined = context[0] if len(context) == 1 else torch.cat(context, dim=1)
        return _drop(parts.attention_out(joined), parts.attention_out_dropout), wanted

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, length: int) -> Tensor:
        """Attention inside one group; ``[nodes, n * positions, width]`` in and out."""
        nodes, total, width = query.shape
        rows = nodes * key.shape[1] // length
        # [nodes, n * length, width] -> [nodes * n, heads, length, head_dim]
        q, k, v = (split_heads(t.reshape(rows, -1, width), self._head_dim) for t in (query, key, value))
        dropout = self.parts.attention_dropout
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout.p if dropout.training else 0.0)
        return out.transpose(1, 2).reshape(nodes, total, width)

    def ffn(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The feed-forward sublayer up to its site: (projected output, residual), shaped as `hidden`."""
        parts = self.parts
        inner = parts.activation(parts.ffn_in(hidden))
        return _drop(parts.ffn_out(inner), parts.ffn_out_dropout), hidden


def _drop(x: Tensor, dropout: nn.Dropout) -> Tensor:
    """`dropout` without its forward hook, which would apply the adapter a second time."""
    return F.dropout(x, dropout.p, dropout.training)


class AdaptedModel(nn.Module):
    """A base with adapters, run without padding.

    The base is a transformers model for sequence classification. The adapters are modules inside it, so its
    own `forward` applies them too and its state dict names them; `forward` here takes packed batches and
    is what training and the probe use.

    Attributes:
        base: the transformers model, adapters included.
        layers: the Transformer layers, bottom first, two sites each.
        method: what was installed, or None before `install`.
    """

    def __init__(self, base: PreTrainedModel):
        super().__init__()
        self.anatomy = anatomy_for(base.config)
        self.base = base
        self.method: Adapters | None = None
        head_dim = base.config.hidden_size // base.config.num_attention_heads
        self.layers = [Layer(parts, head_dim) for parts in layer_parts(base.base_model, self.anatomy)]
        # The base's own LayerNorms, kept so that a variant can put them back.
        self._pretrained_norms = nn.ModuleList(deepcopy(site.norm) for site in self.sites)
        for site, norm in zip(self.sites, self._pretrained_norms):
            site.pretrained_norm = norm

    @property
    def sites(self) -> list[Site]:
        """Every site in the order the data meets them."""
        return [site for layer in self.layers for site in layer.sites]

    @property
    def hidden_size(self) -> int:
        """Width d of the hidden states."""
        return int(self.base.config.hidden_size)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.base.parameters()).device

    def install(self, method: Adapters, generator: torch.Generator) -> None:
        """Put freshly initialised adapters at every site.

        Args:
            method: size, initialisation and activation.
            generator: a CPU generator; each module draws its own weights from it, in site order.

        Raises:
            ModelError: adapters are installed already.
        """
        if self.method is not None:
            raise ModelError("this model has adapters already")
        like = next(self.base.parameters())
        for site in self.sites:
            adapter = Bottleneck(self.hidden_size, method.size, method.activation)
            adapter.initialise(method.init_std, generator)
            site.install(adapter.to(device=like.device))
        self.method = method

    def embed(self, batch: PackedBatch) -> Tensor:
        """Hidden states ``[1, tokens, hidden]`` that enter layer 0."""
        pieces = []
        for group in batch.groups:
            span, shape = slice(group.start, group.stop), (group.n, group.length)
            types = None if batch.token_type_ids is None else batch.token_type_ids[span].view(shape)
            hidden = embed(self.base.base_model, self.anatomy, batch.input_ids[span].view(shape), types)
            pieces.append(hidden.reshape(1, group.n * group.length, -1))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)

    def head(self, first_hidden: Tensor) -> Tensor:
        """Logits ``[rows, labels]`` from hidden states ``[rows, hidden]`` of the examples' first tokens."""
        return classification_head(self.base, self.anatomy, first_hidden)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Logits ``[examples, labels]`` in the batch's packed order, every adapter on."""
        hidden = self.embed(batch)
        for layer in self.layers:
            first = batch.first if layer is self.layers[-1] else None
            hidden = layer.sites[0].finish(*layer.attention(hidden, batch.groups, first))
            hidden = layer.sites[1].finish(*layer.ffn(hidden))
        return self.head(hidden[0])

    def named_groups(self) -> Iterator[tuple[str, str, nn.Parameter]]:
        """Every parameter once, as (group, name, parameter).

        Groups: ``adapters``, ``layernorms`` (the embedding LayerNorm included), ``pooler``, ``head`` and
        ``base``.
        """
        encoder_prefix = f"{self.base.base_model_prefix}."
        norms = {id(p) for site in self.sites for p in site.norm.parameters()}
        embedding_norm = self.base.base_model.get_submodule(self.anatomy.embedding_norm)
        norms |= {id(p) for p in embedding_norm.parameters()}
        pooler = f"{encoder_prefix}{self.anatomy.pooler}." if self.anatomy.pooler else None
        for name, parameter in self.base.named_parameters():
            if f".{ADAPTER}." in name:
                group = "adapters"
            elif id(parameter) in norms:
                group = "layernorms"
            elif pooler and name.startswith(pooler):
                group = "pooler"
            else:
                group = "base" if name.startswith(encoder_prefix) else "head"
            yield group, name, parameter

    def choose_trained(self, missing: frozenset[str]) -> dict[str, nn.Parameter]:
        """Freeze the base, let the method's parameters train, and return those by name.

        Args:
            missing: names that the base did not contain; they are random until trained, so always train.
        """
        trained_groups = {"adapters", "layernorms", "head"}
        if self.method is not None and self.method.train_pooler:
            trained_groups.add("pooler")
        trained = {}
        for group, name, parameter in self.named_groups():
            parameter.requires_grad_(group in trained_groups or name in missing)
            if parameter.requires_grad:
                trained[name] = parameter
        return trained

    def parameter_counts(self) -> dict[str, int]:
        """Parameters by group (see `named_groups`)."""
        counts = dict.fromkeys(("adapters", "layernorms", "pooler", "head", "base"), 0)
        for group, _, parameter in self.named_groups():
            counts[group] += parameter.numel()
        return counts
