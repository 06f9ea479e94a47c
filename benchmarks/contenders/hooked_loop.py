"""Our own checkpoint in the transformers model's own forward: adapters switched by hooks, span by span.

What a careful user would write without this project: texts of like length share a padded batch, and every
layer runs whole.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from plain_loop import about, open_case
from protocol import serve
from transformers import AutoTokenizer
from variants import OneByOne, PaddedTexts


class HookedLoop(OneByOne):
    """See the module."""

    def load(self, settings: dict[str, Any]) -> dict[str, Any]:
        """See `OneByOne.load`."""
        case = Path(settings["case"])
        request = open_case(case, "float32")
        self._model, self._masks = request.checkpoint.model, request.variants.masks
        self._model.eval()
        self._texts = PaddedTexts(case / "texts.tsv", AutoTokenizer.from_pretrained(case / "model"), settings)
        return {**about(request), **self._texts.about}

    def evaluate(self, variant: int) -> np.ndarray:
        """See `OneByOne.evaluate`."""
        with ExitStack() as stack:
            for site, on in zip(self._model.sites, self._masks[variant]):
                if not on:
                    stack.enter_context(site.switched(False))
            return self._texts.logits(self._model.base)


if __name__ == "__main__":
    serve(HookedLoop())
