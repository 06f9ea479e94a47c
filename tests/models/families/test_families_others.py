"""Families outside the table under every row of it: what is not refused is exact, whatever the family."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    PretrainedConfig,
)

from adapter_probe.data.encoding import Encoded
from adapter_probe.data.packing import pack
from adapter_probe.errors import ModelError
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.models.bases.encoders import ENCODERS

LENGTH = 40  # far beyond the tokens of the check at construction
SMALL = {
    "vocab_size": 50, "num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "initializer_range": 0.3,
}  # fmt: skip
GROUPED = {"num_key_value_heads": 2, "head_dim": 8}


def small_models(mapping: dict[type, type]) -> Iterator[nn.Module]:
    """One of each family that can be built this small, with noise in every parameter."""
    for config_class in list(mapping):
        classes = mapping[config_class]
        model_class = classes[0] if isinstance(classes, tuple) else classes
        for fields in ({**SMALL, **GROUPED}, SMALL):
            model = small_model(config_class, model_class, fields)
            if model is not None:
                yield model
                break


def small_model(config_class: type[PretrainedConfig], model_class: type, fields: dict) -> nn.Module | None:
    try:
        with torch.device("meta"):
            size = sum(p.numel() for p in model_class(config_class(**fields)).parameters())
        if size > 5e6:
            return None
        torch.manual_seed(0)
        model = model_class(config_class(**fields)).double().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
            model(input_ids=torch.full((1, LENGTH), 7))
    except Exception:  # families ask for fields of their own, or for other inputs than text
        return None
    return model


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_row_is_exact_or_refused():
    ids = np.random.default_rng(0).integers(3, 50, LENGTH)
    batch = pack(Encoded((ids,), None, ""), [0])
    exact, wrong = [], []
    for model in small_models(MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING):
        with torch.no_grad():
            own = model(input_ids=torch.from_numpy(ids)[None]).logits
        for row in ENCODERS:
            try:
                ours = AdaptedModel(model, anatomy=row).eval()(batch)
            except ModelError:
                continue
            near = torch.allclose(ours.view(own.shape), own, rtol=0, atol=1e-4 * own.std().item())
            (exact if near else wrong).append((model.config.model_type, row.model_types[0]))
    assert not wrong
    assert len(exact) >= 15
