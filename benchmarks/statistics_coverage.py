"""Do the intervals cover what they say, and do the tests cry wolf? By simulation, with the truth known.

    python -m benchmarks.statistics_coverage [--only WORD] [--simulations 100]

Every case is a way to make scores of an intact model and of variants, whose true changes are known. Of each
statistic are printed, and written to ``benchmarks/results/statistics_coverage.csv``: how often the 95%
interval covers the truth, how often the truth lies below it (a drop is understated), its mean width, and how
often p is below 0.05 (false alarms where the truth is no change, else power), for 30 to 10,000 examples; for
whole maps also how often anything at all is wrong in them. The draws are fewer than in a study (2,000),
which adds noise and no bias.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtri

from adapter_probe import metrics
from adapter_probe.analysis.attribution import interactions, shares
from adapter_probe.analysis.costs import mean_over_tasks
from adapter_probe.analysis.removable import bounds_of_chosen, longest_removable, non_monotone
from adapter_probe.analysis.resampling import Draws, draw_scores
from adapter_probe.analysis.significance import holm, interval, over_seeds, p_values
from adapter_probe.analysis.sweeps import interquartile_interval

N_DRAWS, SPANS, LAYERS, RIGHT = 2_000, 40, 12, 0.8
SIZES = (30, 100, 300, 1000, 10_000)
OUT = Path(__file__).parent / "results" / "statistics_coverage.csv"
Generator = np.random.Generator


@dataclass
class Study:
    """What `draw_scores` reads of an ablation; the first row is the intact model."""

    metric: str
    kind: str
    predictions: np.ndarray
    scored_with: np.ndarray
    paragraphs: np.ndarray | None = None
    label_names: tuple[str, ...] = ("a", "b")
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n_examples(self) -> int:
        return len(self.scored_with)

    @property
    def taken_by_metric(self) -> np.ndarray:
        return self.predictions

    @property
    def units(self) -> np.ndarray:
        return np.arange(self.n_examples) if self.paragraphs is None else self.paragraphs

    @property
    def masks(self) -> np.ndarray:
        return np.arange(len(self.predictions))[:, None] == 0

    @property
    def nonfinite(self) -> np.ndarray:
        return np.zeros(len(self.predictions), dtype=np.int64)


def drawn(studies: Sequence[Study], generator: Generator, more: np.ndarray | None = None) -> Draws:
    """The scores of all studies under random weights."""
    return draw_scores(studies, N_DRAWS, int(generator.integers(2**31)), more)


def changes_of(study: Study, generator: Generator) -> Draws:
    """Changes of every variant against the intact model."""
    return drawn([study], generator).map(lambda own: own[..., 1:] - own[..., :1])


# Cases: from a generator and a number of examples to a study. Their truth is that of a large sample, unless
# it is known.

Make = Callable[[Generator, int], Study]


def classes(metric: str, prior: Sequence[float], lost: float, won: float) -> Make:
    """Classes of which a span loses some right predictions and wins some wrong ones."""

    def make(generator: Generator, n: int) -> Study:
        k = len(prior)
        labels = generator.choice(k, n, p=prior)
        intact = np.where(generator.random(n) < RIGHT, labels, (labels + generator.integers(1, k, n)) % k)
        other = (labels + generator.integers(1, k, (SPANS, n))) % k
        drawn = generator.random((SPANS, n))
        worse, better = drawn < lost / RIGHT, drawn < won / (1 - RIGHT)
        spans = np.where(intact == labels, np.where(worse, other, labels), np.where(better, labels, intact))
        names = tuple("abcdefgh"[:k])
        return Study(metric, "classification", np.vstack([intact, spans]), labels, label_names=names)

    return make


def questions(metric: str, lost: float, won: float, per: int, together: float) -> Make:
    """Questions on paragraphs, whose answers change together with a probability."""

    def make(generator: Generator, n: int) -> Study:
        paragraph = np.arange(n) // per
        each = generator.random((SPANS, n))
        whole = generator.random((SPANS, paragraph[-1] + 1))[:, paragraph]
        change = np.where(generator.random((SPANS, n)) < together, whole, each)
        intact = (generator.random(n) < RIGHT).astype(np.float32)
        part = 0.0 if metric == "exact_match" else np.round(generator.random((SPANS, n)), 2)
        spans = np.where(intact == 1, np.where(change < lost / RIGHT, part, 1), change < won / (1 - RIGHT))
        return Study(metric, "extractive", np.vstack([intact, spans]), paragraph, paragraph)

    return make


def texts(metric: str, tail: str, effect: float) -> Make:
    """Losses of texts, whose rises have light or heavy tails; `effect` in standard deviations of the tail."""

    def make(generator: Generator, n: int) -> Study:
        noise = generator.normal(size=(SPANS, n))
        if tail.startswith("lognormal"):
            s = float(tail.split()[1])
            noise = np.exp(s * noise) - np.exp(s**2 / 2)
        elif tail == "t3":
            noise = generator.standard_t(3, (SPANS, n))
        tokens = generator.integers(50, 300, n) if metric == "bits_per_byte" else np.ones(n, dtype=np.int64)
        rises = (0.1 * noise + 0.1 * effect) * (tokens if metric == "bits_per_byte" else 1)
        intact = 3.0 * tokens
        return Study(metric, "causal", np.vstack([intact, intact + rises]), tokens)

    return make


def tokens(lost: float, won: float, together: float, n_texts: int = 0) -> Make:
    """Right tokens of texts, of which those of one text change together with a probability."""

    def make(generator: Generator, n: int) -> Study:
        n = n_texts or n
        size = generator.integers(10, 40, n)
        rate = np.where(generator.random((SPANS, n)) < together, generator.random((SPANS, n)) ** 2 * 3, 1.0)
        right = generator.binomial(size, 0.6, n)
        changed = generator.binomial(right, np.minimum(lost * rate, 1)) - generator.binomial(
            size - right, np.minimum(won * rate, 1)
        )
        return Study("token_accuracy", "causal", np.vstack([right, right - changed]), size)

    return make


def numbers(metric: str, noise: float, share: float) -> Make:
    """Predicted numbers, to some of which a span adds noise."""

    def make(generator: Generator, n: int) -> Study:
        truth = generator.normal(size=n)
        intact = 0.8 * truth + 0.6 * generator.normal(size=n)
        added = generator.normal(size=(SPANS, n)) * (generator.random((SPANS, n)) < share)
        return Study(metric, "regression", np.vstack([intact, intact + noise * added]), truth)

    return make


def pairs(lost: float, tied: float) -> Make:
    """Pairs, some of which a span turns round or ties, and as many the other way."""

    def make(generator: Generator, n: int) -> Study:
        intact = (generator.random(n) < 0.7).astype(float)
        drawn = generator.random((SPANS, n))
        spans = np.where(drawn < lost, 1 - intact, np.where(drawn > 1 - tied, 0.5, intact))
        return Study("pairwise_accuracy", "pairwise", np.vstack([intact, spans]), np.ones(n, dtype=np.int64))

    return make


CASES: dict[str, tuple[Make, float | None]] = {
    "accuracy, hardly any change": (classes("accuracy", [0.5, 0.5], 0.002, 0.002), 0.0),
    "accuracy, few changes, no effect": (classes("accuracy", [0.5, 0.5], 0.01, 0.01), 0.0),
    "accuracy, many changes, no effect": (classes("accuracy", [0.5, 0.5], 0.08, 0.08), 0.0),
    "accuracy, few changes, drop 1": (classes("accuracy", [0.5, 0.5], 0.01, 0.0), -1.0),
    "accuracy, drop 2": (classes("accuracy", [0.5, 0.5], 0.05, 0.03), -2.0),
    "accuracy, drop 30": (classes("accuracy", [0.5, 0.5], 0.32, 0.02), -30.0),
    "F1 of half, few changes, no effect": (classes("f1", [0.5, 0.5], 0.01, 0.01), None),
    "F1 of half, drop 3": (classes("f1", [0.5, 0.5], 0.05, 0.02), None),
    "F1 of a tenth, no effect": (classes("f1", [0.9, 0.1], 0.05, 0.05), None),
    "F1 of a tenth, drop 3": (classes("f1", [0.9, 0.1], 0.02, 0.0), None),
    "MCC, few changes, no effect": (classes("mcc", [0.7, 0.3], 0.01, 0.01), None),
    "MCC, drop 6": (classes("mcc", [0.7, 0.3], 0.05, 0.02), None),
    "macro F1 of three, few changes, no effect": (classes("macro_f1", [0.6, 0.3, 0.1], 0.01, 0.01), None),
    "macro F1 of three, drop 3": (classes("macro_f1", [0.6, 0.3, 0.1], 0.05, 0.02), None),
    "exact match, few changes, no effect": (questions("exact_match", 0.01, 0.01, 5, 0.0), None),
    "exact match, by paragraph, no effect": (questions("exact_match", 0.05, 0.05, 5, 0.5), None),
    "exact match, by paragraph, drop 2": (questions("exact_match", 0.04, 0.02, 5, 0.3), None),
    "exact match, one a paragraph, drop 2": (questions("exact_match", 0.04, 0.02, 1, 0.0), None),
    "answer F1, by paragraph, drop 1": (questions("squad_f1", 0.04, 0.01, 5, 0.3), None),
    "token accuracy, no effect": (tokens(0.02, 0.03, 0.0), None),
    "token accuracy, by text, drop 1": (tokens(0.03, 0.01, 0.5), None),
    "pairs, few ties": (pairs(0.0, 0.02), None),
    "pairs, ties and turns": (pairs(0.03, 0.05), None),
    "loss, normal, no effect": (texts("nll", "normal", 0.0), 0.0),
    "loss, normal, effect 0.1 s.d.": (texts("nll", "normal", 0.1), -1.0),
    "loss, t3, no effect": (texts("nll", "t3", 0.0), 0.0),
    "loss, lognormal 1, no effect": (texts("nll", "lognormal 1", 0.0), 0.0),
    "loss, lognormal 1.25, no effect": (texts("nll", "lognormal 1.25", 0.0), 0.0),
    "bits per byte, lognormal 1, no effect": (texts("bits_per_byte", "lognormal 1", 0.0), 0.0),
    "Pearson, noise in all": (numbers("pearson", 0.3, 1.0), None),
    "Pearson, noise in a fifth": (numbers("pearson", 1.0, 0.2), None),
    "Spearman, noise in all": (numbers("spearman", 0.3, 1.0), None),
    "Spearman, noise in a fifth": (numbers("spearman", 1.0, 0.2), None),
}  # fmt: skip


def true_change(make: Make) -> float:
    """The mean change of a large sample, points."""
    generator, found = np.random.default_rng(99), []
    for _ in range(4):
        study = make(generator, 50_000)
        scored_with = study.scored_with
        scores = np.asarray(metrics.score(study.metric, study.predictions, scored_with))
        found.append(metrics.to_points(study.metric, scores[1:] - scores[0]).mean())
    return float(np.mean(found))


def judged(
    low: np.ndarray, high: np.ndarray, truth: np.ndarray | float, p: np.ndarray | None
) -> dict[str, Any]:
    """What is asked of intervals ``[anything]``; without one, nothing is missed or covered."""
    said = ~np.isnan(low) & ~np.isnan(high)
    below, above = (truth < low - 1e-9)[said], (truth > high + 1e-9)[said]
    found = {"said": said.mean(), "covers": 1 - (below | above).mean() if said.any() else np.nan}
    found |= {
        "too_high": below.mean() if said.any() else np.nan,
        "width": (high - low)[said].mean() if said.any() else np.nan,
    }
    return found if p is None else found | {"p_below_0.05": (p < 0.05).mean()}


def spans(n: int, simulations: int, only: str) -> Iterator[dict[str, Any]]:
    """Changes of single variants, and the intact model against guessing."""
    for name, (make, truth) in CASES.items():
        if only and only not in name:
            continue
        true = true_change(make) if truth is None else truth
        rows = []
        for seed in range(simulations):
            generator = np.random.default_rng([seed, n])
            changes = changes_of(make(generator, n), generator)
            rows.append((*interval(changes), p_values(changes)))
        yield {
            "case": name,
            "statistic": "change",
            "true": true,
            **judged(*np.stack(rows, 1)[:2], true, np.stack([row[2] for row in rows])),
        }


def chain(generator: Generator, n: int, drop: float, redrawn: float) -> tuple[Study, np.ndarray]:
    """All spans of 12 layers, each with the same true drop in accuracy; those that share layers err alike."""
    ends = np.argwhere(np.triu(np.ones((LAYERS, LAYERS), dtype=bool)))
    intact, again = generator.random(n) < RIGHT, generator.random(n) < RIGHT - drop / redrawn
    layers = np.cumsum(np.pad(generator.normal(size=(n, LAYERS)), ((0, 0), (1, 0))), axis=1)
    weight = (layers[:, ends[:, 1] + 1] - layers[:, ends[:, 0]]) / np.sqrt(ends[:, 1] - ends[:, 0] + 1)
    right = np.where(ndtri(1 - redrawn) < weight.T, again, intact)
    predictions = np.vstack([intact, right]).astype(np.int64)
    return Study("accuracy", "classification", predictions, np.ones(n, dtype=np.int64)), ends


def _parts(first: np.ndarray, last: np.ndarray, function: Callable, own: np.ndarray) -> np.ndarray:
    """Interactions or shares of changes ``[..., spans]``."""
    drops = np.full((*own.shape[:-1], LAYERS, LAYERS), np.nan)
    drops[..., first, last] = -own
    found = function(drops)
    return found[..., first, last] if function is interactions else found


def maps(n: int, simulations: int, only: str) -> Iterator[dict[str, Any]]:
    """What is said of whole maps: parts of the drops, and whether anything is wrong anywhere."""
    for name, drop, redrawn in (
        ("drop 2, many changes", 0.02, 0.3),
        ("drop 1, few changes", 0.01, 0.02),
        ("no effect, few changes", 0.0, 0.05),
        ("no effect, many changes", 0.0, 0.3),
    ):
        if only and only not in f"map, {name}":
            continue
        rows, any_wrong = [], {"Holm": [], "non-monotone": [], "chosen": [], "claims": []}
        for seed in range(simulations):
            generator = np.random.default_rng([seed, n, 1])
            study, ends = chain(generator, n, drop, redrawn)
            changes, (first, last) = changes_of(study, generator), ends.T
            frame = pd.DataFrame({"first": first, "last": last, "n_layers": last - first + 1})
            grid = np.full((LAYERS, LAYERS), 100 * drop)

            several = np.where(first < last, 2.0, 1.0)
            parts = changes.map(partial(_parts, first, last, interactions), several)
            rows.append(
                (
                    interactions(grid)[first, last],
                    shares(grid),
                    *interval(parts),
                    *interval(changes.map(partial(_parts, first, last, shares))),
                )
            )
            any_wrong["Holm"].append((holm(p_values(changes)) < 0.05).any())
            any_wrong["non-monotone"].append(non_monotone(ends, changes).any())
            # Chosen within a tolerance just below the true drop: every claim is false.
            bounds = bounds_of_chosen(frame, changes, study, np.arange(1, len(ends) + 1))
            any_wrong["chosen"].append((bounds > -100 * drop + 1e-9).any())
            frame = frame.assign(delta_points=changes.values.T @ changes.counts / n, bound_low_points=bounds)
            any_wrong["claims"].append(longest_removable(frame, 100 * drop + 2, "interval") is not None)
        columns = [np.stack(one) for one in zip(*rows)]
        for what, truth, low, high in (
            ("interaction", *columns[:1], *columns[2:4]),
            ("share", columns[1], *columns[4:]),
        ):
            yield {"case": f"map, {name}", "statistic": what, **judged(low, high, truth, None)}
        for what, said in (
            ("any significant after Holm", "Holm"),
            ("any non-monotone", "non-monotone"),
            ("any false claim of a removable span", "chosen"),
            ("a span claimed within 2 more than it costs", "claims"),
        ):
            yield {"case": f"map, {name}", "statistic": what, "any": np.mean(any_wrong[said])}


def nested(n: int, simulations: int, only: str) -> Iterator[dict[str, Any]]:
    """Independent spans, half of which cost just more than the tolerance of 1 point and half nothing."""
    if only and only not in "chosen among independent spans":
        return
    wrong, claimed, naive = [], [], []
    ends = np.argwhere(np.triu(np.ones((LAYERS, LAYERS), dtype=bool)))
    for seed in range(simulations):
        generator = np.random.default_rng([seed, n, 2])
        intact = generator.random(n) < RIGHT
        rate = np.where(np.arange(len(ends)) % 2, 0.0101, 0.0)
        lost = generator.random((len(ends), n)) < (0.02 + rate[:, None]) / RIGHT
        won = generator.random((len(ends), n)) < 0.02 / (1 - RIGHT)
        predictions = np.vstack([intact, np.where(intact, ~lost, won)]).astype(np.int64)
        study = Study("accuracy", "classification", predictions, np.ones(n, dtype=np.int64))
        changes = changes_of(study, generator)
        frame = pd.DataFrame({"first": ends[:, 0], "last": ends[:, 1], "n_layers": np.ptp(ends, axis=1) + 1})
        bounds = bounds_of_chosen(frame, changes, study, np.arange(1, len(ends) + 1))
        said = bounds >= -1
        wrong.append((said & (rate > 0)).any())
        claimed.append(said.any())
        naive.append(((interval(changes)[0] >= -1) & (rate > 0)).any())
    for what, found in (
        ("any false claim of a removable span", wrong),
        ("any claim", claimed),
        ("any false claim by single intervals", naive),
    ):
        yield {"case": "chosen among independent spans", "statistic": what, "any": np.mean(found)}


def over_studies(n: int, simulations: int, only: str) -> Iterator[dict[str, Any]]:
    """Means over 2 to 5 seeds, and differences of two studies: 78 spans, whose effects differ by seed."""
    for n_seeds in (2, 3, 5):
        for spread in (0.0, 0.01, 0.03):
            for drop, share in ((0.0, 0.5), (0.0, 0.95), (0.05, 0.5)):
                name = f"mean of {n_seeds} seeds, s.d. {100 * spread:g}, drop {100 * drop:g}, alike {share:g}"
                if only and only not in name:
                    continue
                rows, some = [], []
                for seed in range(simulations):
                    generator = np.random.default_rng([seed, n, 3])
                    studies, deltas = _seeds(generator, n, n_seeds, spread, drop, share)
                    changes = drawn(studies, generator).map(partial(_mean_change, n_seeds))
                    low, high, p = over_seeds(changes, deltas)
                    rows.append((low, high, p))
                    some.append((holm(p) < 0.05).any())
                low, high, p = np.stack(rows, 1)
                found = judged(low, high, -100 * drop, p)
                yield {"case": name, "statistic": "mean over seeds", **found, "any": np.mean(some)}


def _mean_change(n_studies: int, own: np.ndarray) -> np.ndarray:
    """The mean over studies of changes against each study's intact model, which is its first column."""
    columns = own.reshape(*own.shape[:-1], n_studies, -1)
    return (columns[..., 1:] - columns[..., :1]).mean(axis=-2)


