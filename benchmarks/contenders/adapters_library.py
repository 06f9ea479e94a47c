"""AdapterHub's `adapters`: `set_active_adapters(..., skip_layers=...)`, one evaluation a span."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import adapters
import numpy as np
import transformers
from protocol import serve
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from variants import OneByOne, PaddedTexts, spans, touch


class AdaptersLibrary(OneByOne):
    def load(self, settings: dict[str, Any]) -> dict[str, Any]:
        transformers.logging.set_verbosity_error()
        case = Path(settings["case"])
        self._model = AutoModelForSequenceClassification.from_pretrained(case / "model")
        adapters.init(self._model)
        self._name = self._model.load_adapter(str(case / "adapter"))
        self._model.set_active_adapters(self._name)
        touch(self._model.eval().parameters())
        self._texts = PaddedTexts(case / "texts.tsv", AutoTokenizer.from_pretrained(case / "model"), settings)
        self._spans = spans(self._model.config.num_hidden_layers)
        return {**self._texts.about, "variants": len(self._spans)}

    def evaluate(self, variant: int) -> np.ndarray:
        self._model.set_active_adapters(self._name, skip_layers=list(self._spans[variant]) or None)
        return self._texts.logits(self._model)


if __name__ == "__main__":
    serve(AdaptersLibrary())
