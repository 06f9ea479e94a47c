"""LoRA on query and value of a random BERT, written by PEFT; runs in PEFT's environment.

    python lora_case.py FOLDER

FOLDER is a case made by random_case.py without adapters.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSequenceClassification

RANK, ALPHA, STD = 8, 16, 0.1


def main() -> None:
    """Add the adapter, and what operations are counted from."""
    folder = Path(sys.argv[1])
    model = AutoModelForSequenceClassification.from_pretrained(folder / "model")
    config = LoraConfig(
        task_type="SEQ_CLS", r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=["query", "value"]
    )
    model = get_peft_model(model, config)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, STD, generator=generator)
    model.save_pretrained(folder / "adapter")
    known = json.loads((folder / "case.json").read_text())
    known["site_products"] = [2 * 2 * known["hidden"] * RANK, 0]
    known["forks_early"] = [True, False]
    (folder / "case.json").write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
