"""Rank correlation between heatmaps: `python map_ranks.py OUT.csv NAME=spans.csv NAME=spans.csv ...`.

Every pair of maps on the spans that both have: over all of them, and among the spans of one length (the mean
over the lengths with three or more), since long spans cost more in any map. A map of 6 layers meets one of 12
at equal relative depth: layer i there stands for layers 2i and 2i + 1 here, so 21 of the 78 spans have a
partner. Beside them, every map against the mere number of layers of its spans.
"""

import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats


def read(path: str) -> pd.Series:
    """Drops by first and last layer, points."""
    return -pd.read_csv(path).query("first >= 0").set_index(["first", "last"])["delta_points"]


def at_depth(drops: pd.Series, layers: int) -> pd.Series:
    """The spans of a 12-layer map that a 6-layer map has too, numbered as there."""
    if drops.index.get_level_values("last").max() + 1 == layers:
        return drops
    kept = {(first, last): drop for (first, last), drop in drops.items() if first % 2 == 0 and last % 2 == 1}
    return pd.Series({(first // 2, last // 2): drop for (first, last), drop in kept.items()})


def lengths(index: pd.MultiIndex) -> pd.Series:
    """The number of layers of every span."""
    frame = index.to_frame()
    return frame.iloc[:, 1] - frame.iloc[:, 0] + 1


def within(a: pd.Series, b: pd.Series) -> float:
    """The mean rank correlation among spans of one length."""
    groups = [same.index for _, same in a.groupby(lengths(a.index)) if len(same) > 2]
    found = [rank_correlation(a[places], b[places]) for places in groups]
    return float(np.nanmean(found))


def rank_correlation(a: pd.Series, b: pd.Series) -> float:
    """Spearman's rho; NaN if one of them is constant."""
    one, two = (np.asarray(values, float) for values in (a, b))
    return float(stats.spearmanr(one, two).statistic) if np.ptp(one) and np.ptp(two) else float("nan")


def main(out: Path, maps: dict[str, pd.Series]) -> None:
    """Write a row for each pair."""
    rows = []
    for (name_a, a), (name_b, b) in combinations(maps.items(), 2):
        layers = min(int(drops.index.get_level_values("last").max()) + 1 for drops in (a, b))
        pair = pd.concat([at_depth(a, layers), at_depth(b, layers)], axis=1, join="inner")
        one, other = pair.iloc[:, 0], pair.iloc[:, 1]
        difference = (one - other).abs().mean()
        rows.append((name_a, name_b, len(pair), rank_correlation(one, other), within(one, other), difference))
    for name, drops in maps.items():
        rank = rank_correlation(drops, lengths(drops.index))
        rows.append((name, "number of layers", len(drops), rank, np.nan, np.nan))
    names = ["map_a", "map_b", "spans", "rank_correlation", "within_one_length",
             "mean_absolute_difference_points"]  # fmt: skip
    table = pd.DataFrame(rows, columns=names).round(3)
    table.to_csv(out, index=False, lineterminator="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), {name: read(path) for name, path in (a.split("=", 1) for a in sys.argv[2:])})