def _difference(own: np.ndarray) -> np.ndarray:
    """The changes in the first study less those in the second."""
    columns = own.reshape(*own.shape[:-1], 2, -1)
    changes = columns[..., 1:] - columns[..., :1]
    return changes[..., 0, :] - changes[..., 1, :]


def _seeds(
    generator: Generator, n: int, n_seeds: int, spread: float, drop: float, share: float
) -> tuple[list[Study], np.ndarray]:
    """Studies of several seeds, of which a share of the variance of what an example does is common."""
    common = generator.normal(size=(SPANS, n))
    studies, deltas = [], []
    for _ in range(n_seeds):
        own = drop + spread * generator.normal(size=(SPANS, 1))
        at = np.sqrt(share) * common + np.sqrt(1 - share) * generator.normal(size=(SPANS, n))
        lost = at < ndtri(np.clip(0.1 + own / 2, 1e-9, 1))
        won = at > -ndtri(np.clip(0.1 - own / 2, 1e-9, 1))
        # 1 is half right, so that an example can be lost or won whatever the intact model says.
        values = 0.5 * np.ones((SPANS + 1, n))
        values[1:] += 0.5 * won - 0.5 * lost
        studies.append(Study("recall@10", "ranking", 2 * values - 1 + 0.0, np.ones(n, dtype=np.int64)))
        deltas.append(100 * (studies[-1].predictions[1:] - studies[-1].predictions[:1]).mean(axis=1))
    return studies, np.stack(deltas)


