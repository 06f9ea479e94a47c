"""Studies whose true changes are known, for `benchmarks.statistics_coverage`, made by chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy.special import ndtri

from adapter_probe import metrics
from adapter_probe.kinds.table import about_kind

SPANS, LAYERS, RIGHT = 40, 12, 0.8
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
    def scored(self) -> SimpleNamespace:
        return SimpleNamespace(TASK=about_kind(self.kind))

    @property
    def masks(self) -> np.ndarray:
        return np.arange(len(self.predictions))[:, None] == 0

    @property
    def nonfinite(self) -> np.ndarray:
        return np.zeros(len(self.predictions), dtype=np.int64)


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
    """Losses of texts, whose rises have light or heavy tails; `effect` in the unit of the tail.

    The standard deviation of a normal tail is 1, of t with 3 degrees 1.7, of a lognormal one with 1, 1.25 and
    1.5 2.2, 4.2 and 9.0.
    """

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
        spans = 8 if metric == "spearman" and n > 3000 else SPANS  # ranks of each draw take a second a span
        added = generator.normal(size=(spans, n)) * (generator.random((spans, n)) < share)
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


def tags(metric: str, lost: float, together: float) -> Make:
    """Sentences with words of two tags; those of one sentence go wrong together with a probability."""

    def make(generator: Generator, n: int) -> Study:
        actual = np.stack([generator.integers(5, 15, n), generator.binomial(3, 0.5, n)], axis=1)
        rate = np.where(generator.random((SPANS, n)) < together, generator.random((SPANS, n)) ** 2 * 3, 1.0)
        found = generator.binomial(actual, [0.95, 0.7])
        worse = generator.binomial(found, np.minimum(lost * rate, 1)[..., None])
        better = generator.binomial(actual - found, np.minimum(lost * rate, 1)[..., None])
        hits = np.concatenate([found[None], found - worse + better])
        predicted = hits + (actual - hits)[..., ::-1]  # what is missed of one tag is taken for the other
        counted, of = (1, actual[:, 1:]) if metric == "entity_f1" else (0, actual)
        return Study(metric, "tokens", np.stack([hits, predicted], axis=-1)[:, :, counted:], of)

    return make


def labels(metric: str, lost: float, won: float) -> Make:
    """Texts with several of four labels, a frequent one and rare ones."""

    def make(generator: Generator, n: int) -> Study:
        truth = (generator.random((n, 4)) < [0.5, 0.3, 0.2, 0.1]).astype(np.int64)
        intact = np.where(generator.random((n, 4)) < RIGHT, truth, 1 - truth)
        flip = generator.random((SPANS, n, 4)) < np.where(intact == truth, lost, won)
        predictions = np.concatenate([intact[None], np.where(flip, 1 - intact, intact)])
        return Study(metric, "multilabel", predictions, truth, label_names=tuple("abcd"))

    return make


def scored(metric: str, kind: str, change: float, share: float) -> Make:
    """Queries or written texts with a score each in [0, 1], of which a span changes a share."""

    def make(generator: Generator, n: int) -> Study:
        intact = np.where(generator.random(n) < 0.4, 1.0, generator.random(n) ** 2)
        other = np.clip(intact + change + 0.3 * generator.normal(size=(SPANS, n)), 0, 1)
        spans = np.where(generator.random((SPANS, n)) < share, other, intact)
        return Study(metric, kind, np.vstack([intact, spans]), np.ones(n, dtype=np.int64))

    return make


def anew(share: float, worse: float) -> Make:
    """Written texts with a ROUGE each, of which a span writes a share anew, as well as before or worse."""

    def scores(generator: Generator, shape: Any) -> np.ndarray:
        return np.where(generator.random(shape) < 0.2, 1.0, generator.beta(1.2, 2.0, shape))

    def make(generator: Generator, n: int) -> Study:
        intact, other = scores(generator, n), scores(generator, (SPANS, n)) * (1 - worse)
        spans = np.where(generator.random((SPANS, n)) < share, other, intact)
        return Study("rouge_l", "causal", np.vstack([intact, spans]), np.ones(n, dtype=np.int64))

    return make


def distances(metric: str) -> Make:
    """How far outputs are from the intact model's: divergences with a tail, or predictions that agree."""

    def make(generator: Generator, n: int) -> Study:
        size = generator.integers(10, 40, n)
        if metric == "kl":
            spans, intact = size * 0.05 * np.exp(generator.normal(size=(SPANS, n))), np.zeros(n)
        else:
            spans, intact = generator.binomial(size, generator.beta(18, 2, (SPANS, n))), size
        return Study(metric, "causal", np.vstack([intact, spans]), size)

    return make


