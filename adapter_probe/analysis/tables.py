"""All tables of an ablation, from one bootstrap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from adapter_probe.analysis.attribution import interactions, shares
from adapter_probe.analysis.deltas import intact_row, span_grid, span_scores, study_kind
from adapter_probe.analysis.removable import non_monotone, removable_table
from adapter_probe.analysis.resampling import N_RESAMPLES, bootstrap_scores
from adapter_probe.analysis.significance import ALPHA, holm, interval, span_p
from adapter_probe.analysis.summary import TOLERANCES
from adapter_probe.results.ablation import AblationResults


@dataclass(frozen=True, eq=False)
class AblationTables:
    """What ``spans.csv``, ``layers.csv`` and ``removable.csv`` hold.

    Attributes:
        spans: a row a span: `span_scores`, then `ci_low_points`, `ci_high_points` (95 % paired bootstrap
            interval of `delta_points`), `p_value`, `p_holm` (over all spans), `significant` (below 0.05),
            `interaction_points` with its interval `interaction_low_points`, `interaction_high_points` (of the
            drop: positive = the span costs beyond its parts), `non_monotone`.
        layers: a row a layer: the single-layer span, and the layer's share of the drop of all layers with its
            interval.
        removable: the longest removable spans, see `removable_table`.
    """

    spans: pd.DataFrame
    layers: pd.DataFrame
    removable: pd.DataFrame


def resamples_for(results: AblationResults) -> int:
    """Resamples that leave room for significance after Holm's correction.

    A bootstrap p is at least 2 / (resamples + 1), and Holm multiplies the least by the number of spans: with
    100 resamples a span it can fall to 0.02. The exact test of accuracy needs no more than the intervals do.
    """
    n_spans = int((results.spans[:, 0] >= 0).sum())
    return N_RESAMPLES if results.metric == "accuracy" else max(N_RESAMPLES, 100 * n_spans)


def ablation_tables(
    results: AblationResults, n_resamples: int | None = None, seed: int = 0
) -> AblationTables:
    """Score every span, and say how sure that is.

    Where the spans were kept and not ablated, interactions and shares mean nothing and are empty.

    Args:
        results: the ablation.
        n_resamples: of the bootstrap; by default `resamples_for`. Questions are resampled by paragraph.
        seed: of the bootstrap; the same results and seed give the same tables.

    Raises:
        ResultsError: no intact row, or a span stands in two rows.
    """
    frame = span_scores(results)
    rows, intact = _rows_of(results, frame), intact_row(results)
    sampled = bootstrap_scores(results, n_resamples or resamples_for(results), seed)  # [resamples, variants]
    deltas = 100 * (sampled[:, rows] - sampled[:, [intact]])  # [resamples, spans]
    low, high = interval(deltas)
    p = np.where(np.isnan(frame["delta_points"]), np.nan, span_p(results, rows, intact, deltas))
    adjusted = holm(p)
    frame = frame.assign(
        ci_low_points=low,
        ci_high_points=high,
        p_value=p,
        p_holm=adjusted,
        significant=adjusted < ALPHA,
    )
    ablated = study_kind(results) == "ablated"
    drops = -frame["delta_points"].to_numpy()
    flags = non_monotone(frame[["first", "last"]].to_numpy(), drops, -deltas) if ablated else False
    frame = _with_interactions(frame, deltas, ablated).assign(non_monotone=flags)
    return AblationTables(frame, _layer_table(frame, deltas, ablated), removable_table(frame, TOLERANCES))


def _rows_of(results: AblationResults, frame: pd.DataFrame) -> np.ndarray:
    """Which variant each row of the frame is."""
    place = {(first, last): row for row, (first, last) in enumerate(results.spans.tolist())}
    return np.array([place[span] for span in zip(frame["first"], frame["last"])])


def _resampled_grids(frame: pd.DataFrame, deltas: np.ndarray) -> np.ndarray:
    """Resampled drops by first and last layer, ``[resamples, layers, layers]``."""
    n_layers = int(frame["last"].max()) + 1
    grids = np.full((len(deltas), n_layers, n_layers), np.nan)
    grids[:, frame["first"], frame["last"]] = -deltas
    return grids


def _with_interactions(frame: pd.DataFrame, deltas: np.ndarray, ablated: bool) -> pd.DataFrame:
    names = ("interaction_points", "interaction_low_points", "interaction_high_points")
    if not ablated:
        return frame.assign(**dict.fromkeys(names, np.nan))
    first, last = frame["first"].to_numpy(), frame["last"].to_numpy()
    estimate = interactions(-span_grid(frame))[first, last]
    low, high = interval(interactions(_resampled_grids(frame, deltas))[:, first, last])
    return frame.assign(**dict(zip(names, (estimate, low, high))))


def _layer_table(frame: pd.DataFrame, deltas: np.ndarray, ablated: bool) -> pd.DataFrame:
    singles = frame[frame["n_layers"] == 1]
    wanted = ["delta_points", "ci_low_points", "ci_high_points", "p_holm"]
    table = singles[["first", *wanted]].rename(columns={"first": "layer"}).reset_index(drop=True)
    names = ("share_points", "share_low_points", "share_high_points")
    if not ablated:
        return table.assign(**dict.fromkeys(names, np.nan))
    low, high = interval(shares(_resampled_grids(frame, deltas)))
    return table.assign(**dict(zip(names, (shares(-span_grid(frame)), low, high))))