def differences(n: int, simulations: int, only: str) -> Iterator[dict[str, Any]]:
    """Differences of two studies on the same examples."""
    for name, rates in (
        ("no difference, few changes", (0.01, 0.01)),
        ("no difference", (0.05, 0.05)),
        ("difference 3", (0.02, 0.05)),
    ):
        if only and only not in f"two studies, {name}":
            continue
        rows = []
        for seed in range(simulations):
            generator = np.random.default_rng([seed, n, 4])
            a, b = (classes("accuracy", [0.5, 0.5], rate, 0.0)(generator, n) for rate in rates)
            b.predictions = np.where(b.predictions == b.scored_with, 1, 0)
            a.predictions = np.where(a.predictions == a.scored_with, 1, 0)
            a.scored_with = b.scored_with = np.ones(n, dtype=np.int64)
            changes = drawn([a, b], generator).map(_difference, 2.0)
            rows.append((*interval(changes), p_values(changes)))
        low, high, p = np.stack(rows, 1)
        yield {
            "case": f"two studies, {name}",
            "statistic": "difference",
            **judged(low, high, 100 * (rates[1] - rates[0]), p),
        }


def few_texts(_: int, simulations: int, only: str) -> Iterator[dict[str, Any]]:
    """Of two to ten texts, without any effect: how often something is significant."""
    for n in (2, 3, 4, 5, 6, 8, 10):
        for name, make in (
            ("loss, normal", texts("nll", "normal", 0.0)),
            ("token accuracy", tokens(0.03, 0.045, 0.5)),
        ):
            if only and only not in f"{n} texts, {name}":
                continue
            rows = []
            for seed in range(simulations):
                generator = np.random.default_rng([seed, n, 5])
                changes = changes_of(make(generator, n), generator)
                rows.append((*interval(changes), p_values(changes)))
            low, high, p = np.stack(rows, 1)
            yield {"case": f"{n} texts, {name}", "statistic": "change", "n": n, **judged(low, high, 0.0, p)}


