"""What the contenders share that evaluate one variant after the other; needs PyTorch and NumPy alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from protocol import Contender

Groups = list[list[int]]
"""``[examples, tokens each]`` of everything that goes through the model, padding included."""


class OneByOne(Contender):
    """Evaluates every k-th variant, the intact model first; a share is every n-th of these."""

    every: int
    logits: dict[int, np.ndarray]

    def open(self, settings: dict[str, Any]) -> dict[str, Any]:
        torch.set_num_threads(settings["threads"])
        self.logits = {}
        about = self.load(settings)
        self.chosen = range(0, about["variants"], settings["every"])
        return {**about, "chosen": len(self.chosen)}

    def warm_up(self) -> None:
        self.evaluate(0)

    def run(self, share: int, shares: int) -> dict[str, Any]:
        """See `Contender.run`; tells which variants were evaluated."""
        mine = list(self.chosen[share::shares])
        for variant in mine:
            self.logits[variant] = self.evaluate(variant)
        return {"variants": len(mine)}

    def save(self, path: Path) -> None:
        """Write ``variants`` ``[chosen]`` and ``logits`` ``[chosen, examples, labels]``."""
        order = sorted(self.logits)
        np.savez(path, variants=np.array(order), logits=np.stack([self.logits[n] for n in order]))

    def load(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Load model and texts; the number of ``variants``, the ``groups`` and more."""
        raise NotImplementedError

    def evaluate(self, variant: int) -> np.ndarray:
        """Logits ``[examples, labels]`` of a variant."""
        raise NotImplementedError


def spans(n_layers: int) -> list[tuple[int, ...]]:
    """The layers that each variant switches off: none, then every contiguous span, by first and last."""
    return [(), *(tuple(range(i, j + 1)) for i in range(n_layers) for j in range(i, n_layers))]


def touch(parameters: Iterable[torch.Tensor]) -> None:
    """Read every weight, so that files mapped into memory count from the start."""
    for parameter in parameters:
        parameter.sum()


def exact_groups(lengths: Iterable[int]) -> Groups:
    """The groups where nothing is padded."""
    return [[n, length] for length, n in sorted(Counter(map(int, lengths)).items())]


class PaddedTexts:
    """The texts as most people would run them: batches padded to their longest text.

    Args:
        path: ``texts.tsv``: label, text and perhaps a second text, under a header.
        tokenizer: the base's.
        settings: ``batch_size``, ``max_length``, and ``by_length`` for batches of texts alike in length
            (else in the file's order).
    """

    def __init__(self, path: Path, tokenizer: Any, settings: dict[str, Any]):
        lines = path.read_text(encoding="utf-8").split("\n")[1:]
        rows = [line.split("\t")[1:] for line in lines if line]
        encoded = [tokenizer(*texts, truncation=True, max_length=settings["max_length"]) for texts in rows]
        lengths = [len(one["input_ids"]) for one in encoded]
        order = (
            sorted(range(len(rows)), key=lengths.__getitem__) if settings["by_length"] else range(len(rows))
        )
        size = settings["batch_size"]
        self._chunks = [list(order[start : start + size]) for start in range(0, len(rows), size)]
        self._batches = [
            tokenizer.pad([encoded[i] for i in chunk], return_tensors="pt") for chunk in self._chunks
        ]
        self.about = {
            "examples": len(rows),
            "tokens": sum(lengths),
            "groups": [list(batch["input_ids"].shape) for batch in self._batches],
        }

    def logits(self, model: torch.nn.Module) -> np.ndarray:
        """What the model makes of them, ``[examples, labels]`` in the file's order."""
        found: np.ndarray | None = None
        with torch.inference_mode():
            for chunk, batch in zip(self._chunks, self._batches):
                out = model(**batch).logits.float().numpy()
                if found is None:
                    found = np.empty((self.about["examples"], out.shape[1]), np.float32)
                found[chunk] = out
        assert found is not None, "a case has at least one text"
        return found
