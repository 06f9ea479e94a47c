"""PEFT: the scaling of the LoRA modules of a span's layers set to 0, one evaluation a span."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from protocol import serve
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from variants import OneByOne, PaddedTexts, spans, touch

NAME = "default"


class PeftLibrary(OneByOne):
    def load(self, settings: dict[str, Any]) -> dict[str, Any]:
        transformers.logging.set_verbosity_error()
        case = Path(settings["case"])
        base = AutoModelForSequenceClassification.from_pretrained(case / "model")
        self._model = PeftModel.from_pretrained(base, case / "adapter").eval()
        touch(self._model.parameters())
        self._texts = PaddedTexts(case / "texts.tsv", AutoTokenizer.from_pretrained(case / "model"), settings)
        self._spans = spans(base.config.num_hidden_layers)
        self._modules: list[tuple[int, LoraLayer, float]] = []  # layer, module, its scaling
        for name, module in self._model.named_modules():
            if isinstance(module, LoraLayer):
                layer = int(re.search(r"\.layer\.(\d+)\.", name)[1])
                self._modules.append((layer, module, module.scaling[NAME]))
        return {**self._texts.about, "variants": len(self._spans)}

    def evaluate(self, variant: int) -> np.ndarray:
        for layer, module, scaling in self._modules:
            module.scaling[NAME] = 0.0 if layer in self._spans[variant] else scaling
        return self._texts.logits(self._model)


if __name__ == "__main__":
    serve(PeftLibrary())
