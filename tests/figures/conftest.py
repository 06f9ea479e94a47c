from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from adapter_probe.results.ablation import AblationResults
from adapter_probe.spans import SiteChoice, contiguous_spans, span_variants


@pytest.fixture(scope="session")
def make_frame() -> Callable[..., pd.DataFrame]:
    """A grid of given drops, one a span in order, or of random ones from gains to heavy losses."""

    def make(n_layers: int, drops=None, seed: int = 0) -> pd.DataFrame:
        spans = contiguous_spans(n_layers)
        if drops is None:
            drops = 4 * np.random.default_rng(seed).standard_t(2, size=len(spans)) + 2
        return pd.DataFrame(
            {
                "first": [s.first for s in spans],
                "last": [s.last for s in spans],
                "n_layers": [s.n_layers for s in spans],
                "delta_points": -np.asarray(drops, dtype=float),
            }
        )

    return make


@pytest.fixture(scope="session")
def make_results() -> Callable[..., AblationResults]:
    """An ablation of chosen accuracies: `hits[row]` of 40 examples are right, 30 are of the first class."""

    def make(
        hits: list[int],
        n_layers: int = 3,
        sites: SiteChoice = "both",
        complement: bool = False,
        metric: str = "accuracy",
    ) -> AblationResults:
        variants = span_variants(n_layers, sites, complement)
        labels = np.array([0] * 30 + [1] * 10)
        logits = np.zeros((len(variants.names), 40, 2), dtype=np.float32)
        for row, right in enumerate(hits):
            logits[row, np.arange(40), np.where(np.arange(40) < right, labels, 1 - labels)] = 1
        spans = np.array([(s.first, s.last) if s else (-1, -1) for s in variants.spans])
        names, identity = ("no", "yes"), {"base": {"hash": "abc"}, "data": "ünï & <data>"}
        return AblationResults(
            variants.masks,
            spans,
            variants.names,
            logits,
            labels,
            metric,
            "classification",
            names,
            identity,
            {},
        )

    return make
