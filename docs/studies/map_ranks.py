"""Rank correlation between heatmaps: `python map_ranks.py OUT.csv NAME=spans.csv NAME=spans.csv ...`.

Every pair of maps on the spans that both have. A map of 6 layers meets one of 12 at equal relative depth:
layer i there stands for layers 2i and 2i + 1 here, so 21 of the 78 spans have a partner. Beside them, every
map against the mere number of layers of its spans, for long spans cost more in any map.
"""

import sys
from itertools import combinations
from pathlib import Path

import pandas as pd


def read(path: str) -> pd.Series:
    """Drops by first and last layer, points."""
    return -pd.read_csv(path).query("first >= 0").set_index(["first", "last"])["delta_points"]


def at_depth(drops: pd.Series, layers: int) -> pd.Series:
    """The spans of a 12-layer map that a 6-layer map has too, numbered as there."""
    if drops.index.get_level_values("last").max() + 1 == layers:
        return drops
    kept = {(first, last): drop for (first, last), drop in drops.items() if first % 2 == 0 and last % 2 == 1}
    return pd.Series({(first // 2, last // 2): drop for (first, last), drop in kept.items()})


def main(out: Path, maps: dict[str, pd.Series]) -> None:
    """Write a row for each pair."""
    rows = []
    for (name_a, a), (name_b, b) in combinations(maps.items(), 2):
        layers = min(int(drops.index.get_level_values("last").max()) + 1 for drops in (a, b))
        pair = pd.concat([at_depth(a, layers), at_depth(b, layers)], axis=1, join="inner")
        rank = pair.corr(method="spearman").iloc[0, 1]
        difference = (pair.iloc[:, 0] - pair.iloc[:, 1]).abs().mean()
        rows.append((name_a, name_b, len(pair), round(rank, 3), round(difference, 2)))
    for name, drops in maps.items():
        index = drops.index.to_frame()
        rank = drops.corr(index["last"] - index["first"], method="spearman")
        rows.append((name, "number of layers", len(drops), round(rank, 3), None))
    names = ["map_a", "map_b", "spans", "rank_correlation", "mean_absolute_difference_points"]
    pd.DataFrame(rows, columns=names).to_csv(out, index=False, lineterminator="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), {name: read(path) for name, path in (a.split("=", 1) for a in sys.argv[2:])})
