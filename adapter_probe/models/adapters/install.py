"""Install adapters in a model: new ones of this project, or those of another library, loaded afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import nn
from transformers import PreTrainedModel

from adapter_probe.errors import ModelError
from adapter_probe.models.bases.family import Anatomy
from adapter_probe.models.layer import Layer
from adapter_probe.models.methods import Adapters

from .bottleneck import Bottleneck
from .configured import ConfiguredBottleneck, FirstToken, StackedHead
from .imported import SITE_KINDS, HeadSpec, ImportedMethod


def install_adapters(
    layers: Sequence[Layer], hidden_size: int, method: Adapters, generator: torch.Generator | None
) -> Iterator[Bottleneck]:
    """Add new adapters at the sites of a method, on the CPU, and yield them.

    Args:
        layers: the layers of the model.
        hidden_size: width of the hidden states.
        method: the adapters.
        generator: CPU generator from which they draw their weights, in site order; None for adapters whose
            weights will be loaded.
    """
    wanted = SITE_KINDS if method.sites == "both" else (method.sites,)
    for number, layer in enumerate(layers):
        for kind, site in zip(SITE_KINDS, layer.sites):
            if kind not in wanted or number in method.skip_layers:
                continue
            adapter = Bottleneck.of(hidden_size, method)
            if generator is not None:  # drawn before moving, so that weights are the same on every device
                adapter.initialise(method.init_std, generator)
            site.install(adapter)
            yield adapter


def install_imported(base: PreTrainedModel, layers: Sequence[Layer], method: ImportedMethod) -> None:
    """Install bottlenecks at their sites.

    Raises:
        ModelError: a layer does not exist, a site gets several adapters, or adapters are inside a sublayer.
    """
    if method.inner:
        raise ModelError(
            f"adapters inside the sublayers, here {' and '.join(method.kinds)}, run only by the model's own "
            "modules, which need no anatomy; omit anatomy"
        )
    for place, n in Counter((spec.layer, spec.site) for spec in method.bottlenecks).items():
        if n > 1:
            raise ModelError(f"{n} adapters at {place} are not supported; at most one is allowed")
    for spec in method.bottlenecks:
        if spec.layer >= len(layers):
            raise ModelError(
                f"an adapter in layer {spec.layer} does not fit the base, whose {len(layers)} layers are 0 "
                f"to {len(layers) - 1}"
            )
        site = layers[spec.layer].sites[SITE_KINDS.index(spec.site)]
        site.install(ConfiguredBottleneck(int(base.config.hidden_size), spec))


def install_head(base: PreTrainedModel, anatomy: Anatomy, head: HeadSpec) -> Anatomy:
    """Replace a family's head by a library's, and return the anatomy with that head.

    Args:
        base: a model for sequence classification; its head is replaced.
        anatomy: anatomy of its family.
        head: the new head.

    Raises:
        ModelError: the head reads a pooler, but the family's model for classification has none.
    """
    *steps, last = anatomy.head
    assert isinstance(last, str), "the last step of every family's head is a module"
    if head.pooled and anatomy.pooler is None:
        raise ModelError(
            f"a head that reads the pooler is not supported on a {base.config.model_type} base, whose model "
            "for classification has none"
        )
    reads_sequence = last in anatomy.reads_sequence
    outputs = int(base.config.num_labels)
    replacement = StackedHead(int(base.config.hidden_size), outputs, head, reads_sequence)
    base.set_submodule(last, replacement.to(base.dtype))
    if not head.pooled:
        for step in steps:  # so that the forward of the transformers model also passes the first token on
            if isinstance(step, str):
                base.set_submodule(step, FirstToken() if step in anatomy.reads_sequence else nn.Identity())
            else:
                base.register_forward_pre_hook(_refuse_own_forward)
        steps = []
    return replace(anatomy, head=(*steps, last), pooler=anatomy.pooler if head.pooled else None)


def _refuse_own_forward(module: nn.Module, _inputs: tuple) -> None:
    name = type(module).__name__
    raise ModelError(
        f"the forward of {name} does more than this checkpoint's head; call the opened model's own methods, "
        "such as logits, instead of its base"
    )
