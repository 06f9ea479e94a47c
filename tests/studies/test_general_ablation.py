"""Ablations of checkpoints of PEFT on bases of many families, from folder to figure."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mask_loop import switched
from peft_folders import T5, reference, saved, written
from refusals import naming
from transformers import (
    AutoTokenizer,
)

import adapter_probe
from adapter_probe.errors import ModelError

MAMBA = {"hidden_size": 24, "num_hidden_layers": 3, "state_size": 4, "time_step_rank": 4}
CHOICES = [{"context": "ab ab", "choices": [" ab", " c", " abab ab"], "gold": 1}]
WORDS = ["ab", "cd ab", "ba", "ab cd", "x", "a longer one"]
LABELLED = [{"text": text, "label": n % 2} for n, text in enumerate(WORDS * 2)]


@pytest.mark.slow
def test_texts_classified_by_an_encoder_and_a_decoder(tmp_path):
    checkpoint = saved(tmp_path, "t5", T5, "SEQ_CLS", ["q", "v", "wo"])
    data = written(tmp_path, LABELLED)
    study = adapter_probe.ablate(checkpoint, data=data, progress=False)
    model, layers = reference(checkpoint, "SEQ_CLS")
    tokenizer = AutoTokenizer.from_pretrained(checkpoint.parent / "base")
    assert len(layers) == 4
    for mask, found in zip(study.results.masks, study.results.outputs):
        for modules, on in zip(layers, mask.reshape(len(layers), -1).any(axis=1)):
            switched(modules, bool(on))
        for row, logits in zip(LABELLED, found):
            with torch.no_grad():
                own = model(**tokenizer(row["text"], return_tensors="pt")).logits[0]
            np.testing.assert_allclose(logits, own, atol=1e-4)
    one = adapter_probe.ablate(checkpoint, data=data, progress=False, sites="ffn", spans="single", group=2)
    assert len(one.spans) == 2


@pytest.mark.slow
def test_a_sublayer_of_layers_without_two_is_refused(tmp_path):
    checkpoint = saved(tmp_path, "mamba", MAMBA, "CAUSAL_LM", ["in_proj"])
    with pytest.raises(ModelError, match=naming("sites='attention'", "mixer.in_proj")):
        adapter_probe.ablate(checkpoint, data=written(tmp_path, CHOICES), sites="attention", progress=False)
