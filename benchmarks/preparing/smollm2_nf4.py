"""Store a language model in NF4, by bitsandbytes on the processor: for docs/studies/smollm2-strength.md.

    python -m benchmarks.preparing.smollm2_nf4 BASE OUT

Wants torch, transformers, accelerate and bitsandbytes.
"""

from __future__ import annotations

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig


def main(base: str, out: str) -> None:
    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(
        base, quantization_config=config, dtype=torch.bfloat16, device_map="cpu"
    )
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(base).save_pretrained(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
