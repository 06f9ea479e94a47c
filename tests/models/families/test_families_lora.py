"""LoRA in every linear map of the layers, switched off span by span, against merged weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from exact import assert_close_in_float64
from torch import nn

from adapter_probe.data.packing import pack
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.models.adapters.imported import ImportedMethod, InnerSpec
from adapter_probe.probe.pairs import forward_pairs
from adapter_probe.probe.tree import forward_variants
from adapter_probe.spans import span_variants

SCALE = 0.7
PARTS = (
    ("query", "key", "value", "qkv", "attention_out"),  # of the attention sublayer
    ("ffn_in", "ffn_gate", "ffn_out"),
)


def modules(model: AdaptedModel, layer: int, kind: int) -> list[str]:
    """Names in the base of one sublayer's linear maps."""
    names = vars(model.anatomy.layer)
    whole = model.anatomy.layer_names(model.base.config)[layer]
    return [f"{model.base.base_model_prefix}.{whole}.{names[p]}" for p in PARTS[kind] if names[p] is not None]


def with_lora(base: nn.Module) -> AdaptedModel:
    model = AdaptedModel(base)
    every = [name for layer in range(3) for kind in (0, 1) for name in modules(model, layer, kind)]
    specs = tuple(InnerSpec(name, "low_rank", rank=2, scale=SCALE) for name in every)
    model.install(ImportedMethod("peft", ("lora",), inner=specs), torch.Generator())
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for role, _, parameter in model.named_roles():
            if role == "adapters":
                parameter.normal_(0, 0.3, generator=generator)
    return model.double().eval()


def merged(plain: nn.Module, model: AdaptedModel, mask: np.ndarray) -> nn.Module:
    """The transformers model with the LoRA of the sites in `mask` in its weights."""
    state = model.base.state_dict()
    plain.load_state_dict({name: tensor for name, tensor in state.items() if ".adapter." not in name})
    with torch.no_grad():
        for site in np.flatnonzero(mask):
            for name in modules(model, *divmod(site, 2)):
                change = SCALE * state[f"{name}.adapter.up.weight"] @ state[f"{name}.adapter.down.weight"]
                part = plain.get_submodule(name)
                part.weight += change if isinstance(part, nn.Linear) else change.T
    return plain


@pytest.mark.usefixtures("in_float64")
def test_every_span_equals_merged_weights(
    family: str, plain_model: Callable, own_logits: Callable, random_examples: Callable
):
    if family.startswith("albert"):
        pytest.skip("layers that share their weights cannot be merged apart")
    plain = plain_model(family)
    model, encoded = with_lora(plain_model(family)), random_examples((5, 12, 1))
    masks = np.concatenate([span_variants(3).masks, np.eye(6, dtype=bool)])
    batch = pack(encoded, range(3))
    with torch.no_grad():
        expected = torch.stack([own_logits(merged(plain, model, m), encoded, padded=False) for m in masks])
        logits = forward_variants(model, batch, masks, tokens_per_pass=50)
        rows, places = np.indices((len(masks), 3)).reshape(2, -1)
        pairs = forward_pairs(model, batch, places, masks[rows], tokens_per_pass=50)
        own = own_logits(model.base, encoded, padded=False)
    assert (expected[0] - expected[-1]).abs().max() > 0.1
    order = torch.from_numpy(batch.index).argsort()
    assert_close_in_float64(logits[:, order], expected)
    assert_close_in_float64(pairs, logits[rows, places])
    assert_close_in_float64(own, expected[0])
