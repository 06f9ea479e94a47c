"""How far the maps of single layers on several bases differ: `python quantised_maps.py FOLDER FOLDER...`.

The folders hold ablations of one adapter with `--metric kl --spans single` on the same texts. For each pair
it prints the mean and the largest absolute difference of the divergences, in nats, and their correlation
over the layers, with 95% intervals from 2,000 resamples of the texts.
"""

import sys
from itertools import combinations

import numpy as np

import adapter_probe as ap


def divergences(folder: str) -> tuple[np.ndarray, np.ndarray]:
    """Summed divergences ``[layers, texts]``, and the number of tokens of each text."""
    results = ap.load(folder).results
    layers = results.spans[:, 0] >= 0
    return results.predictions[layers], results.scored_with


def compared(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Mean and largest absolute difference, and correlation, of two maps ``[layers]``."""
    apart = np.abs(one - other)
    return np.array([apart.mean(), apart.max(), np.corrcoef(one, other)[0, 1]])


def main(*folders: str) -> None:
    """Print what the maps are, and how far each two differ."""
    maps = {folder: divergences(folder) for folder in folders}
    n = len(next(iter(maps.values()))[1])
    draws = np.random.default_rng(0).integers(0, n, (2000, n))
    for folder, (sums, tokens) in maps.items():
        values = sums.sum(axis=1) / tokens.sum()
        print(
            f"{folder}: {n} texts, {tokens.sum()} tokens, mean {values.mean():.5f}, "
            f"largest {values.max():.5f}"
        )
    for one, other in combinations(folders, 2):
        (a, tokens), (b, _) = maps[one], maps[other]
        found = compared(a.sum(axis=1) / tokens.sum(), b.sum(axis=1) / tokens.sum())
        sampled = [compared(*(x[:, d].sum(axis=1) / tokens[d].sum() for x in (a, b))) for d in draws]
        low, high = np.quantile(sampled, [0.025, 0.975], axis=0)
        words = ("mean difference", "largest difference", "correlation")
        told = [f"{w} {v:.5f} ({a:.5f} to {b:.5f})" for w, v, a, b in zip(words, found, low, high)]
        print(f"{one} and {other}: {', '.join(told)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
