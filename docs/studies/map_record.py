"""Keeps what `where_learnt.py` makes of a map, without its logits.

    python map_record.py OUT.npz.xz CHECKPOINT ABLATION

A map of thousands of examples has many megabytes of logits; this file has about a hundred kilobytes. It is
an archive of NumPy, compressed by xz: `predictions` ``[variants, examples]`` and the right `labels`; `spans`
and `row_names` of the variants; `kl`, the mean divergence of each span in nats; `kl_halves`
``[splits, 2, spans]``, its means on the disjoint halves of `agreement`; `kl_drawn` ``[2, draws, layers]``, on
resamples of the examples what each layer costs alone and its part of the cost of all; and the record of the
training.
"""

import io
import json
import lzma
import sys
from pathlib import Path

import numpy as np
from where_learnt import costs, halves_of, parts, resampled

import adapter_probe as ap


def main(out: Path, checkpoint: str, ablation: str) -> None:
    """Write the file."""
    study, buffer = ap.load(ablation), io.BytesIO()
    results, divergence = study.results, costs(study)["kl"]
    training = json.loads((Path(checkpoint) / "adapter_probe.json").read_text())["training"]
    halves = [[divergence[:, half].mean(axis=1) for half in split] for split in halves_of(results.n_examples)]
    np.savez(
        buffer, predictions=study.predictions.astype(np.int8), labels=results.scored_with.astype(np.int8),
        spans=results.spans, row_names=np.array(results.row_names), kl=divergence.mean(axis=1),
        kl_halves=np.array(halves), training=json.dumps(training),
        kl_drawn=parts(resampled(divergence[None]), results.n_layers).astype(np.float32),
    )  # fmt: skip
    out.write_bytes(lzma.compress(buffer.getvalue(), preset=9))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
