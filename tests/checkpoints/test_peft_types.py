"""Every type of tuner that PEFT has computes what PEFT computes; more LoRAs are in test_peft_causal."""

from __future__ import annotations

import copy
from pathlib import Path

import peft
import pytest
import torch
from peft import LoraConfig, PeftModel
from peft_cases import IDS, write_adapter, write_base
from tiers import slow_unless
from transformers import AutoModelForCausalLM, LlamaForCausalLM
from tuners import TUNERS, TWO, L, newer

from adapter_probe.checkpoints.peft_opening import open_with_peft

pytestmark = pytest.mark.filterwarnings("ignore")
CHANGING_THE_BASE = ("pissa", "olora")  # which test_adapter_folder is about
CASES = {name: config for name, config in TUNERS.items() if name not in CHANGING_THE_BASE} | {
    "regex": LoraConfig(r=4, target_modules=r".*\.(q|v)_proj", exclude_modules=r".*\.0\..*"),
    "vera, projections left out": peft.VeraConfig(r=4, target_modules=["q_proj"], save_projection=False),
    "vblora, few weights": peft.VBLoRAConfig(
        r=2, num_vectors=8, vector_length=8, topk=2, target_modules=L, save_only_topk_weights=True
    ),
    "lily": newer("LilyConfig", target_modules=TWO),
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("base") / "llama"
    return write_base(place, "llama", LlamaForCausalLM, num_hidden_layers=4)


@pytest.mark.parametrize("name", slow_unless("embeddings".__eq__, [name for name in CASES if CASES[name]]))
def test_tuner(name, llama, tmp_path):
    config = copy.deepcopy(CASES[name])
    config.task_type = "CAUSAL_LM"
    folder = write_adapter(tmp_path / "a", llama, AutoModelForCausalLM, config)
    torch.manual_seed(77)
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(llama), folder).eval()
    plain = AutoModelForCausalLM.from_pretrained(llama).eval()
    torch.manual_seed(78)
    opened = open_with_peft(folder)
    with torch.no_grad():
        right, ours = theirs(input_ids=IDS).logits, opened.model(input_ids=IDS).logits
        assert torch.allclose(ours, right, atol=1e-5)
        assert not torch.allclose(ours, plain(input_ids=IDS).logits, atol=1e-3)
