"""A mixture of experts and a Mamba, trained on real sentences with PEFT: studies against loops of PEFT."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
from mask_loop import switched
from peft_folders import IDS, TOKENIZER, reference, span_off
from transformers import AutoConfig, AutoModelForCausalLM

import adapter_probe as ap

pytestmark = [pytest.mark.slow, pytest.mark.real_data, pytest.mark.timeout(1800)]
FAMILIES = {
    "qwen2_moe": (
        {
            "hidden_size": 96, "intermediate_size": 96, "moe_intermediate_size": 96, "num_experts": 4,
            "num_experts_per_tok": 2, "shared_expert_intermediate_size": 96, "num_hidden_layers": 4,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
        },
        {
            "target_modules": ["q_proj", "v_proj", "o_proj"],
            "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
        },
    ),
    "mamba": (
        {"hidden_size": 64, "num_hidden_layers": 4, "state_size": 8, "intermediate_size": 128},
        {"target_modules": ["in_proj", "x_proj"]},
    ),
}  # fmt: skip
STEPS, ROWS = 120, 32


def sentences(folder: Path, split: str) -> list[str]:
    lines = (folder / f"data/sst2/{split}.jsonl").read_text("utf-8").splitlines()
    return [row["sentence"] for row in map(json.loads, lines) if len(row["sentence"]) > 60]


def trained(kind: str, texts: list[str], out: Path) -> Path:
    """The checkpoint of a LoRA on a random base whose embeddings it trains, after `STEPS` steps of Adam."""
    torch.manual_seed(0)
    sizes, targets = FAMILIES[kind]
    base = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes, **IDS))
    base.save_pretrained(out / "base")
    TOKENIZER.save_pretrained(out / "base")
    whole = ["lm_head", "embed_tokens" if kind == "qwen2_moe" else "embeddings"]
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, modules_to_save=whole, **targets)
    model = peft.get_peft_model(base, config)
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=3e-3)
    ids = [torch.tensor(TOKENIZER(text)["input_ids"][:60]) for text in texts]
    draw = np.random.default_rng(0)
    for _ in range(STEPS):
        batch = torch.stack([ids[i] for i in draw.choice(len(ids), ROWS) if len(ids[i]) == 60])
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(out / "lora")
    return out / "lora"


def likelihood(model: torch.nn.Module, texts: list[str]) -> tuple[float, int]:
    """The sum of the log-likelihoods of all tokens of the texts, each after a BOS, and their number."""
    total, count = 0.0, 0
    with torch.no_grad():
        for text in texts:
            ids = torch.tensor([[TOKENIZER.bos_token_id, *TOKENIZER(text)["input_ids"]]])
            scores = model(input_ids=ids).logits[0, :-1].double().log_softmax(-1)
            total += float(scores.gather(1, ids[0, 1:, None]).sum())
            count += ids.shape[1] - 1
    return total, count


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_study_of_what_was_trained_is_a_loop_over_pefts_switches(kind: str, shared_dir: Path, tmp_path):
    checkpoint = trained(kind, sentences(shared_dir, "train")[:4000], tmp_path)
    texts = sentences(shared_dir, "validation")[:24]
    rows = tmp_path / "texts.jsonl"
    rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
    study = ap.ablate(checkpoint, base=tmp_path / "base", data=rows, metric="perplexity", progress=False)
    model, layers = reference(checkpoint, "CAUSAL_LM")
    assert len(layers) == 4
    total, count = likelihood(model, texts)
    intact = np.exp(-total / count)
    found = []
    for first, last in zip(study.spans["first"], study.spans["last"]):
        span_off(layers, first, last)
        found.append(np.exp(-likelihood(model, texts)[0] / count))
    for modules in layers:
        switched(modules, True)
    np.testing.assert_allclose(study.summary.intact_score, intact, rtol=1e-5)
    np.testing.assert_allclose(study.spans["score"], found, rtol=1e-5)
    assert intact < 12, "of 262 tokens"
    assert min(found) > intact, "every span was trained for something"
