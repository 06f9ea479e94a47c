"""Our own checkpoint in the transformers model's own forward: adapters switched by hooks, span by span.

What a careful user would write without this project: texts of like length share a padded batch, and every
layer runs whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from plain_loop import PlainLoop
from protocol import serve
from transformers import AutoTokenizer
from variants import PaddedTexts


class HookedLoop(PlainLoop):
    def load(self, settings: dict[str, Any]) -> dict[str, Any]:
        known, case = super().load(settings), Path(settings["case"])
        self._model = self._request.checkpoint.model.eval()
        self._texts = PaddedTexts(case / "texts.tsv", AutoTokenizer.from_pretrained(case / "model"), settings)
        return {**known, **self._texts.about}

    def logits_now(self) -> np.ndarray:
        return self._texts.logits(self._model)


if __name__ == "__main__":
    serve(HookedLoop())
