from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from ablation_facts import ablation_of

from adapter_probe.ablation_results import AblationResults
from adapter_probe.settings import SiteChoice
from adapter_probe.spans import span_variants


@pytest.fixture(scope="session")
def make_results() -> Callable[..., AblationResults]:
    """Random predictions of every span of a small model."""

    def make(
        n_layers: int = 4,
        *,
        seed: int = 0,
        n_examples: int = 40,
        n_labels: int = 3,
        metric: str = "accuracy",
        sites: SiteChoice = "both",
        complement: bool = False,
    ) -> AblationResults:
        generator = np.random.default_rng(seed)
        variants = span_variants(n_layers, sites, complement)
        kind = "regression" if n_labels == 1 else "classification"
        labels = (
            generator.normal(size=n_examples)
            if n_labels == 1
            else generator.integers(n_labels, size=n_examples)
        )
        return ablation_of(
            masks=variants.masks,
            spans=np.array([(s.first, s.last) if s else (-1, -1) for s in variants.spans]),
            row_names=variants.names,
            outputs=generator.normal(size=(len(variants.names), n_examples, n_labels)).astype(np.float32),
            scored_with=labels,
            metric=metric,
            kind=kind,
            label_names=tuple("abcdef"[:n_labels]) if n_labels > 1 else (),
            identity={"seed": seed},
            settings={"task": "made up", "split": "validation", "complement": complement},
        )

    return make
