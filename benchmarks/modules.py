"""Seconds of a map of layers and modules beside a loop over its variants with PEFT's own switches.

    python -m benchmarks.modules [--layers 12] [--width 384] [--examples 64] [--tokens 32] [--rounds 1]

The model is a BERT with random weights and a LoRA in its six maps. Both read the same batches, and the
largest difference of their outputs is printed with the times. In November 2026 on two cores, of 92 variants
on 32 examples: 26 s and 108 s, 4.1 times.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import BertConfig, BertForSequenceClassification

import adapter_probe as ap

_MAPS = ["query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense"]


def made(layers: int, width: int) -> torch.nn.Module:
    """The model, with random factors, so that every module changes something."""
    torch.manual_seed(0)
    config = BertConfig(
        num_hidden_layers=layers, hidden_size=width, num_attention_heads=width // 32,
        intermediate_size=4 * width,
    )  # fmt: skip
    lora = LoraConfig(r=8, target_modules=_MAPS, exclude_modules=["pooler.dense"], init_lora_weights=False)
    return get_peft_model(BertForSequenceClassification(config), lora).eval()


def loop(model: torch.nn.Module, batches: list[dict[str, torch.Tensor]], study: ap.Ablation) -> np.ndarray:
    """Outputs ``[variants, examples, labels]``, one whole forward for each variant."""
    layers, found = model.get_base_model().bert.encoder.layer, []
    tuned = [
        {name: m for name, m in layer.named_modules() if isinstance(m, BaseTunerLayer)} for layer in layers
    ]
    for module, (first, last) in zip(study.results.modules.tolist(), study.results.spans.tolist()):
        off = [
            m
            for own in tuned[first : last + 1] if first >= 0
            for name, m in own.items()
            if module == "all" or name == module or (name.endswith(f".self.{module}"))
        ]  # fmt: skip
        for one in off:
            one.enable_adapters(False)
        with torch.no_grad():
            found.append(torch.cat([model(input_ids=batch["input_ids"]).logits for batch in batches]))
        for one in off:
            one.enable_adapters(True)
    return torch.stack(found).numpy()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    for name, value in {"layers": 12, "width": 384, "examples": 64, "tokens": 32, "rounds": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = parser.parse_args()
    model, generator = made(asked.layers, asked.width), torch.Generator().manual_seed(0)
    shape = (asked.examples, asked.tokens)
    tokens = torch.randint(1000, 30000, shape, generator=generator).split(16)
    labels = torch.arange(asked.examples).split(16)
    batches = [{"input_ids": x, "labels": y % 2} for x, y in zip(tokens, labels)]
    for _ in range(asked.rounds):
        start = time.perf_counter()
        study = ap.ablate(model, batches=batches, by="module", progress=False)
        ours = time.perf_counter() - start
        start = time.perf_counter()
        expected = loop(model, batches, study)
        theirs = time.perf_counter() - start
        error = np.abs(study.results.outputs - expected).max() / np.abs(expected).max()
        print(
            f"{len(expected)} variants, {asked.examples} examples of {asked.tokens} tokens: adapter-probe "
            f"{ours:.1f} s, loop {theirs:.1f} s, {theirs / ours:.2f} times; largest difference {error:.1e}"
        )


if __name__ == "__main__":
    main()
