"""The sentences of the demo: minimal pairs in the manner of BLiMP (Warstadt et al. 2020).

Pairs of sentences of the same words in two orders, one acceptable and one not. They exist so that a first
run needs no data set; they do not replace human judgements. The validation set uses nouns, names, verbs and
adjectives that the training set does not contain, so it cannot be memorised. The grammar that wrote them is
in ``benchmarks/preparing/demo_task``.
"""

from __future__ import annotations

import json
from pathlib import Path

from adapter_probe.data.readers import read_rows
from adapter_probe.errors import DataError, reason_of

SENTENCES = Path(__file__).with_name("demo.tsv.gz")
"""Columns `split`, `sentence`, `label` and `phenomenon`."""


def write_demo(folder: Path, n_train: int | None = None, n_validation: int | None = None) -> None:
    """Write train.jsonl and validation.jsonl with the columns sentence, label and phenomenon.

    Args:
        n_train: at most this many sentences for training, the first ones; None for all.
    """
    rows = read_rows(SENTENCES).records
    for split, most in (("train", n_train), ("validation", n_validation)):
        own = [{k: v for k, v in row.items() if k != "split"} for row in rows if row["split"] == split]
        path = folder / f"{split}.jsonl"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes("".join(json.dumps(row) + "\n" for row in own[:most]).encode())
        except OSError as error:
            raise DataError(f"cannot write the demo's sentences to {path}: {reason_of(error)}") from None