def guessing(n: int, simulations: int, only: str) -> Iterator[dict[str, Any]]:
    """A model without skill against the most frequent class."""
    for name, metric in (("accuracy", "accuracy"), ("MCC", "mcc")):
        if only and only not in f"guessing, {name}":
            continue
        p = []
        for seed in range(10 * simulations):
            generator = np.random.default_rng([seed, n, 6])
            labels = generator.integers(0, 2, n)
            constant = metrics.constant_prediction(metric, labels)
            study = Study(metric, "classification", generator.integers(0, 2, (1, n)), labels)
            p.append(
                p_values(
                    drawn([study], generator, constant[None]).map(lambda own: own[..., :1] - own[..., 1:])
                )
            )
        yield {
            "case": f"guessing, {name}",
            "statistic": "better than the most frequent class",
            "p_below_0.05": (np.array(p) < 0.05).mean() / 2,
        }


def sweeps(n: int, simulations: int, only: str) -> Iterator[dict[str, Any]]:
    """Means and interquartile means over tasks and seeds; here there are no examples."""
    if n != SIZES[0]:
        return
    for n_tasks, n_seeds in ((1, 2), (1, 3), (1, 5), (2, 3), (5, 3), (9, 3), (9, 5)):
        name = f"sweep of {n_tasks} tasks, {n_seeds} seeds"
        if only and only not in name:
            continue
        generator, mean, iqm = np.random.default_rng([n_tasks, n_seeds]), [], []
        centres = np.linspace(-0.03, 0.01, n_tasks)
        for _ in range(20 * simulations):
            scores = [centre + 0.01 * generator.normal(size=n_seeds) for centre in centres]
            full = [0.01 * generator.normal(size=n_seeds) for _ in centres]
            mean.append(mean_over_tasks(scores))
            iqm.append(interquartile_interval(scores, full))
        expected = np.mean([one[0] for one in iqm])
        for what, truth, found in (
            ("mean over tasks", centres.mean(), mean),
            ("interquartile mean", expected, iqm),
        ):
            _, low, high = np.array(found).T
            yield {
                "case": name,
                "statistic": what,
                "n": np.nan,
                **judged(100 * low, 100 * high, 100 * truth, None),
            }


