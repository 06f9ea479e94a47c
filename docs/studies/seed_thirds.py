"""Do seeds agree beyond the examples that they share? `python seed_thirds.py OUT.csv FOLDER FOLDER...`.

The folders hold ablations of one task on the same examples, one folder per seed. Two maps are compared by the
rank correlation among spans of one length, averaged over the lengths with three or more spans and weighted by
their number: on all examples, which both maps share, on one third, which both share too, and on disjoint
thirds. Beside them, one seed on two disjoint thirds says how well a third of the examples determines a map at
all: agreement between seeds on thirds can hardly be higher. Every value has a 95% range over resamples of the
examples within the thirds.
"""

import sys
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import rankdata

import adapter_probe as ap

DRAWS = 1000


def lost(folder: str) -> tuple[np.ndarray, np.ndarray]:
    """The spans ``[spans, 2]``, and per span and example 1 for a lost right answer, -1 for a gained one."""
    results = ap.load(folder).results
    right = (results.outputs.argmax(axis=2) == results.scored_with).astype(np.float32)
    intact = results.row_names.index("intact")
    spans = results.spans[:, 0] >= 0
    return results.spans[spans], right[intact] - right[spans]


def within(one: np.ndarray, other: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Weighted mean rank correlation among spans of one length of maps ``[spans, draws]``, ``[draws]``."""
    found, weights = [], []
    for length in np.unique(lengths):
        same = lengths == length
        if same.sum() > 2:
            a, b = (rankdata(x[same].round(4), axis=0) for x in (one, other))  # sums in float32 break ties
            a, b = a - a.mean(axis=0), b - b.mean(axis=0)
            scale = np.sqrt((a**2).sum(axis=0) * (b**2).sum(axis=0))
            found.append(np.divide((a * b).sum(axis=0), scale, out=np.zeros(a.shape[1]), where=scale > 0))
            weights.append(same.sum())
    return np.average(found, axis=0, weights=weights)


def draws(changes: np.ndarray, third: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    """Drops in points ``[spans, 1 + draws]`` on some examples: on these, and on resamples of them."""
    n = len(third)
    counts = chance.multinomial(n, np.full(n, 1 / n), size=DRAWS).T
    weights = np.concatenate([np.ones((n, 1)), counts], axis=1).astype(np.float32)
    return 100 * changes[:, third] @ weights / n


def main(out: Path, *folders: str) -> None:
    """Write a row for each comparison."""
    maps = {folder: lost(folder) for folder in folders}
    spans = next(iter(maps.values()))[0]
    assert all(np.array_equal(spans, own) for own, _ in maps.values()), "the folders have different spans"
    lengths, n = spans[:, 1] - spans[:, 0] + 1, next(iter(maps.values()))[1].shape[1]
    chance = np.random.default_rng(0)
    thirds = np.array_split(chance.permutation(n), 3)
    everywhere, parts = {}, {}
    for name, (_, changes) in maps.items():
        parts[name] = [draws(changes, third, np.random.default_rng(k)) for k, third in enumerate(thirds)]
        everywhere[name] = sum(len(t) * part for t, part in zip(thirds, parts[name])) / n
    rows = []
    for a, b in combinations(maps, 2):
        rows.append(("two seeds, same examples", a, b, within(everywhere[a], everywhere[b], lengths)))
        shared = [within(parts[a][i], parts[b][i], lengths) for i in range(3)]
        rows.append(("two seeds, same third", a, b, np.mean(shared, axis=0)))
        crossed = [within(parts[a][i], parts[b][j], lengths) for i, j in permutations(range(3), 2)]
        rows.append(("two seeds, disjoint thirds", a, b, np.mean(crossed, axis=0)))
    for a in maps:
        own = [within(parts[a][i], parts[a][j], lengths) for i, j in combinations(range(3), 2)]
        rows.append(("one seed, disjoint thirds", a, a, np.mean(own, axis=0)))
    for kind in dict.fromkeys(row[0] for row in rows):
        rows.append((kind, "mean", "", np.mean([row[3] for row in rows if row[0] == kind], axis=0)))
    table = [
        (*row[:3], row[3][0], *np.quantile(row[3][1:], [0.025, 0.975]), n if "examples" in row[0] else n // 3)
        for row in rows
    ]
    names = ["comparison", "map_a", "map_b", "within_one_length", "ci_low", "ci_high", "n_examples"]
    found = pd.DataFrame(table, columns=names).round(3)
    found.to_csv(out, index=False, lineterminator="\n")
    print(found.to_string(index=False))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
