"""Bases that HQQ quantised: in memory against PEFT's switches; in files, which transformers does not read."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from changed_files import edit
from mask_loop import randomise
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from peft_cases import write_adapter, write_base
from refusals import naming
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, HqqConfig, LlamaForCausalLM

import adapter_probe as ap
from adapter_probe.checkpoints.base import _refuse_unread
from adapter_probe.errors import CheckpointError

TEXTS = ["w7 w8 w9 w10", "w20 w3 w31 w7 w8", "w40 w41", "w11 w5 w30"]
LORA = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
UNREAD = naming("hqq", f"transformers {transformers.__version__}", "memory", "--base")
SIZES = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}


def test_weights_that_were_not_read_are_refused():
    layer = nn.Linear(2, 2)
    _refuse_unread("base", "hqq", layer)
    layer.W_q = None  # as transformers 5.23 leaves it
    with pytest.raises(CheckpointError, match=UNREAD):
        _refuse_unread("base", "hqq", nn.Sequential(layer))


@pytest.fixture
def quantised(tmp_path: Path) -> PeftModel:
    """A tiny Llama that HQQ quantised on the processor, with a random LoRA."""
    pytest.importorskip("hqq")
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear
    from hqq.models.hf.base import AutoHQQHFModel

    write_base(tmp_path / "full", "llama", LlamaForCausalLM, **SIZES)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "full", dtype=torch.float32)
    settings = BaseQuantizeConfig(nbits=4, group_size=32)
    AutoHQQHFModel.quantize_model(base, settings, compute_dtype=torch.float32, device="cpu")
    assert isinstance(base.model.layers[0].mlp.down_proj, HQQLinear)
    model = get_peft_model(base, LORA).eval()
    randomise(model)
    return model


def divergences(model: PeftModel, tokenizer, off: range) -> np.ndarray:
    """KL(intact || variant) summed over each text's tokens, by PEFT's own scales, 0 in some layers."""
    layers, found = model.get_base_model().model.layers, []
    with torch.no_grad():
        for text in TEXTS:
            ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer.encode(text)[:-1]]])  # as lm-eval does
            intact = model(ids[:, :-1]).logits[0].log_softmax(-1)
            own = [m for n in off for m in layers[n].modules() if isinstance(m, BaseTunerLayer)]
            for module in own:
                module.set_scale("default", 0.0)
            variant = model(ids[:, :-1]).logits[0].log_softmax(-1)
            for module in own:
                module.set_scale("default", 1.0)
            found.append(float((intact.exp() * (intact - variant)).sum()))
    return np.array(found)


@pytest.mark.slow
def test_a_model_in_memory_is_ablated_as_a_loop_with_the_switches_of_peft_does(quantised, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "full", bos_token="[CLS]")
    study = ap.ablate(quantised, data=TEXTS, metric="kl", tokenizer=tokenizer, progress=False)
    assert len(study.spans) == 6
    for row, (first, last) in enumerate(study.results.spans):
        if first >= 0:
            wanted = divergences(quantised, tokenizer, range(first, last + 1))
            assert wanted.max() > 1e-4
            np.testing.assert_allclose(
                study.results.scored.differences[row, :, 0], wanted, atol=1e-5, rtol=1e-4
            )


@pytest.mark.slow
def test_files_are_refused_in_one_line(tmp_path):
    pytest.importorskip("hqq")
    full = write_base(tmp_path / "full", "llama", LlamaForCausalLM, **SIZES)
    write_adapter(tmp_path / "lora", full, AutoModelForCausalLM, LORA)
    base = Path(shutil.copytree(full, tmp_path / "hqq"))
    edit(base / "config.json", quantization_config=HqqConfig(nbits=4, group_size=32).to_dict())
    with pytest.raises(CheckpointError, match=UNREAD):
        ap.ablate(tmp_path / "lora", base=base, data=TEXTS, metric="kl", out=tmp_path / "out")
