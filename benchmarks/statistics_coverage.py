"""Do the intervals cover what they say, and do the tests cry wolf? By simulation, with the truth known.

    python benchmarks/statistics_coverage.py [--simulations 400] [--examples 1000]

Each simulated study has an intact model that is right on 80 % of the examples and 78 spans, each of which
loses some of the right ones and wins some of the wrong ones. In the first case every span has a true drop of
2 points, in the second none has any. Printed: how often a 95 % interval covers the true drop, how often an
uncorrected p is below 0.05 where nothing is there, and how often any of the 78 is below it after Holm. Last,
the seconds of 10,000 resamples of 300 spans on 10,000 examples.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from adapter_probe.analysis.resampling import bootstrap_scores
from adapter_probe.analysis.significance import holm, interval, span_p
from adapter_probe.results.ablation import AblationResults

N_SPANS, RIGHT, LOST = 78, 0.8, 0.05
RESAMPLES = 10_000  # fewer could not be significant after Holm


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
                low, high = interval(differences)
                covered.append(((low <= -drop) & (-drop <= high)).mean())
            else:
                p = span_p(results, rows, 0, differences)
                positive.append((p < 0.05).mean())
                any_positive.append((holm(p) < 0.05).any())
    report = {"false_positives": float(np.mean(positive)), "any_after_holm": float(np.mean(any_positive))}
    # The true drop is known for accuracy; in MCC it depends on the predictions' balance.
    return {"interval_covers": float(np.mean(covered)), **report} if metric == "accuracy" else report


def seconds_at_full_size() -> float:
    """10,000 resamples of 300 spans on 10,000 examples, in accuracy."""
    results = study(10_000, 300, 0.0, "accuracy", np.random.default_rng(0))
    start = time.perf_counter()
    interval(bootstrap_scores(results, 10_000, 0))
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
    print(json.dumps({**vars(options), **cases, "full_size_seconds": seconds_at_full_size()}, indent=2))


if __name__ == "__main__":
    main()
