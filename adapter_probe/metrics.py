"""Scores of predictions against labels, for any number of variants at once.

Scores are fractions in [-1, 1]; a figure's "points" are 100 times these. Classification scores, also of tags
and of several labels, are functions of three counts a class, regression scores of sums over examples, and
scores of extractive question answering plain means over questions. Reweighting examples therefore reweights
the counts or sums and leaves the formulas unchanged. Losses of language models are ratios of sums in nats or
bits, or perplexities; so are the comparisons with the intact model's outputs, which need no labels.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import Literal, NamedTuple, get_args

import numpy as np

from adapter_probe.custom_metric import CUSTOM, CustomMetric, split_name
from adapter_probe.errors import DataError
from adapter_probe.formulas import (
    ClassCounts,
    accuracy,
    class_counts,
    class_f1,
    counts_by_example,
    is_complete,
    macro_f1,
    matthews,
    micro_f1,
    pearson,
    spearman,
)

Kind = Literal[
    "classification", "regression", "extractive", "causal", "tokens", "multilabel", "pairwise", "ranking",
    "embedding",
]  # fmt: skip
"""What a task is; that of a model of embeddings is another one as soon as its rows are known."""

_POINT_DECIMALS = 9
_OF_ROWS = ("multilabel", "tokens")  # kinds with labels [examples, labels]


class Metric(NamedTuple):
    """A metric; everything about it follows from here.

    Attributes:
        words: its printed name.
        kinds: kinds of tasks with labels that it fits.
        forms: forms of a language model's rows that it fits, see `adapter_probe.data.requests`.
        of_counts: the score ``[...]`` from the counts of classes; None for another formula.
        correlation: the score ``[...]`` from numbers ``[..., examples]`` and targets ``[examples]``, if it is
            a correlation.
        distance: what a change is called, of a metric that compares with the intact model's outputs; else
            empty.
        two_classes: whether it is of two classes, of which the last is the positive one.
        by_class: whether the counts of single classes matter, and not their sums alone.
        divided_by: what of a continuation its log-likelihood is divided by, one of `COUNTED`, or ``texts`` of
            a mean over written texts; else empty.
        of_each: whether a ratio is taken of each example, and the score is the mean of these.
        unit: of scores that have no upper end, losses and margins, empty for a perplexity; else None.
        less_is_better: whether it is a loss.
        of_numbers: whether answers have to hold a number.
        in_percent: whether a score is printed as a percentage; losses and correlations are not.
        short: its name in headings of tables, if shorter.
        hub: its name on the Hugging Face Hub, if another.
    """

    words: str
    kinds: tuple[str, ...] = ()
    forms: tuple[str, ...] = ()
    of_counts: Callable[[ClassCounts], np.ndarray] | None = None
    correlation: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    distance: str = ""
    two_classes: bool = False
    by_class: bool = False
    divided_by: str = ""
    of_each: bool = False
    unit: str | None = None
    less_is_better: bool = False
    of_numbers: bool = False
    in_percent: bool = True
    short: str = ""
    hub: str = ""

    @property
    def is_own(self) -> bool:
        """Whether it is a function of the user's, of predictions and labels."""
        return not (self.kinds or self.forms or self.distance)

    @property
    def is_ratio(self) -> bool:
        """Whether it is a ratio of two sums over examples: of `predictions` and of `labels`, see `score`."""
        divided = bool(self.divided_by) and not self.of_choices
        return (self.less_is_better or divided) and not self.is_own

    @property
    def is_perplexity(self) -> bool:
        """Whether its logarithm is a ratio."""
        return self.is_ratio and self.less_is_better and not self.unit

    @property
    def is_written(self) -> bool:
        """Whether it scores texts that a language model writes."""
        return self.forms == _WRITTEN

    @property
    def is_divergence(self) -> bool:
        """Whether it is a divergence of the intact model's outputs, in nats."""
        return bool(self.distance) and self.unit is not None

    @property
    def of_choices(self) -> bool:
        """Whether it is of multiple choice."""
        return self.forms == ("choice",)

    @property
    def is_mean(self) -> bool:
        """Whether it is the mean over examples of what each one scores."""
        return bool(self.kinds) and self.of_counts is None and self.correlation is None

    @property
    def is_proportion(self) -> bool:
        """Whether it is a share of right examples; of pairs, two equal scores are half right."""
        return bool(self.forms) and not self.is_ratio and self.unit is None

    @property
    def is_bounded_mean(self) -> bool:
        """Whether it is a mean of what an example scores: right, wrong, or in between, as of a tie."""
        return self.in_percent and not self.is_own and (self.is_mean or self.is_ratio)

    @property
    def is_of_counted(self) -> bool:
        """Whether what it takes of every example is counted already, by class: entities, or words."""
        return self.kinds == ("tokens",) and self.of_counts is not None

    @property
    def is_of_entities(self) -> bool:
        """Whether what is counted are the entities in tags."""
        return self.is_of_counted and self.of_counts is micro_f1

    @property
    def can_grow(self) -> bool:
        """Whether one example can change it without bound: a loss, a margin or a correlation."""
        return self.correlation is not None or (self.unit is not None and not self.is_own)

    def terms(self, sums: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numerators ``[..., examples]`` and denominators ``[examples]`` of a ratio, float64, by example.

        Args:
            sums: ``[..., examples]``, negative log-likelihoods or other sums.
            sizes: ``[examples]``, tokens, bytes or words.
        """
        # Contiguous, so that the order of summation does not depend on how many variants are scored together.
        sums, sizes = np.ascontiguousarray(sums, dtype=np.float64), np.asarray(sizes, dtype=np.float64)
        return (sums / sizes, np.ones_like(sizes)) if self.of_each else (sums, sizes)

    def ratio(self, numerator: np.ndarray, denominator: np.ndarray | float) -> np.ndarray:
        """The score from the sums of its terms, which of a loss are in nats."""
        nats = numerator / denominator
        if self.is_perplexity:
            return np.exp(nats)
        return nats / np.log(2) if self.unit == "bits" else nats


def _binary_f1(counts: ClassCounts) -> np.ndarray:
    f1, _ = class_f1(counts)
    check_metric("f1", "classification", f1.shape[-1])
    return f1[..., -1]


def _loss(
    words: str, forms: tuple[str, ...], divided_by: str, unit: str, of_each: bool = False, distance: str = ""
) -> Metric:
    return Metric(
        words, forms=forms, distance=distance, divided_by=divided_by, of_each=of_each, unit=unit,
        less_is_better=True, in_percent=False,
    )  # fmt: skip


_CLASSES, _RANKED, _PAIRS, _ANSWERS = ("classification",), ("ranking",), ("pairwise",), ("extractive",)
_FREE, _WRITTEN = ("completion", "text"), ("generation",)
_COMPARED = ("choice", *_FREE)
BY_NAME = {
    "accuracy": Metric("accuracy", _CLASSES, ("choice",), accuracy, short="acc."),
    "mcc": Metric(
        "Matthews correlation", _CLASSES, (), matthews, in_percent=False, short="MCC",
        hub="matthews_correlation",
    ),
    "f1": Metric("F1", _CLASSES, (), _binary_f1, two_classes=True),
    "micro_f1": Metric("micro F1", ("multilabel",), (), micro_f1, hub="f1"),
    "macro_f1": Metric("macro F1", (*_CLASSES, "multilabel"), (), macro_f1, by_class=True, hub="f1"),
    "entity_f1": Metric("entity F1", ("tokens",), (), micro_f1, hub="f1"),
    "tag_accuracy": Metric("tag accuracy", ("tokens",), (), accuracy, hub="accuracy"),
    "spearman": Metric(
        "Spearman correlation", ("regression",), correlation=spearman, in_percent=False, short="Spearman",
        hub="spearmanr",
    ),
    "pearson": Metric(
        "Pearson correlation", ("regression",), correlation=pearson, in_percent=False, short="Pearson",
        hub="pearsonr",
    ),
    "squad_f1": Metric("answer F1", _ANSWERS, short="F1", hub="f1"),
    "exact_match": Metric("exact match", _ANSWERS, short="EM"),
    "acc_norm": Metric("length-normalised accuracy", forms=("choice",), divided_by="characters"),
    "acc_bytes": Metric("byte-normalised accuracy", forms=("choice",), divided_by="bytes"),
    "pairwise_accuracy": Metric("pairwise accuracy", _PAIRS, ("preference",), hub="accuracy"),
    "margin": Metric("margin", _PAIRS, ("preference",), unit="", in_percent=False),
    "ndcg@10": Metric("nDCG@10", _RANKED, hub="ndcg_at_10"),
    "mrr@10": Metric("MRR@10", _RANKED, hub="mrr_at_10"),
    "recall@10": Metric("recall@10", _RANKED, hub="recall_at_10"),
    "ordered_pairs": Metric("pairs in order", _RANKED, hub="accuracy"),
    "greedy_accuracy": Metric("accuracy of greedy continuations", forms=("completion",)),
    "token_accuracy": Metric("token accuracy", forms=_FREE, divided_by="tokens"),
    "nll": _loss("negative log-likelihood", _FREE, "tokens", "nats", of_each=True),
    "perplexity": _loss("perplexity", _FREE, "tokens", ""),
    "bits_per_byte": _loss("bits per byte", _FREE, "bytes", "bits"),
    "byte_perplexity": _loss("byte perplexity", _FREE, "bytes", ""),
    "word_perplexity": _loss("word perplexity", _FREE, "words", ""),
    "continuation_perplexity": _loss("continuation perplexity", ("completion",), "", ""),
    "kl": _loss(
        "KL divergence from the intact model", _COMPARED, "tokens", "nats", distance="KL divergence"
    ),
    "agreement": Metric(
        "agreement with the intact model", forms=_COMPARED, distance="disagreement", divided_by="tokens"
    ),
    "cosine": Metric(
        "cosine similarity to the intact embedding", distance="cosine distance", divided_by="tokens",
        in_percent=False,
    ),
    "text_match": Metric("exact match", forms=_WRITTEN),
    "contains": Metric("answers contained", forms=_WRITTEN),
    "number": Metric("correct numbers", forms=_WRITTEN, of_numbers=True),
    "token_f1": Metric("token F1", forms=_WRITTEN, divided_by="texts"),
    "rouge_l": Metric("ROUGE-L", forms=_WRITTEN, divided_by="texts"),
}  # fmt: skip
"""A new metric is a row here; the first one of a kind is its usual one."""

COMPARISONS = tuple(name for name, one in BY_NAME.items() if one.distance)
"""Metrics of an ablation that compare with the intact model's outputs and need no labels."""
COMPARABLE = {"classification": COMPARISONS[:2], "causal": COMPARISONS[:2], "embedding": COMPARISONS[1:]}
"""Which of them a kind of task has; of embeddings, agreement is that on the nearest other text."""
METRICS: dict[str, tuple[str, ...]] = {
    kind: tuple(name for name, one in BY_NAME.items() if kind in one.kinds) for kind in get_args(Kind)
} | {"causal": tuple(name for name, one in BY_NAME.items() if one.forms and name not in COMPARISONS)}
METRICS["embedding"] = METRICS["regression"] + METRICS["pairwise"] + METRICS["ranking"]
OF_PAIRS = METRICS["pairwise"]
"""Metrics of two scores per example, of which the first should be the larger one."""
PER_TEXT = "per text:"
"""Prefix of the names of further ones, means of a number per text: of a function, or of a task."""
_ALIASES = {"exact_match": "text_match"}  # exact_match is of questions whose answers are passages
_TOKENS_ALONE = tuple(
    name
    for name, one in BY_NAME.items()
    if "completion" in one.forms and one.divided_by in ("tokens", "") and name not in COMPARISONS
)
OF_TOKENS = ("nll", *(name for name in _TOKENS_ALONE if name != "nll"))
"""Metrics of a text of which only the tokens are known; the first is the usual one."""
COUNTED = ("tokens", "characters", "bytes", "words")
"""What is counted of every continuation of a language model's example."""


def continuation_sizes(metric: str, counts: np.ndarray) -> np.ndarray:
    """What a metric divides every continuation's log-likelihood by: int64 ``[examples, continuations]``.

    Args:
        counts: int64 ``[examples, continuations, 4]``, of what `COUNTED` says; 0 where there is none.
    """
    unit = BY_NAME[metric].divided_by
    if unit in COUNTED:
        return counts[..., COUNTED.index(unit)]
    return (counts[..., 0] > 0).astype(np.int64)


def default_metric(kind: str) -> str:
    """The default metric: accuracy, Spearman correlation, or F1 of the answers' words.

    Of a language model it depends on the rows, see `adapter_probe.data.requests`.
    """
    return METRICS[check_kind(kind)][0]


def metric_label(metric: str) -> str:
    """The printed name of a metric, for axes and tables.

    Raises:
        DataError: the metric is unknown.
    """
    return about(metric).words


def about(metric: str) -> Metric:
    """How a metric is written: its row in `BY_NAME`, or what the name of one of the user's own tells.

    Raises:
        DataError: the metric is unknown.
    """
    if metric.startswith(CUSTOM):
        name, scale = split_name(metric)
        loss = scale == "loss"
        unit = "" if scale in ("loss", "number") else None
        words = name.replace("_", " ")
        return Metric(words, unit=unit, less_is_better=loss, in_percent=scale == "share")
    if metric.startswith(PER_TEXT):
        words = metric.removeprefix(PER_TEXT).removesuffix(",none").replace("_", " ").replace(",", ", ")
        return Metric(words, forms=_WRITTEN, divided_by="texts", in_percent=False)
    if metric not in BY_NAME:
        raise DataError(f"unknown metric {metric!r}; allowed: {', '.join(BY_NAME)}")
    return BY_NAME[metric]


def generated_metric(asked: str | None) -> str | None:
    """The name here of a metric of written texts that a user asks for; ``exact_match`` is `text_match`."""
    if isinstance(asked, CustomMetric):
        return f"{PER_TEXT}{asked.own_name}"
    return None if asked is None else _ALIASES.get(asked, asked)


def sign_of(metric: str) -> int:
    """-1 for a loss, of which less is better, else 1."""
    return -1 if about(metric).less_is_better else 1


def to_points(metric: str, difference: np.ndarray) -> np.ndarray:
    """A difference of scores in points, hundredths of the metric's unit; negative where it is for the worse.

    A loss that rises by 0.02 nats is 2 points worse: -2. Errors of floating point are rounded away.
    """
    return np.round(100 * sign_of(metric) * difference, _POINT_DECIMALS) + 0.0  # no -0.0


def check_kind(kind: str) -> Kind:
    """Return `kind` if it is valid.

    Raises:
        DataError: the kind is unknown.
    """
    if kind not in METRICS:
        raise DataError(f"unknown kind of task {kind!r}; allowed: {', '.join(METRICS)}")
    return kind


def check_metric(metric: str, kind: str, n_labels: int | None = None, *, compared: bool = False) -> None:
    """Check that a metric exists and fits the task.

    Args:
        n_labels: number of classes, where known.
        compared: whether there is an intact model to compare with.

    Raises:
        DataError: the metric is unknown, belongs to the other kind, or is F1 with other than two classes.
    """
    allowed = METRICS[check_kind(kind)] + (COMPARABLE.get(kind, ()) if compared else ())
    if isinstance(metric, CustomMetric) and kind in ("classification", "regression", "multilabel"):
        return
    if metric.startswith(CUSTOM) and not isinstance(metric, CustomMetric):
        raise _only_the_name(metric)
    if n_labels not in (None, 2):
        allowed = tuple(name for name in allowed if not BY_NAME[name].two_classes)
    if metric not in allowed:
        near = get_close_matches(metric, allowed, 1)
        own = BY_NAME.get(metric)
        task = f"{kind} with {n_labels} labels" if own and own.two_classes and n_labels else kind
        meant = f"did you mean {near[0]!r}? " if near and not own else ""
        raise DataError(f"metric {metric!r} does not fit {task}; {meant}allowed: {', '.join(allowed)}")


def _only_the_name(metric: str) -> DataError:
    return DataError(f"only the name of metric {metric!r} is known; pass its function again")


def score(metric: str, predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Score the predictions at each leading index against the same labels.

    Undefined scores follow scikit-learn and SciPy: a constant prediction has Matthews correlation 0 and
    Pearson or Spearman correlation nan; a class neither present nor predicted is left out of macro F1. A row
    that lacks a prediction (`NO_CLASS`, NaN or infinite) has no score: nan.

    Args:
        metric: a `CustomMetric`, or accuracy, mcc, f1 (of two classes; the last is the positive one:
            ``equivalent`` in MRPC, ``duplicate`` in QQP, ``1`` of 0 and 1), macro_f1, pearson, spearman,
            squad_f1, exact_match, micro_f1, entity_f1, tag_accuracy, kl, agreement, or one of a language
            model's.
        predictions: ``[..., examples]``: class indices, or those of the most likely choices; numbers for
            the correlations; for squad_f1 and exact_match the score of each question, in [0, 1]; for losses
            the negative log-likelihood of each example, in nats; for kl its summed divergences in nats, for
            agreement how many of its predictions agree, for token_accuracy how many of its tokens are right;
            for greedy_accuracy and shares of written texts 0 where an example is right and else 1; for
            pairwise_accuracy and margin what `adapter_probe.kinds.preferences.scores_of_pairs` gives, and for
            metrics of a ranking what each query scores. Of several labels or targets ``[..., examples,
            labels]``, 0 or 1 for each label. For entity_f1 and tag_accuracy ``[..., sentences, classes, 2]``:
            how many of the entities of a type, or words of a tag, were predicted rightly, and how many were
            predicted.
        labels: ``[examples]``, of the same kind: int64 classes, right choices, or 0, or float64 targets;
            ``[examples, labels]`` of several labels or targets; int64 ``[sentences, classes]``, numbers of
            entities or words; for squad_f1 and exact_match the numbers of the questions' paragraphs, since
            the questions' scores already account for the true answers; for losses and comparisons the number
            of tokens, bytes or words in each example, or of predictions compared, of classes and choices 1.

    Returns:
        float64 ``[...]``, fractions in [-1, 1] or nan; losses in nats a token (``nll``, the mean over
        examples), bits a byte, or perplexities (of all tokens, bytes or words together).

    Raises:
        DataError: the metric is unknown, or is f1 and there are more than two classes.
        ValueError: the shapes do not match, there are no examples, classes are not whole numbers >= 0 (except
            `NO_CLASS`), or a question's score is outside [0, 1].
    """
    own = about(metric)
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    n_axes = labels.ndim + own.is_of_counted
    there = predictions.shape[predictions.ndim - n_axes :][: labels.ndim]
    if not 1 <= labels.ndim <= 2 or there != labels.shape or not labels.size:
        raise ValueError(
            f"scoring needs labels [examples] and predictions [..., examples], at least one example; "
            f"got {labels.shape} and {predictions.shape}"
        )
    allowed = {2 if kind in _OF_ROWS and not own.is_mean else 1 for kind in own.kinds} or {1}
    if labels.ndim not in allowed and not isinstance(metric, CustomMetric):
        raise ValueError(f"metric {metric!r} does not score labels of {labels.ndim} axes")
    complete = is_complete(predictions, n_axes)
    scores = np.full(complete.shape, np.nan)
    if complete.any():
        scores[complete] = _score_complete(metric, predictions[complete], labels)
    return scores


def _score_complete(metric: str, predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
    if isinstance(metric, CustomMetric):
        return metric.scores(predictions.reshape(-1, *labels.shape), labels)
    if metric.startswith(CUSTOM):
        raise _only_the_name(metric)
    own = about(metric)
    if labels.ndim == 2:
        counts = counts_by_example(predictions, labels, own.is_of_counted).over_examples()
        return score_counts(metric, counts)
    if own.is_mean:
        # Contiguous, so that the order of summation does not depend on how many variants are scored together.
        scores = np.ascontiguousarray(predictions, dtype=np.float64)
        if own.kinds == _ANSWERS and not ((scores >= 0) & (scores <= 1)).all():
            raise ValueError(f"scores of questions must be in [0, 1], got {scores.min()} to {scores.max()}")
        return np.asarray(scores.mean(axis=-1))
    if own.is_ratio:
        return own.ratio(*(terms.sum(axis=-1) for terms in own.terms(predictions, labels)))
    if own.correlation is not None:
        return own.correlation(predictions, labels)
    return score_counts("accuracy" if own.is_proportion else metric, class_counts(predictions, labels))


def constant_prediction(metric: str, labels: np.ndarray) -> np.ndarray | None:
    """What `score` takes for always answering with the most frequent class (the first among equals).

    None for regression, where the correlation with a constant is undefined, for question answering and
    language models, whose labels are no classes, and where several labels or entities are looked for.
    """
    labels = np.asarray(labels)
    about_it = about(metric)
    if about_it.is_of_counted and about_it.of_counts is accuracy:  # of every sentence's words of each tag
        most = labels.sum(axis=0).argmax()
        found = np.zeros((*labels.shape, 2), dtype=np.int64)
        found[:, most] = np.stack([labels[:, most], labels.sum(axis=1)], axis=-1)
        return found
    own = (
        isinstance(metric, CustomMetric) and np.issubdtype(labels.dtype, np.integer) and not metric.of_outputs
    )
    if labels.ndim != 1 or not ("classification" in about_it.kinds or own):
        return None
    return np.full_like(labels, np.bincount(labels).argmax())


def majority_score(metric: str, labels: np.ndarray) -> float:
    """The score of `constant_prediction`; NaN where there is none."""
    metric_label(metric)
    constant = constant_prediction(metric, labels)
    return float("nan") if constant is None else float(score(metric, constant, np.asarray(labels)))


def score_counts(metric: str, counts: ClassCounts) -> np.ndarray:
    """A classification score from its counts, ``[...]``; see `score`.

    Raises:
        DataError: F1 with more than two classes.
    """
    formula = BY_NAME[metric].of_counts
    assert formula is not None, f"{metric} is no function of counts"
    return formula(counts)
