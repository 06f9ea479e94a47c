"""Agreement of cheap scores with the exact grid: rank correlations and regret."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from scipy import stats

SCORE_LABELS = {
    "change": "size of the change",
    "weight_norm": "weight norm",
    "turn": "1 − cosine of input and output",
    "effect": "gradient: effect on the margin",
    "flips": "gradient: margins that change sign",
    "singles": "single-layer drops, summed",
    "length": "number of layers alone",
    "depth": "lowest layers first",
}


def span_table(layers: pd.DataFrame, effects: np.ndarray, margins: np.ndarray) -> pd.DataFrame:
    """Every span's scores: the sums of its layers', and of the gradient also the share of examples lost.

    Args:
        layers: one row per layer with columns `change`, `weight_norm`, `turn`.
        effects: ``[examples, layers]``, what a layer adds to the margin to first order.
        margins: ``[examples]``, of the intact model.

    Returns:
        Columns `first`, `last`, `n_layers`, `change`, `weight_norm`, `turn`, `effect` (mean over examples of
        the margin's fall), `flips` (points: how many examples of a hundred have a margin above zero with the
        span and, to first order, none without it, less those the other way round), `length` and `depth`
        (two scores that look at nothing: the number of layers, and the sum of the layers' numbers).
    """
    n = len(layers)
    first, last = np.triu_indices(n)
    frame = pd.DataFrame({"first": first, "last": last, "n_layers": last - first + 1})
    layer = np.arange(n)
    inside = ((first[:, None] <= layer) & (layer <= last[:, None])).astype(float)  # [spans, layers]
    for name in ("change", "weight_norm", "turn"):
        frame[name] = inside @ layers[name].to_numpy(float)
    falls = effects @ inside.T  # [examples, spans]
    frame["effect"] = falls.mean(axis=0)
    right = (margins > 0).astype(float)[:, None]
    frame["flips"] = 100 * (right - (margins[:, None] - falls > 0)).mean(axis=0)
    frame["length"], frame["depth"] = frame["n_layers"].astype(float), inside @ np.arange(1.0, n + 1)
    return frame


def with_drops(spans: pd.DataFrame, exact: pd.DataFrame) -> pd.DataFrame:
    """The spans' scores with their exact drops in points, and the score `singles`, derived from drops.

    Args:
        spans: of `span_table`.
        exact: columns `first`, `last`, `delta_points` of ``spans.csv``; spans that one of the two lacks are
            left out.
    """
    drops = exact[["first", "last"]].assign(drop_points=-exact["delta_points"].astype(float))
    frame = spans.merge(drops.astype({"first": int, "last": int}), on=["first", "last"]).dropna(
        subset="drop_points"
    )
    single = frame[frame["n_layers"] == 1].set_index("first")["drop_points"]
    frame["singles"] = [
        round(single.reindex(range(first, last + 1)).sum(skipna=False), 9)  # equal sums tie
        for first, last in zip(frame["first"], frame["last"])
    ]
    return frame


def agreement_table(frame: pd.DataFrame) -> pd.DataFrame:
    """How well each score predicts the exact drops of spans.

    Args:
        frame: of `with_drops`.

    Returns:
        A row a score: `score`, `label`, `spearman`, `kendall` (tau-b), `spearman_within` (mean of the
        correlations among spans of one length, without which any score that grows with the length looks
        good), `regret_points` and `regret_most_points` (mean and greatest over lengths, see `regret_table`).
    """
    regret, rows = regret_table(frame), []
    for score, label in SCORE_LABELS.items():
        within = [
            rank_correlation(same[score], same["drop_points"])
            for _, same in frame.groupby("n_layers")
            if len(same) > 2
        ]
        own = regret[regret["score"] == score]["regret_points"]
        rows.append({
            "score": score, "label": label,
            "spearman": rank_correlation(frame[score], frame["drop_points"]),
            "kendall": stats.kendalltau(frame[score], frame["drop_points"]).statistic,
            "spearman_within": float(np.nanmean(within)) if np.isfinite(within).any() else np.nan,
            "regret_points": own.mean(), "regret_most_points": own.max(),
        })  # fmt: skip
    return pd.DataFrame(rows)


def regret_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Points lost by pruning the span that a score selects, at each number of layers.

    Of the spans of a length, the one with the lowest score is removed (the lowest layers among equals); the
    regret is its exact drop minus the smallest drop of that length. The whole model is left out.

    Returns:
        Columns `score`, `n_layers`, `first`, `drop_points`, `least_points`, `regret_points`.
    """
    rows = []
    for n_layers, same in frame.groupby("n_layers"):
        if len(same) < 2:
            continue
        least = float(same["drop_points"].min())
        for score in SCORE_LABELS:
            if same[score].isna().all():
                continue
            chosen: Mapping[str, float] = same.sort_values([score, "first"], kind="stable").iloc[0]
            drop = float(chosen["drop_points"])
            rows.append({
                "score": score, "n_layers": int(n_layers), "first": int(chosen["first"]),
                "drop_points": drop, "least_points": least, "regret_points": drop - least,
            })  # fmt: skip
    return pd.DataFrame(rows)


def rank_correlation(a: pd.Series, b: pd.Series) -> float:
    """Spearman's rho; NaN if one of them is constant."""
    one, two = (np.asarray(values, float) for values in (a, b))
    return float(stats.spearmanr(one, two).statistic) if np.ptp(one) and np.ptp(two) else float("nan")
