"""An ablation on disk: every example's outputs under every variant, and the table of spans."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from adapter_probe import metrics
from adapter_probe.errors import ResultsError, one_line
from adapter_probe.predictions import (
    differences_from_logits,
    predictions_from_likelihoods,
    predictions_from_logits,
)
from adapter_probe.results.atomic import read_arrays, write_arrays, write_csv
from adapter_probe.results.fingerprints import canonical_json
from adapter_probe.results.schema import (
    MOST_LAYERS,
    OPTIONAL_SPANS_COLUMNS,
    PREDICTIONS,
    SPANS_COLUMNS,
    SPANS_CSV,
    read_table,
    span_columns,
)
from adapter_probe.results.sealing import check_sealed, refuse_newer
from adapter_probe.spans import SITES_PER_LAYER

SCHEMA = 1
QUESTION_SCORES = ("squad_f1", "exact_match")
"""What the columns of `AblationResults.logits` hold in question answering."""

_ARRAYS = ("masks", "spans", "logits", "labels")
_OPTIONAL = ("answers", "counts", "groups", "greedy", "differences", "right", "stacks")
_BY_VARIANT = ("masks", "spans", "logits", "answers", "greedy", "differences", "right", "stacks")
_TEXTS = ("row_names", "metric", "kind", "label_names", "identity", "settings")


@dataclass(frozen=True, eq=False)
class AblationResults:
    """One complete ablation, the input of statistics and figures.

    Attributes:
        masks: bool ``[variants, sites]``; True = the site's adapter was on.
        spans: int64 ``[variants, 2]``: first and last layer, counted in the stack, or -1, -1 for rows that
            are no span.
        row_names: one name per variant.
        logits: float32 ``[variants, examples, labels]``; a regression has one column. Of question answering,
            what each question scores, ``[variants, questions, 2]``: answer F1 and exact match, NaN where a
            logit was not finite. Of a language model, summed log-likelihoods in nats,
            ``[variants, examples, continuations]``, 0 where an example has fewer.
        labels: ``[examples]``: int64 indices into `label_names`, float64 targets of a regression, int64
            numbers of the questions' paragraphs, or of a language model's int64 right choices; for its losses
            the int64 number of tokens, bytes or words by which the metric divides. For a comparison with the
            intact model the int64 number of predictions compared: of tokens, or 1 of a classifier.
        metric: name of the metric.
        kind: ``classification``, ``regression``, ``extractive`` or ``causal``.
        label_names: names in the order of the logits; empty for a regression.
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
            likeliest next token; None for other metrics and kinds.
        right: int64 ``[variants, examples]``, how many tokens of the continuation are the most likely one;
            None for other metrics than ``token_accuracy``.
        stacks: str ``[variants]``, the stack of layers in which alone the variant switches, empty for the
            intact model and where all stacks are off; `settings` has their names and numbers of layers in
            the order of the sites. None of a model with one stack.
    """

    masks: np.ndarray
    spans: np.ndarray
    row_names: tuple[str, ...]
    logits: np.ndarray
    labels: np.ndarray
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

    def __post_init__(self) -> None:
        if self.kind not in metrics.METRICS:
            raise ValueError(f"kind should be one of {', '.join(metrics.METRICS)}, got {self.kind!r}")
        if (self.kind == "causal") != (self.counts is not None):
            raise ValueError(f"kind {self.kind!r} does not go with counts {self.counts is not None}")
        if (self.metric == "greedy_accuracy") != (self.greedy is not None):
            raise ValueError(f"metric {self.metric!r} does not go with greedy {self.greedy is not None}")
        if (self.metric == "token_accuracy") != (self.right is not None):
            raise ValueError(f"metric {self.metric!r} does not go with right {self.right is not None}")
        compares = self.kind == "causal" and self.metric in metrics.COMPARISONS
        if compares != (self.differences is not None):
            raise ValueError(f"metric {self.metric!r} does not go with differences {not compares}")
        n_variants, n_examples, n_outputs = (*self.logits.shape, 0, 0, 0)[:3]
        if self.kind != "causal":
            n_outputs = {"regression": 1, "extractive": 2}.get(self.kind, len(self.label_names))
        expected = {
            "logits": (np.float32, (n_variants, n_examples, n_outputs)),
            "masks": (np.bool_, (n_variants, *self.masks.shape[-1:])),
            "spans": (np.int64, (n_variants, 2)),
            "labels": (np.float64 if self.kind == "regression" else np.int64, (n_examples,)),
            "answers": (np.int32, (n_variants, n_examples, 2)),
            "counts": (np.int64, (n_examples, n_outputs, len(metrics.COUNTED))),
            "groups": (np.str_, (n_examples,)),
            "greedy": (np.bool_, (n_variants, n_examples)),
            "differences": (np.float64, (n_variants, n_examples, 2)),
            "right": (np.int64, (n_variants, n_examples)),
            "stacks": (np.str_, (n_variants,)),
        }
        for name, (kind, shape) in expected.items():
            array = getattr(self, name)
            if array is not None and (array.dtype.type is not kind or array.shape != shape):
                raise ValueError(
                    f"{name} should be {kind.__name__} {list(shape)}, got {array.dtype} {list(array.shape)}"
                )
        if len(self.row_names) != n_variants:
            raise ValueError(f"{n_variants} variants have {len(self.row_names)} row names")
        classes = self.kind == "classification" and self.metric not in metrics.COMPARISONS
        if classes and not np.all((self.labels >= 0) & (self.labels < n_outputs)):
            raise ValueError(f"labels should lie in 0..{n_outputs - 1}")

    @cached_property
    def in_stacks(self) -> dict[str, AblationResults]:
        """Every studied stack of layers as a study of its own, by name; of a single stack this study itself.

        It has the intact model, and the variants that switch in this stack alone.
        """
        if self.stacks is None:
            return {"": self}
        intact, end, found = int(np.argmax(self.masks.all(axis=1))), 0, {}
        for name, n_layers in self.settings["stacks"]:
            begin, end = end, end + SITES_PER_LAYER * n_layers
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
        own = {key: x[list(kept)] for key in _BY_VARIANT if (x := getattr(self, key)) is not None}
        return replace(self, **own, row_names=tuple(self.row_names[row] for row in kept))

    @cached_property
    def nonfinite(self) -> np.ndarray:
        """Int64 ``[variants]``: examples with an output that is NaN or infinite.

        A variant with any has no score.
        """
        finite = np.isfinite(self.logits).all(axis=-1)
        if self.differences is not None:
            finite &= np.isfinite(self.differences).all(axis=-1)
        return (~finite).sum(axis=1)

    @cached_property
    def predictions(self) -> np.ndarray:
        """What `adapter_probe.metrics.score` takes with `labels`: ``[variants, examples]``.

        Class numbers or regression values; of question answering, what each question scores by the metric; of
        a language model the most likely choices, or for a loss each example's negative log-likelihood in
        nats; for ``greedy_accuracy`` 0 where the model's greedy output is the continuation, else 1; for
        ``token_accuracy`` each example's number of right tokens; compared
        with the intact model, each example's summed divergence in nats, or its number of predictions that
        agree. -1 or NaN where an output is not finite.
        """
        if self.differences is not None:
            return np.where(np.isfinite(self.differences), self.differences, np.nan)[
                ..., metrics.COMPARISONS.index(self.metric)
            ]
        if self.metric in metrics.COMPARISONS:
            intact = self.logits[np.argmax(self.masks.all(axis=1))]
            return differences_from_logits(self.metric, self.logits, intact)
        if self.greedy is not None:
            finite = np.isfinite(self.logits).all(axis=-1)
            return np.where(finite, 1 - self.greedy, metrics.NO_CLASS).astype(np.int64)
        if self.right is not None:
            return np.where(np.isfinite(self.logits[..., 0]), self.right, np.nan)
        if self.counts is not None:
            return predictions_from_likelihoods(
                self.metric, self.logits, metrics.continuation_sizes(self.metric, self.counts)
            )
        if self.kind == "extractive":
            return self.logits[..., QUESTION_SCORES.index(self.metric)]
        return predictions_from_logits(self.logits, self.kind)

    @property
    def chance_score(self) -> float:
        """The score of guessing: of the most frequent class, or of a random choice; else NaN."""
        if self.metric in metrics.COMPARISONS:
            return float("nan")
        if self.counts is None:
            return metrics.majority_score(self.metric, self.labels)
        if self.metric in metrics.RATIOS or self.greedy is not None:
            return float("nan")
        return float((1 / (self.counts[..., 0] > 0).sum(axis=1)).mean())


def save_predictions(folder: str | Path, results: AblationResults) -> None:
    """Writes ``predictions.npz``: the four arrays, and the rest as JSON under the name ``about``.

    Equal results give equal bytes.
    """
    about = {"schema": SCHEMA, **{name: getattr(results, name) for name in _TEXTS}}
    arrays = {name: getattr(results, name) for name in _ARRAYS}
    more = {name: getattr(results, name) for name in _OPTIONAL}
    arrays |= {name: values for name, values in more.items() if values is not None}
    write_arrays(Path(folder) / PREDICTIONS, {**arrays, "about": np.array(canonical_json(about))})


def load_ablation(folder: str | Path) -> AblationResults:
    """The ablation that `save_predictions` stored.

    Raises:
        ResultsError: the folder contains no ablation, or a damaged or newer one.
    """
    path = Path(folder) / PREDICTIONS
    if not path.exists():
        raise ResultsError(f"{folder} contains no finished ablation: there is no {PREDICTIONS} in it")
    arrays = read_arrays(path)
    check_sealed(path)
    try:
        about = json.loads(str(arrays["about"]))
        refuse_newer(path, about["schema"], SCHEMA)
        texts = {name: about[name] for name in _TEXTS}
        for name in ("row_names", "label_names"):
            texts[name] = tuple(texts[name])
        kept = {name: arrays[name] for name in _ARRAYS}
        return AblationResults(**kept, **texts, **{name: arrays.get(name) for name in _OPTIONAL})
    except (KeyError, TypeError, ValueError) as error:
        raise ResultsError(f"{path} does not contain an ablation: {one_line(error)}") from error


def write_spans(folder: str | Path, frame: pd.DataFrame) -> None:
    """Writes ``spans.csv``: `SPANS_COLUMNS` first, further columns after them, rows as given.

    Raises:
        ResultsError: a column is missing or wrong, or the file cannot be written.
    """
    path = Path(folder) / SPANS_CSV
    _check_spans(frame, path)
    first = [*span_columns(frame), *(name for name in SPANS_COLUMNS if name not in span_columns(frame))]
    write_csv(path, frame[[*first, *(name for name in frame if name not in first)]])


def read_spans(folder: str | Path) -> pd.DataFrame:
    """The table of spans, with numbers exactly as written.

    Raises:
        ResultsError: there is no ``spans.csv``, or it is not a table of spans.
    """
    path = Path(folder) / SPANS_CSV
    if not path.exists():
        raise ResultsError(f"{folder} contains no finished ablation: there is no {SPANS_CSV} in it")
    frame = read_table(path, SPANS_COLUMNS, OPTIONAL_SPANS_COLUMNS)
    whole = [name for name, kind in SPANS_COLUMNS.items() if kind == "count"]
    if frame[whole].isna().any(axis=None):
        raise ResultsError(f"{path}: {', '.join(whole)} should contain whole numbers, but one is empty")
    frame = frame.astype(dict.fromkeys(whole, "int64"))
    _check_spans(frame, path)
    return frame


def _check_spans(frame: pd.DataFrame, path: Path) -> None:
    if missing := [name for name in SPANS_COLUMNS if name not in frame]:
        found = ", ".join(map(str, frame.columns)) or "none"
        raise ResultsError(f"{path}: no column {', '.join(missing)} in the table of spans (found: {found})")
    for name, kind in SPANS_COLUMNS.items():
        if frame[name].dtype.kind != ("i" if kind == "count" else "f"):
            wanted = "integers" if kind == "count" else "floats"
            raise ResultsError(f"{path}: column {name} should contain {wanted}, got {frame[name].dtype}")
    first, last, n_layers = frame["first"], frame["last"], frame["n_layers"]
    wrong = (first < 0) | (last < first) | (n_layers != last - first + 1)
    wrong |= (last >= MOST_LAYERS) | frame.duplicated(span_columns(frame))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        span = f"first {first.iloc[row]}, last {last.iloc[row]}, n_layers {n_layers.iloc[row]}"
        raise ResultsError(f"{path}: data row {row + 1} is an invalid or repeated span ({span})")
