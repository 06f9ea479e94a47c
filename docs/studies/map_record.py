"""What a map of a classifier comes to, and a file of it without its logits.

    python map_record.py OUT.npz.xz CHECKPOINT ABLATION

A span costs points of accuracy, and nats of divergence from the intact model's predictions (KL). A map of
thousands of examples has many megabytes of logits; the file has about a hundred kilobytes, and
`where_learnt.py` reads it in place of them. It is an archive of NumPy, compressed by xz: `predictions`
``[variants, examples]``, the right `labels` and the `metric`; `spans` and `row_names` of the variants; of the
divergence what `Means` has, under `kl`, `kl_halves` and `kl_drawn`; and the record of the training.
"""

import io
import json
import lzma
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from scipy.special import log_softmax

import adapter_probe as ap
from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.attribution import shares as shares_of_all
from adapter_probe.kinds.table import scored_of

DRAWS, SPLITS = 1000, 5


@dataclass(frozen=True)
class Means:
    """The mean cost of every span by one measure.

    Attributes:
        mean: on all examples, ``[spans]``, by first and last layer.
        halves: on halves of them, ``[splits, 2, spans]``.
        drawn: on resamples, the `parts` of every layer ``[2, draws, layers]``.
    """

    mean: np.ndarray
    halves: np.ndarray
    drawn: np.ndarray


@dataclass(frozen=True)
class Map:
    """A map: its training, its results (of a file with ones and zeros as logits) and its means by measure."""

    training: dict
    results: AblationResults
    means: dict[str, Means]


def spans_in_order(results: AblationResults) -> np.ndarray:
    """The rows of spans, by first and last layer."""
    spans = np.flatnonzero(results.spans[:, 0] >= 0)
    return spans[np.lexsort((results.spans[spans, 1], results.spans[spans, 0]))]


def points(results: AblationResults) -> np.ndarray:
    """Points of accuracy that every span costs on every example, ``[spans, examples]``."""
    right = results.outputs.argmax(axis=2) == results.scored_with
    return 100.0 * right[results.row_names.index("intact")] - 100.0 * right[spans_in_order(results)]


def divergences(results: AblationResults) -> np.ndarray:
    """Nats of divergence from the intact model, ``[spans, examples]``."""
    logs = log_softmax(results.outputs.astype(np.float64), axis=2)
    intact, spans = results.row_names.index("intact"), spans_in_order(results)
    return (np.exp(logs[intact]) * (logs[intact] - logs[spans])).sum(axis=2)


def costs(results: AblationResults) -> dict[str, np.ndarray]:
    """By measure, what every span costs on every example, ``[spans, examples]``."""
    return {"accuracy": points(results), "kl": divergences(results)}


def parts(drops: np.ndarray, n_layers: int) -> np.ndarray:
    """What every layer costs alone, and its part of the cost of all, ``[2, ..., layers]``."""
    first, last = np.triu_indices(n_layers)
    square = np.zeros((*drops.shape[:-1], n_layers, n_layers))
    square[..., first, last] = drops
    return np.stack([drops[..., first == last], shares_of_all(square)])


@lru_cache(maxsize=1)
def drawn_examples(n: int) -> np.ndarray:
    """Weights of resamples of so many examples, ``[draws, examples]``; every map has the same."""
    return np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=DRAWS) / n


def halves_of(n: int) -> list[list[np.ndarray]]:
    """Random halves of so many examples, several times."""
    chance = np.random.default_rng(0)
    return [np.array_split(chance.permutation(n), 2) for _ in range(SPLITS)]


def means_of(own: np.ndarray, n_layers: int) -> Means:
    """The means of costs ``[spans, examples]``."""
    n = own.shape[1]
    halves = [[own[:, half].mean(axis=1) for half in split] for split in halves_of(n)]
    return Means(own.mean(axis=1), np.array(halves), parts(drawn_examples(n) @ own.T, n_layers))


def of_folders(checkpoint: Path, ablation: Path) -> Map:
    """The map of an ablation's folder."""
    results = ap.load(ablation).results
    training = json.loads((checkpoint / "adapter_probe.json").read_text())["training"]
    means = {name: means_of(own, results.n_layers) for name, own in costs(results).items()}
    return Map(training, results, means)


def of_file(path: Path) -> Map:
    """The map of a file that `write` made."""
    kept = np.load(io.BytesIO(lzma.decompress(path.read_bytes())))
    spans, n_labels = kept["spans"], 1 + max(int(kept[name].max()) for name in ("labels", "predictions"))
    layers = np.arange(spans.max() + 1).repeat(2)  # two sites each
    own = {
        "outputs": np.eye(n_labels, dtype=np.float32)[kept["predictions"]],
        "scored_with": kept["labels"].astype(np.int64),
    }
    scored = scored_of("classification", str(kept["metric"]), tuple(map(str, range(n_labels))), own)
    masks = (layers < spans[:, :1]) | (layers > spans[:, 1:])
    results = AblationResults(masks, spans, tuple(kept["row_names"].tolist()), scored, {}, {})
    means = {
        "accuracy": means_of(points(results), results.n_layers),
        "kl": Means(kept["kl"], kept["kl_halves"], kept["kl_drawn"]),
    }
    return Map(json.loads(str(kept["training"])), results, means)


def write(out: Path, own: Map) -> None:
    """Write the file of a map."""
    results, kl, buffer = own.results, own.means["kl"], io.BytesIO()
    np.savez(
        buffer, predictions=results.outputs.argmax(axis=2).astype(np.int8),
        labels=results.scored_with.astype(np.int8), metric=results.metric, spans=results.spans,
        row_names=np.array(results.row_names), kl=kl.mean, kl_halves=kl.halves,
        kl_drawn=kl.drawn.astype(np.float32), training=json.dumps(own.training),
    )  # fmt: skip
    out.write_bytes(lzma.compress(buffer.getvalue(), preset=9))


if __name__ == "__main__":
    write(Path(sys.argv[1]), of_folders(*map(Path, sys.argv[2:])))
