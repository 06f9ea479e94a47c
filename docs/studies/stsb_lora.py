"""Trains a LoRA for embeddings on STS-B: `python stsb_lora.py DATA/stsb BASE OUT [PAIRS]`.

A LoRA of rank 8 in every linear map of an encoder, whose mean of token states is a sentence's embedding. The
loss is `CoSENTLoss` of sentence-transformers: pairs of a batch are to be ordered by the cosine of their
embeddings as by their score. One epoch of PAIRS random pairs (1,000), batches of 16 pairs, AdamW, learning
rate 1e-3 with a linear decay, seed 0. OUT is a folder of PEFT; one that is there is kept.
"""

import json
import random
import sys
from pathlib import Path

import torch
from peft import LoraConfig, TaskType, get_peft_model
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import CoSENTLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

BATCH, RATE, SEED = 16, 1e-3, 0


def main(data: str, base: str, out: Path, pairs: int = 1000) -> None:
    """Train and save."""
    if (out / "adapter_config.json").is_file():
        return
    rows = [json.loads(line) for line in (Path(data) / "train.jsonl").open(encoding="utf-8")]
    rows = random.Random(SEED).sample(rows, min(pairs, len(rows)))
    torch.manual_seed(SEED)
    encoder = Transformer(base, model_kwargs={"dtype": torch.float32})
    model = SentenceTransformer(modules=[encoder, Pooling(encoder.get_embedding_dimension())], device="cpu")
    maps = r".*\.layer\.\d+\..*(query|key|value|dense)"  # not the pooler, which a mean does not use
    config = LoraConfig(task_type=TaskType.FEATURE_EXTRACTION, r=8, target_modules=maps)
    tuned = get_peft_model(encoder.auto_model, config)  # the maps in place, so that the encoder has them too
    loss = CoSENTLoss(model)
    optimiser = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=RATE)
    steps = len(rows) // BATCH
    decay = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, steps)
    model.train()
    for step in range(steps):
        batch = rows[step * BATCH : (step + 1) * BATCH]
        texts = [model.preprocess([row[name] for row in batch]) for name in ("sentence1", "sentence2")]
        with torch.autocast("cpu", torch.bfloat16):
            value = loss(texts, torch.tensor([row["label"] / 5 for row in batch]))
        value.backward()
        optimiser.step()
        optimiser.zero_grad()
        decay.step()
        if step % 25 == 0:
            print(f"step {step} of {steps}: loss {value.item():.3f}", flush=True)
    tuned.save_pretrained(out)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), *map(int, sys.argv[4:]))
