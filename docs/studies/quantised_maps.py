"""How far the maps of single layers on several bases differ: `python quantised_maps.py FOLDER FOLDER...`.

The folders hold ablations of one adapter with `--metric kl --spans single` on the same texts. For each pair
it prints the mean and the largest absolute difference of the divergences, in nats, and their correlation
over the layers, each with the 95% range of its values under random weights of the texts: how much the texts
leave open. It is no confidence interval, because noise makes maps differ more.
"""

import sys
from itertools import combinations

import numpy as np

import adapter_probe as ap
from adapter_probe.analysis.resampling import draw_scores


def compared(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Mean and largest absolute difference, and correlation, of two maps ``[..., layers]``, ``[3, ...]``."""
    apart = np.abs(one - other)
    a, b = (own - own.mean(axis=-1, keepdims=True) for own in (one, other))
    r = (a * b).sum(axis=-1) / np.sqrt((a**2).sum(axis=-1) * (b**2).sum(axis=-1))
    return np.stack([apart.mean(axis=-1), apart.max(axis=-1), r])


def main(*folders: str) -> None:
    """Print what the maps are, and how far each two differ."""
    studies = {folder: ap.load(folder).results for folder in folders}
    layers = next(iter(studies.values())).spans[:, 0] >= 0
    maps = {}
    for folder, results in studies.items():
        tokens = results.scored_with
        maps[folder] = results.predictions[layers].sum(axis=1) / tokens.sum()
        print(
            f"{folder}: {len(tokens)} texts, {tokens.sum()} tokens, mean {maps[folder].mean():.5f}, "
            f"largest {maps[folder].max():.5f}"
        )
    drawn = -draw_scores([*studies.values()]).samples / 100  # nats; the same weights for all
    parts = dict(zip(studies, np.split(drawn, len(studies), axis=1)))
    for one, other in combinations(folders, 2):
        found = compared(maps[one], maps[other])
        sampled = compared(*(parts[name][:, layers] for name in (one, other)))
        low, high = np.quantile(sampled, [0.025, 0.975], axis=1)
        words = ("mean difference", "largest difference", "correlation")
        told = [f"{w} {v:.5f} ({a:.5f} to {b:.5f})" for w, v, a, b in zip(words, found, low, high)]
        print(f"{one} and {other}: {', '.join(told)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
