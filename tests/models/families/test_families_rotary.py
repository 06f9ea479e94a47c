"""Rotary positions: precise in bfloat16 however long the text, and computed once a batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import ModernBertConfig, ModernBertForQuestionAnswering

from adapter_probe.data.encoding import Encoded
from adapter_probe.data.packing import pack
from adapter_probe.models.adapted import AdaptedModel

LENGTH = 2048


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    config = ModernBertConfig(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=LENGTH, initializer_range=0.2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        cls_token_id=1, sep_token_id=2,
    )  # fmt: skip
    ModernBertForQuestionAnswering(config).save_pretrained(folder := tmp_path_factory.mktemp("modernbert"))
    return str(folder)


def test_bfloat16_is_as_precise_as_transformers_own(folder: str):
    """Rounded rotary frequencies, as `Module.to` would make them, give three times the error."""
    ids = np.random.default_rng(0).integers(0, 97, LENGTH)
    exact = ModernBertForQuestionAnswering.from_pretrained(folder, dtype=torch.float64)
    own = ModernBertForQuestionAnswering.from_pretrained(folder, dtype=torch.bfloat16)
    ours = AdaptedModel(ModernBertForQuestionAnswering.from_pretrained(folder)).to(torch.bfloat16).eval()
    with torch.no_grad():
        expected, owns = (
            torch.stack([out.start_logits[0], out.end_logits[0]], -1)
            for out in (model(torch.from_numpy(ids)[None]) for model in (exact, own))
        )
        logits = ours(pack(Encoded((ids,), None, ""), [0]))
    errors = [(found - expected).pow(2).mean().sqrt() for found in (logits, owns)]
    assert errors[1] > 0
    assert errors[0] < 1.1 * errors[1]


def test_angles_are_computed_once_a_batch(
    adapted_model: Callable, random_examples: Callable, monkeypatch: pytest.MonkeyPatch
):
    model = adapted_model("modernbert")
    rotary, lengths = model.base.model.rotary_emb, []
    forward = rotary.forward
    monkeypatch.setattr(
        rotary, "forward", lambda x, at, kind: lengths.append(at.shape[1]) or forward(x, at, kind)
    )
    batch = pack(random_examples([6, 9, 6]), range(3))
    with torch.inference_mode():
        model(batch)
        model(batch)
    assert lengths == [6, 9] * 2  # of two kinds of layers
    model.train().choose_trained(frozenset())
    model(batch).sum().backward()  # angles of inference mode cannot be part of a gradient
    assert lengths == [6, 9] * 4
