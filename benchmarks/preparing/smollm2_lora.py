"""Train a LoRA of PEFT on ARC-Easy's train rows: the checkpoints of docs/studies/smollm2*.md.

    python -m benchmarks.preparing.smollm2_lora BASE ARC_EASY_FOLDER OUT [STEPS]

On a base that is stored in 4 bits this is a QLoRA. Wants torch, transformers and peft. The loss is that of
the right answer's tokens after ``Question: ... Answer:``, which is how `ablate` asks the question.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer, get_linear_schedule_with_warmup

STEPS, BATCH, RATE, SEED = 150, 8, 5e-4, 0
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def encoded_rows(tokenizer, folder: Path) -> list[tuple[list[int], int]]:
    """Token ids of question and right answer, and how many of them are the question's."""
    rows = []
    for line in (folder / "train.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        question = f"Question: {row['question']}\nAnswer:"
        whole = tokenizer.encode(f"{question} {row['choices'][row['answer']]}")
        rows.append((whole, len(tokenizer.encode(question))))
    return rows


def loss_of(model, batch: list[tuple[list[int], int]]) -> torch.Tensor:
    """Mean negative log-likelihood of the answers' tokens, padded on the right."""
    longest = max(len(ids) for ids, _ in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    targets = torch.full((len(batch), longest), -100)
    for row, (tokens, n_question) in enumerate(batch):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        targets[row, n_question : len(tokens)] = torch.tensor(tokens[n_question:])
    hidden = model.get_base_model().model(input_ids=ids).last_hidden_state[:, :-1]
    scored = targets[:, 1:] != -100  # the vocabulary's logits are made for these alone
    logits = model.get_output_embeddings()(hidden[scored]).float()
    return F.cross_entropy(logits, targets[:, 1:][scored])


def main(base: str, data: str, out: str, steps: str = str(STEPS)) -> None:
    n_steps = int(steps)
    torch.manual_seed(SEED)
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    config = LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules=TARGETS)
    model = get_peft_model(model, config, autocast_adapter_dtype=True)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0)
    schedule = get_linear_schedule_with_warmup(optimiser, n_steps // 10, n_steps)
    rows, order = encoded_rows(tokenizer, Path(data)), []
    draw = random.Random(SEED)
    for step in range(n_steps):
        if len(order) < BATCH:
            order = draw.sample(range(len(rows)), len(rows))
        batch = [rows[order.pop()] for _ in range(BATCH)]
        loss = loss_of(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    model.save_pretrained(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