def write(rows: list[dict[str, Any]], sizes: Sequence[int]) -> None:
    """Write the table; rows of other numbers of examples that it has already stay."""
    found = pd.DataFrame(rows)
    if OUT.exists():
        other = pd.read_csv(OUT)
        told = found[["case", "statistic", "n"]].apply(tuple, axis=1)
        again = other[["case", "statistic", "n"]].apply(tuple, axis=1).isin(told) | other["n"].isin(sizes)
        found = pd.concat([other[~again], found])
    found.round(4).to_csv(OUT, index=False, lineterminator="\n")


def main() -> None:
    """Run, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--simulations", type=int, default=100)
    parser.add_argument("--only", default="")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    options = parser.parse_args()
    rows, begin = [], time.perf_counter()
    for n in options.sizes:
        count = options.simulations if n < 3000 else max(1, options.simulations // 10)
        for part in (few_texts,) * (n == options.sizes[0]) + (
            spans,
            maps,
            nested,
            differences,
            over_studies,
            guessing,
            sweeps,
        ):
            for row in part(n, count, options.only):
                rows.append({"n": n, "simulations": count} | row)
                print(
                    {name: round(v, 3) if isinstance(v, float) else v for name, v in rows[-1].items()},
                    flush=True,
                )
                if not options.only:
                    write(rows, options.sizes)
    print(f"{time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