def margins(effect: float) -> Make:
    """Margins between an accepted and a rejected answer, which a span shifts with a tail."""

    def make(generator: Generator, n: int) -> Study:
        intact = generator.normal(1.0, 2.0, n)
        spans = intact - 0.5 * (generator.standard_t(4, (SPANS, n)) + effect)
        return Study("margin", "pairwise", np.vstack([intact, spans]), np.ones(n, dtype=np.int64))

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
    "loss, normal, effect 0.1": (texts("nll", "normal", 0.1), -1.0),
    "loss, t3, no effect": (texts("nll", "t3", 0.0), 0.0),
    "loss, lognormal 1, no effect": (texts("nll", "lognormal 1", 0.0), 0.0),
    "loss, lognormal 1.25, no effect": (texts("nll", "lognormal 1.25", 0.0), 0.0),
    "loss, lognormal 1.5, no effect": (texts("nll", "lognormal 1.5", 0.0), 0.0),
    "loss, lognormal 1, effect 0.1": (texts("nll", "lognormal 1", 0.1), -1.0),
    "perplexity, lognormal 1, no effect": (texts("perplexity", "lognormal 1", 0.0), 0.0),
    "bits per byte, lognormal 1, no effect": (texts("bits_per_byte", "lognormal 1", 0.0), 0.0),
    "tag accuracy, no effect but more of the rarer": (tags("tag_accuracy", 0.03, 0.5), None),
    "entity F1": (tags("entity_f1", 0.03, 0.5), None),
    "micro F1 of four labels, drop": (labels("micro_f1", 0.02, 0.02), None),
    "macro F1 of four labels, few changes": (labels("macro_f1", 0.003, 0.01), None),
    "MRR, few queries change": (scored("mrr@10", "ranking", -0.1, 0.1), None),
    "ROUGE-L, many texts change": (scored("rouge_l", "causal", -0.05, 0.6), None),
    "recall, no change but of a few": (scored("recall@10", "ranking", 0.0, 0.02), None),
    "divergence, lognormal 1": (distances("kl"), None),
    "agreement": (distances("agreement"), None),
    "margin, t4, no effect": (margins(0.0), 0.0),
    "margin, t4, effect 0.1": (margins(0.1), -5.0),
    "Pearson, noise in all": (numbers("pearson", 0.3, 1.0), None),
    "Pearson, noise in a fifth": (numbers("pearson", 1.0, 0.2), None),
    "Spearman, noise in all": (numbers("spearman", 0.3, 1.0), None),
    "Spearman, noise in a fifth": (numbers("spearman", 1.0, 0.2), None),
}  # fmt: skip


@lru_cache
def true_change(make: Make, times: int = 16) -> float:
    """The mean change of large samples, points; 40 spans on 3,000 examples so many times."""
    generator, found = np.random.default_rng(99), []
    for _ in range(times):
        study = make(generator, 3_000)
        scores = np.asarray(metrics.score(study.metric, study.predictions, study.scored_with))
        found.append(metrics.to_points(study.metric, scores[1:] - scores[0]).mean())
    return float(np.mean(found))


def chain(generator: Generator, n: int, drop: float, redrawn: float, ends: np.ndarray) -> Study:
    """All spans of 12 layers, each with the same true drop in accuracy; those that share layers err alike."""
    intact, again = generator.random(n) < RIGHT, generator.random(n) < RIGHT - drop / redrawn
    layers = np.cumsum(np.pad(generator.normal(size=(n, LAYERS)), ((0, 0), (1, 0))), axis=1)
    weight = (layers[:, ends[:, 1] + 1] - layers[:, ends[:, 0]]) / np.sqrt(ends[:, 1] - ends[:, 0] + 1)
    right = np.where(ndtri(1 - redrawn) < weight.T, again, intact)
    predictions = np.vstack([intact, right]).astype(np.int64)
    return Study("accuracy", "classification", predictions, np.ones(n, dtype=np.int64))


def of_seeds(
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
