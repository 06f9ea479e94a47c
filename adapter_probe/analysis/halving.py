"""Successive halving over learning rates: which of them go on after a part of their steps.

Source: Jamieson and Talwalkar 2016 (arXiv 1502.07943), with one cut, and with a margin for what the
validation examples leave open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from adapter_probe.metrics import IN_PERCENT, LOSSES, sign_of

PART = 3
"""The cut is after the first of so many equal parts of the steps."""
_SPREAD = 0.5  # the standard deviation of a share's term is at most this, of a correlation's about twice


def steps_to_cut(n_steps: int) -> int:
    """The step after which a trial is compared with those of other learning rates."""
    return max(1, math.ceil(n_steps / PART))


def margin(metric: str, n_examples: int) -> float:
    """How far scores may lie apart that the validation examples cannot tell apart: their standard error.

    Returns:
        at most this for a share of examples or a correlation; 0 for a loss, which has no such bound.
    """
    if metric in LOSSES:
        return 0.0
    return (_SPREAD if metric in IN_PERCENT else 2 * _SPREAD) / math.sqrt(n_examples)


def go_on(scores: Sequence[float | None], metric: str, n_examples: int) -> np.ndarray:
    """Bool ``[rates]``: the better half of the learning rates, rounded up, and those as good as its best.

    Args:
        scores: validation score of every rate at the cut; None where the training diverged.
    """
    values = np.array([np.nan if one is None else one for one in scores], dtype=np.float64)
    values = np.where(np.isnan(values), -np.inf, sign_of(metric) * values)
    ranked = np.sort(values)[::-1]
    last = ranked[math.ceil(len(ranked) / 2) - 1]
    kept = np.asarray((values >= last) | (values >= ranked[0] - margin(metric, n_examples)))
    return kept & (np.isfinite(values) | ~np.isfinite(values).any())


def saved_share(cuts: pd.DataFrame) -> float:
    """The share of the steps of a search that the stopped learning rates did not need.

    Args:
        cuts: columns of ``halving.csv``.
    """
    saved = (cuts["seeds"] * cuts["n_steps"] - cuts["step"])[cuts["stopped"]].sum()
    return float(saved / (cuts["seeds"] * cuts["n_steps"]).sum())
