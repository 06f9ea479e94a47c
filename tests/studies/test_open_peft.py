"""`ap.open` of checkpoints of PEFT, against PEFT's own model and switches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import peft
import pytest
import torch
from mask_loop import switched
from peft import LoraConfig, PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from peft_cases import write_adapter, write_base
from transformers import AutoModelForSequenceClassification, RoFormerForSequenceClassification

import adapter_probe as ap

TEXTS = ["the cat saw a dog", "fine", "a bird was cruel and the house was big", "the dog met the bad cat"]
CONFIGS = {
    "lora": LoraConfig(r=4, target_modules=["query", "value"], task_type="SEQ_CLS"),
    "biases": LoraConfig(r=2, target_modules=["key"], bias="all", task_type="SEQ_CLS"),
    "norms": peft.LNTuningConfig(target_modules=["output.LayerNorm"], task_type="SEQ_CLS"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, ``base``, and an adapter of every configuration on it."""
    place = tmp_path_factory.mktemp("open")
    base = write_base(place / "base", "roformer", RoFormerForSequenceClassification)
    for name, config in CONFIGS.items():
        write_adapter(place / name, base, AutoModelForSequenceClassification, config)
    return place


def by_peft(made: Path, name: str, model: ap.Model, off: range = range(0)) -> np.ndarray:
    """PEFT's own model on one text at a time, the layers `off` without their adapters."""
    base = AutoModelForSequenceClassification.from_pretrained(made / "base")
    whole = PeftModel.from_pretrained(base, made / name).double().eval()
    layers = whole.get_base_model().roformer.encoder.layer
    for number in off:
        switched([m for m in layers[number].modules() if isinstance(m, BaseTunerLayer)], False)
    with torch.no_grad():
        out = [whole(**model.tokenizer(text, return_tensors="pt")).logits[0] for text in TEXTS]
    return torch.stack(out).numpy()


def own(model: ap.Model) -> np.ndarray:
    with torch.no_grad():
        inputs = [model.tokenizer(text, return_tensors="pt").to(model.base.device) for text in TEXTS]
        out = [model.base(**one).logits[0] for one in inputs]
    return torch.stack(out).cpu().numpy()


def test_logits_with_any_layers_off_are_those_of_peft(made: Path):
    model = ap.open(made / "lora", dtype="float64")
    assert (model.n_layers, model.n_sites) == (3, 6)
    for off in (None, 1, (0, 2)):
        layers = range(0) if off is None else range(1, 2) if off == 1 else range(3)
        expected = by_peft(made, "lora", model, layers)
        np.testing.assert_allclose(model.logits(TEXTS, off=off), expected, atol=1e-6)  # given in float32
        with model.switched_off(model.mask(off)):
            np.testing.assert_allclose(own(model), expected, rtol=1e-12, atol=1e-12)
    assert np.abs(own(model) - expected).max() > 1e-3


@pytest.mark.slow
def test_a_checkpoint_used_after_others_is_as_if_opened_alone(made: Path):
    alone = {name: ap.open(made / name, dtype="float64").logits(TEXTS) for name in CONFIGS}
    model = ap.open(made / "lora", dtype="float64")
    base = model.base.roformer.named_parameters()
    shared = {p.data_ptr() for name, p in base if p.dim() == 2 and "lora_" not in name}
    for name in ("biases", "norms", "lora", "biases"):
        model.use(made / name)
        np.testing.assert_array_equal(model.logits(TEXTS), alone[name])
        np.testing.assert_allclose(alone[name], by_peft(made, name, model), atol=1e-6)
        assert shared < {p.data_ptr() for p in model.base.parameters()}
