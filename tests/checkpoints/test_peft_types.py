"""Every type of tuner that PEFT has computes what PEFT computes; more LoRAs are in test_peft_causal."""

from __future__ import annotations

from pathlib import Path

import peft
import pytest
import torch
from peft import LoraConfig, PeftModel
from peft_cases import IDS, write_adapter, write_base
from transformers import (
    AutoModelForCausalLM,
    LlamaForCausalLM,
)

from adapter_probe.checkpoints.peft_opening import open_with_peft

pytestmark = pytest.mark.filterwarnings("ignore")
L = ["q_proj", "v_proj", "down_proj"]
C = {"task_type": "CAUSAL_LM"}
TUNERS = {
    "regex": LoraConfig(r=4, target_modules=r".*\.(q|v)_proj", exclude_modules=r".*\.0\..*", **C),
    "biases": LoraConfig(r=4, target_modules=L, lora_bias=True, **C),
    "embeddings": LoraConfig(r=4, target_modules=[*L, "embed_tokens"], **C),
    "replication": LoraConfig(r=4, target_modules=L, layer_replication=[[0, 2], [1, 3]], **C),
    "loha": peft.LoHaConfig(r=4, target_modules=L, **C),
    "lokr": peft.LoKrConfig(r=4, target_modules=L, **C),
    "oft": peft.OFTConfig(oft_block_size=4, target_modules=L, **C),
    "boft": peft.BOFTConfig(boft_block_size=4, target_modules=L, **C),
    "hra": peft.HRAConfig(r=4, target_modules=L, **C),
    "fourierft": peft.FourierFTConfig(n_frequency=50, target_modules=L, **C),
    "vera": peft.VeraConfig(r=4, target_modules=["q_proj"], **C),
    "vera, projections left out": peft.VeraConfig(r=4, target_modules=["q_proj"], save_projection=False, **C),
    "vblora": peft.VBLoRAConfig(r=2, num_vectors=8, vector_length=8, topk=2, target_modules=L, **C),
    "vblora, few weights": peft.VBLoRAConfig(
        r=2, num_vectors=8, vector_length=8, topk=2, target_modules=L, save_only_topk_weights=True, **C
    ),
    "randlora": peft.RandLoraConfig(r=4, target_modules=["q_proj", "o_proj"], **C),
    "miss": peft.MissConfig(r=4, target_modules=L, **C),
    "shira": peft.ShiraConfig(r=4, target_modules=L, **C),
    "c3a": peft.C3AConfig(block_size=8, target_modules=L, **C),
    "adalora": peft.AdaLoraConfig(init_r=6, target_r=4, total_step=10, target_modules=L, **C),
    "road": peft.RoadConfig(group_size=8, target_modules=L, **C),
    "waveft": peft.WaveFTConfig(n_frequency=50, target_modules=L, **C),
    "osf": peft.OSFConfig(target_modules=L, **C),
    "delora": peft.DeloraConfig(r=4, target_modules=L, **C),
}
if hasattr(peft, "LilyConfig"):
    TUNERS |= {
        "gralora": peft.GraloraConfig(r=4, target_modules=L, **C),
        "lily": peft.LilyConfig(target_modules=["q_proj", "o_proj"], **C),
    }


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("base") / "llama", "llama", LlamaForCausalLM)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(TUNERS))
def test_tuner(name, llama, tmp_path):
    folder = write_adapter(tmp_path / "a", llama, AutoModelForCausalLM, TUNERS[name])
    torch.manual_seed(77)
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(llama), folder).eval()
    plain = AutoModelForCausalLM.from_pretrained(llama).eval()
    torch.manual_seed(78)
    opened = open_with_peft(folder)
    with torch.no_grad():
        right, ours = theirs(input_ids=IDS).logits, opened.model(input_ids=IDS).logits
        assert torch.allclose(ours, right, atol=1e-5)
        assert not torch.allclose(ours, plain(input_ids=IDS).logits, atol=1e-3)
