"""Do the intervals cover what they say, and do the tests cry wolf? By simulation, with the truth known.

    python benchmarks/statistics_coverage.py [--simulations 400] [--examples 1000]

Each simulated study has an intact model that is right on 80 % of the examples and 78 spans, each of which
loses some of the right ones and wins some of the wrong ones. In the first case every span has a true drop of
2 points, in the second none has any. Printed: how often a 95 % interval covers the true drop, how often an
uncorrected p is below 0.05 where nothing is there, and how often any of the 78 is below it after Holm. There
the spans are independent; in a third case they are the spans of 12 layers, and those that share layers err on
the same examples, all with the same true drop. Printed of it: how often intervals cover the true interactions
and shares, how often a span is wrongly flagged as non-monotone, and how often Holm lets any of 78 pass where
the drop is 0. Last, the seconds of 10,000 resamples of 300 spans on 10,000 examples.
"""

from __future__ import annotations

import argparse
import json
import time
from statistics import NormalDist

import numpy as np

from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.ablation_tables import ablation_tables
from adapter_probe.analysis.attribution import interactions, shares
from adapter_probe.analysis.resampling import bootstrap_scores
from adapter_probe.analysis.significance import holm, percentile_interval, span_p
from adapter_probe.spans import span_variants

N_SPANS, RIGHT, LOST = 78, 0.8, 0.05
RESAMPLES = 10_000  # fewer could not be significant after Holm
CHAIN_RESAMPLES = 2_000  # enough for intervals; the test of accuracy is exact
N_LAYERS, REDRAWN = 12, 0.3


def study(
    n_examples: int, n_spans: int, drop: float, metric: str, generator: np.random.Generator
) -> AblationResults:
    """Predictions of an intact model and of spans with a true drop of `drop` in accuracy."""
    labels = generator.integers(0, 2, n_examples)
    intact = generator.random(n_examples) < RIGHT
    lost = generator.random((n_spans, n_examples)) < LOST / RIGHT
    won = generator.random((n_spans, n_examples)) < (LOST - drop) / (1 - RIGHT)
    right = np.concatenate([intact[None], np.where(intact, ~lost, won)])  # [variants, examples]
    predictions = np.where(right, labels, 1 - labels)
    spans = np.array([(-1, -1), *((i, i) for i in range(n_spans))])
    masks = np.ones((n_spans + 1, 2 * n_spans), dtype=bool)
    masks[np.arange(1, n_spans + 1), 2 * np.arange(n_spans)] = False
    names, logits = tuple(map(str, range(n_spans + 1))), np.eye(2, dtype=np.float32)[predictions]
    return AblationResults(masks, spans, names, logits, labels, metric, "classification", ("a", "b"), {}, {})


def simulate(simulations: int, n_examples: int, metric: str) -> dict[str, float]:
    """Coverage with a drop, and false positives without one."""
    rows, covered, positive, any_positive = np.arange(1, N_SPANS + 1), [], [], []
    for seed in range(simulations):
        for drop in (0.02, 0.0):
            results = study(n_examples, N_SPANS, drop, metric, np.random.default_rng([seed, int(drop > 0)]))
            sampled = bootstrap_scores(results, RESAMPLES, seed)
            differences = sampled[:, 1:] - sampled[:, :1]
            if drop:
                low, high = percentile_interval(differences)
                covered.append(((low <= -drop) & (-drop <= high)).mean())
            else:
                p = span_p(results, rows, 0, differences)
                positive.append((p < 0.05).mean())
                any_positive.append((holm(p) < 0.05).any())
    report = {"false_positives": float(np.mean(positive)), "any_after_holm": float(np.mean(any_positive))}
    # The true drop is known for accuracy; in MCC it depends on the predictions' balance.
    return {"interval_covers": float(np.mean(covered)), **report} if metric == "accuracy" else report


def chain_study(n_examples: int, drop: float, generator: np.random.Generator) -> AblationResults:
    """Predictions under every span of 12 layers, each with the same true drop in accuracy.

    A span redraws whether an example is right where its layers' normals sum to much; spans redraw alike.
    """
    variants = span_variants(N_LAYERS)
    labels = generator.integers(0, 2, n_examples)
    intact = generator.random(n_examples) < RIGHT
    redrawn = generator.random(n_examples) < RIGHT - drop / REDRAWN
    layers = generator.normal(size=(n_examples, N_LAYERS))
    right = [intact]
    for span in variants.spans[1:]:
        weight = layers[:, span.first : span.last + 1].sum(axis=1) / np.sqrt(span.n_layers)
        right.append(np.where(weight > NormalDist().inv_cdf(1 - REDRAWN), redrawn, intact))
    logits = np.eye(2, dtype=np.float32)[np.where(np.stack(right), labels, 1 - labels)]
    spans = np.array([(span.first, span.last) if span else (-1, -1) for span in variants.spans])
    names, kind = variants.names, "classification"
    return AblationResults(variants.masks, spans, names, logits, labels, "accuracy", kind, ("a", "b"), {}, {})


def simulate_chain(simulations: int, n_examples: int, drop: float = 0.02) -> dict[str, float]:
    """Coverage of what the drops are made of, and false flags, where all spans cost the same."""
    grid = np.full((N_LAYERS, N_LAYERS), 100 * drop)
    upper = np.triu_indices(N_LAYERS)
    seen: dict[str, list[float]] = {name: [] for name in ("interaction", "share", "flagged", "any")}
    for seed in range(simulations):
        results = chain_study(n_examples, drop, np.random.default_rng([seed, 2]))
        tables = ablation_tables(results, n_resamples=CHAIN_RESAMPLES, seed=seed)
        for frame, name, truth in (
            (tables.spans, "interaction", interactions(grid)[upper]),
            (tables.layers, "share", shares(grid)),
        ):
            inside = (frame[f"{name}_low_points"] <= truth) & (truth <= frame[f"{name}_high_points"])
            seen[name].append(inside.mean())
        longer = tables.spans["n_layers"] > 1
        seen["flagged"].append(tables.spans.loc[longer, "non_monotone"].mean())
        null = ablation_tables(chain_study(n_examples, 0.0, np.random.default_rng([seed, 3])), n_resamples=1)
        seen["any"].append(null.spans["significant"].any())
    names = ("interaction_interval_covers", "share_interval_covers", "flagged_non_monotone", "any_after_holm")
    return {name: float(np.mean(values)) for name, values in zip(names, seen.values())}


def seconds_at_full_size() -> float:
    """10,000 resamples of 300 spans on 10,000 examples, in accuracy."""
    results = study(10_000, 300, 0.0, "accuracy", np.random.default_rng(0))
    start = time.perf_counter()
    percentile_interval(bootstrap_scores(results, 10_000, 0))
    return time.perf_counter() - start


def main() -> None:
    """Run and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--simulations", type=int, default=400)
    parser.add_argument("--examples", type=int, default=1000)
    options = parser.parse_args()
    cases = {
        metric: simulate(options.simulations, options.examples, metric) for metric in ("accuracy", "mcc")
    }
    cases["chain"] = simulate_chain(options.simulations, options.examples)
    print(json.dumps({**vars(options), **cases, "full_size_seconds": seconds_at_full_size()}, indent=2))


if __name__ == "__main__":
    main()
