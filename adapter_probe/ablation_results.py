"""One ablation in memory: every example's outputs under every variant, and the predictions made from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from adapter_probe import metrics
from adapter_probe.formulas import NO_CLASS, finite_or_nan
from adapter_probe.predictions import (
    differences_from_logits,
    entity_types,
    labels_from_logits,
    predictions_from_likelihoods,
    predictions_from_logits,
    scores_of_pairs,
)
from adapter_probe.spans import SITES

QUESTION_SCORES = ("squad_f1", "exact_match")
"""What the columns of `AblationResults.outputs` hold in question answering."""
ARRAYS: dict[str, tuple[type, tuple[str | int, ...]]] = {
    "outputs": (np.float32, ("variants", "examples", "outputs")),
    "masks": (np.bool_, ("variants", "sites")),
    "spans": (np.int64, ("variants", 2)),
    "scored_with": (np.int64, ("examples", "labels")),
    "answers": (np.int32, ("variants", "examples", 2)),
    "counts": (np.int64, ("examples", "outputs", len(metrics.COUNTED))),
    "groups": (np.str_, ("examples",)),
    "greedy": (np.bool_, ("variants", "examples")),
    "differences": (np.float64, ("variants", "examples", 2)),
    "right": (np.int64, ("variants", "examples")),
    "stacks": (np.str_, ("variants",)),
    "modules": (np.str_, ("variants",)),
    "tags": (np.int16, ("variants", "examples", "words")),
    "true_tags": (np.int16, ("examples", "words")),
    "reference": (np.float64, ("examples", 2)),
}
"""The arrays of an ablation: type of their numbers, and axes."""
_N_OUTPUTS = {"regression": 1, "extractive": 2, "pairwise": 2, "ranking": 4, "embedding": 2}


@dataclass(frozen=True, eq=False)
class AblationResults:
    """One complete ablation, the input of statistics and figures.

    Attributes:
        masks: bool ``[variants, sites]``; True = the site's adapter was on.
        spans: int64 ``[variants, 2]``: first and last layer, counted in the stack, or -1, -1 for rows that
            are no span.
        row_names: one name per variant.
        outputs: float32 ``[variants, examples, labels]``: logits, or of a regression one column of values. Of
            question answering, what each question scores, ``[variants, questions, 2]``: answer F1 and exact
            match, NaN where a logit was not finite. Of a language model, summed log-likelihoods in nats,
            ``[variants, examples, continuations]``, 0 where an example has fewer; of texts that it writes
            their scores, ``[variants, examples, 1]``, NaN where a logit was not finite. Of pairs, the scores
            of what is chosen and what is rejected, ``[variants, examples, 2]``; of rankings what each query
            scores by every metric of a ranking, ``[variants, queries, 4]``. Of tags, how many entities of
            each type (or words of each tag) of a sentence were found, and how many were predicted,
            ``[variants, sentences, 2 classes]``, NaN where a logit was not finite. Of embeddings without
            labels, whether each text's nearest other text is the intact model's, and the cosine to the intact
            embedding, ``[variants, texts, 2]``.
        scored_with: ``[examples]`` or ``[examples, labels]``, the `labels` of `metrics.score`; of classes
            indices into `label_names`.
        metric: name of the metric.
        kind: see `metrics.Kind`.
        label_names: names in the order of the outputs; empty for a regression.
        identity: everything that determines the numbers, as plain JSON.
        settings: settings of the ablation, as plain JSON.
        answers: int32 ``[variants, questions, 2]``, first character of each answer in its context and one
            past its last, -1 for none; None for the other kinds.
        counts: int64 ``[examples, continuations, 4]``, what `metrics.COUNTED` says of every continuation, 0
            where there is none; None except for language models.
        groups: str ``[examples]``, group of each example; None if the data has no groups.
        greedy: bool ``[variants, examples]``, whether every token of the continuation is the most likely
            one; None for other metrics than ``greedy_accuracy``.
        differences: float64 ``[variants, examples, 2]``, of a language model compared with the intact model:
            divergences in nats summed over the scored tokens, and the number of tokens with the same
            likeliest next token; None for other metrics and kinds, and of choices.
        right: int64 ``[variants, examples]``, how many tokens of the continuation are the most likely one;
            None for other metrics than ``token_accuracy``.
        stacks: str ``[variants]``, the stack of layers in which alone the variant switches, empty for the
            intact model and where all stacks are off; `settings` has their names and numbers of layers in
            the order of the sites. None of a model with one stack.
        modules: str ``[variants]``, of a map of layers and modules, the module that the variant switches in
            its layers, or ``all``; empty for the other rows. None in a study of spans.
        tags: int16 ``[variants, sentences, words]``, predicted tags, indices into `label_names`; -1 where a
            logit was not finite, `NO_WORD` where a sentence has no word that is scored. None for other kinds.
        true_tags: int16 ``[sentences, words]``, the right ones.
        reference: float64 ``[examples, 2]``, of preferences the log-likelihoods by a reference model; None
            without one.
    """

    masks: np.ndarray
    spans: np.ndarray
    row_names: tuple[str, ...]
    outputs: np.ndarray
    scored_with: np.ndarray
    metric: str
    kind: str
    label_names: tuple[str, ...]
    identity: dict
    settings: dict
    answers: np.ndarray | None = None
    counts: np.ndarray | None = None
    groups: np.ndarray | None = None
    greedy: np.ndarray | None = None
    differences: np.ndarray | None = None
    right: np.ndarray | None = None
    stacks: np.ndarray | None = None
    modules: np.ndarray | None = None
    tags: np.ndarray | None = None
    true_tags: np.ndarray | None = None
    reference: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.kind not in metrics.METRICS:
            raise ValueError(f"kind should be one of {', '.join(metrics.METRICS)}, got {self.kind!r}")
        of_choices = self.outputs.shape[2:] > (1,)  # which are compared as a whole, and not by their tokens
        needed = {
            "counts": self.kind == "causal",
            "greedy": self.metric == "greedy_accuracy",
            "right": self.metric == "token_accuracy",
            "differences": self.metric in metrics.COMPARISONS and self.kind == "causal" and not of_choices,
        }
        for name, there in needed.items():
            if there != (getattr(self, name) is not None):
                known = f"kind {self.kind!r} and metric {self.metric!r}"
                raise ValueError(f"{known} {'need' if there else 'do not go with'} {name}")
        sizes: dict[str | int, int] = dict(zip(ARRAYS["outputs"][1], (*self.outputs.shape, 0, 0, 0)))
        if self.kind != "causal":
            sizes["outputs"] = _N_OUTPUTS.get(self.kind, len(self.label_names))
        if self.scored_with.ndim == 2:
            sizes["outputs"] = self.scored_with.shape[1] * (2 if self.kind == "tokens" else 1)
        for name, (kind, axes) in ARRAYS.items():
            if (array := getattr(self, name)) is None:
                continue
            if name == "scored_with":
                kind, axes = (np.float64 if self.kind == "regression" else kind), axes[: max(1, array.ndim)]
            own = dict(zip(axes, array.shape))
            shape = tuple(
                axis if isinstance(axis, int) else sizes.setdefault(axis, own.get(axis, 0)) for axis in axes
            )
            if array.dtype.type is not kind or array.shape != shape:
                wanted = f"{np.dtype(kind).name} {list(shape)}"
                raise ValueError(f"{name} should be {wanted}, got {array.dtype} {list(array.shape)}")
        if len(self.row_names) != sizes["variants"]:
            raise ValueError(f"{sizes['variants']} variants have {len(self.row_names)} row names")
        classes = self.kind == "classification" and self.metric not in metrics.COMPARISONS
        if classes and not np.all((self.scored_with >= 0) & (self.scored_with < sizes["outputs"])):
            raise ValueError(f"scored_with should lie in 0..{sizes['outputs'] - 1}")

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the sites of every layer."""
        return tuple(self.settings.get("site_names") or (site.name for site in SITES))

    @property
    def n_layers(self) -> int:
        """Number of layers of the model."""
        return self.masks.shape[1] // len(self.sites)

    @cached_property
    def switched(self) -> np.ndarray:
        """Bool ``[layers, sites of a layer]``: what some variant switches."""
        return np.reshape((~self.masks).any(axis=0), (self.n_layers, -1))

    @property
    def classes_of_labels(self) -> tuple[str, ...]:
        """What the columns of ``[examples, labels]`` are: labels, tags or types of entities; else empty."""
        if self.kind == "tokens" and self.metric == "entity_f1":
            return entity_types(self.label_names)
        return self.label_names if self.kind in ("tokens", "multilabel") else ()

    @cached_property
    def in_stacks(self) -> dict[str, AblationResults]:
        """Every studied stack of layers as a study of its own, by name; of a single stack this study itself.

        It has the intact model, and the variants that switch in this stack alone.
        """
        if self.stacks is None:
            return {"": self}
        intact, end, found = int(np.argmax(self.masks.all(axis=1))), 0, {}
        for name, n_layers, *of_adapter in self.settings["stacks"]:
            begin = len(self.sites) * of_adapter[0] if of_adapter else end
            end = begin + len(self.sites) * n_layers
            rows = np.array([intact, *np.flatnonzero(self.stacks == name)])
            if len(rows) == 1:
                continue
            settings = {key: x for key, x in self.settings.items() if key != "stacks"} | {"stack": name}
            if counts := settings.get("site_parameters"):
                settings["site_parameters"] = counts[begin:end]
            own = self.rows(rows)
            found[name] = replace(own, masks=own.masks[:, begin:end], settings=settings, stacks=None)
        return found

    def rows(self, kept: Sequence[int]) -> AblationResults:
        """Some of the variants."""
        return replace(
            self, **self._taken("variants", kept), row_names=tuple(self.row_names[row] for row in kept)
        )

    def of_examples(self, chosen: np.ndarray) -> AblationResults:
        """The ablation restricted to some examples, int ``[chosen]``."""
        return replace(self, **self._taken("examples", chosen))

    def _taken(self, axis: str, chosen: Sequence[int] | np.ndarray) -> dict[str, np.ndarray]:
        """The arrays that have an axis, restricted to some places of it."""
        return {
            name: np.take(array, chosen, axis=axes.index(axis))
            for name, (_, axes) in ARRAYS.items()
            if axis in axes and (array := getattr(self, name)) is not None
        }

    @property
    def units(self) -> np.ndarray:
        """What resamples draw as one, int ``[examples]``: the questions on a paragraph, else each example."""
        return self.scored_with if self.kind == "extractive" else np.arange(self.n_examples)

    @property
    def n_examples(self) -> int:
        """Number of examples."""
        return len(self.scored_with)

    @cached_property
    def nonfinite(self) -> np.ndarray:
        """Int64 ``[variants]``: examples with an output that is NaN or infinite.

        A variant with any has no score.
        """
        finite = np.isfinite(self.outputs).all(axis=-1)
        if self.differences is not None:
            finite &= np.isfinite(self.differences).all(axis=-1)
        return (~finite).sum(axis=1)

    @cached_property
    def predictions(self) -> np.ndarray:
        """The `predictions` of `metrics.score`, ``[variants, examples]``: see there.

        -1 or NaN where an output is not finite.
        """
        if self.differences is not None:
            return finite_or_nan(self.differences[..., metrics.COMPARISONS.index(self.metric)])
        if self.kind == "embedding":
            scored = self.outputs[..., metrics.COMPARABLE["embedding"].index(self.metric)]
            return finite_or_nan(scored.astype(np.float64))
        if self.metric in metrics.COMPARISONS:
            intact = self.outputs[np.argmax(self.masks.all(axis=1))]
            there = None if self.counts is None else self.counts[..., 0] > 0
            return differences_from_logits(self.metric, self.outputs, intact, there)
        if self.greedy is not None:
            finite = np.isfinite(self.outputs).all(axis=-1)
            return np.where(finite, 1 - self.greedy, NO_CLASS).astype(np.int64)
        if metrics.is_generated(self.metric):
            scores = finite_or_nan(self.outputs[..., 0].astype(np.float64))
            if metrics.is_ratio(self.metric):
                return scores
            return np.where(np.isnan(scores), NO_CLASS, 1 - np.nan_to_num(scores)).astype(np.int64)
        if self.right is not None:
            return np.where(np.isfinite(self.outputs[..., 0]), self.right, np.nan)
        if self.kind == "ranking":
            scored = self.outputs[..., metrics.METRICS["ranking"].index(self.metric)].astype(np.float64)
            return np.where(np.isfinite(self.outputs).all(axis=-1), scored, np.nan)
        if self.metric in metrics.OF_PAIRS:
            return scores_of_pairs(self.metric, self.outputs, self.reference)
        if self.counts is not None:
            return predictions_from_likelihoods(
                self.metric, self.outputs, metrics.continuation_sizes(self.metric, self.counts)
            )
        if self.kind == "tokens":
            return self.outputs.reshape(*self.outputs.shape[:2], -1, 2).astype(np.float64)
        if self.kind == "multilabel":
            return labels_from_logits(self.outputs)
        if self.kind == "regression" and self.scored_with.ndim == 2:
            return finite_or_nan(self.outputs.astype(np.float64))
        if self.kind == "extractive":
            return self.outputs[..., QUESTION_SCORES.index(self.metric)]
        return predictions_from_logits(self.outputs, self.kind)

    @property
    def scored(self) -> np.ndarray:
        """What the metric takes: the predictions or, if it is one of the user's own of outputs, these."""
        return self.outputs if getattr(self.metric, "of_outputs", False) else self.predictions

    @cached_property
    def are_right(self) -> np.ndarray | None:
        """Whether all that is predicted of each example is right, bool ``[variants, examples]``.

        An answer is right if it matches a correct answer exactly, a sentence if all its tags are right, and a
        text with several labels if its set of labels is. None for regressions, losses and comparisons.
        """
        if self.metric in metrics.COMPARISONS:
            return None
        if self.kind == "classification" or (self.kind == "causal" and self.metric in metrics.PROPORTIONS):
            return np.asarray(self.predictions == self.scored_with)
        if self.metric == "pairwise_accuracy":
            return np.asarray(self.predictions == 1)
        if self.kind == "extractive":
            return np.asarray(self.outputs[..., QUESTION_SCORES.index("exact_match")] > 0.5)
        if self.kind == "multilabel":
            return np.asarray((self.predictions == self.scored_with).all(axis=-1))
        return None if self.tags is None else np.asarray((self.tags == self.true_tags).all(axis=-1))

    @property
    def chance_score(self) -> float:
        """The score of guessing: of the most frequent class, or of a random choice; else NaN."""
        if self.metric in metrics.COMPARISONS:
            return float("nan")
        if self.metric in metrics.OF_PAIRS:
            return 0.0 if self.metric == "margin" else 0.5
        if self.counts is None:
            return metrics.majority_score(self.metric, self.scored_with)
        if self.metric not in metrics.OF_CHOICES:
            return float("nan")
        return float((1 / (self.counts[..., 0] > 0).sum(axis=1)).mean())
