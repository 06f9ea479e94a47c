"""What `ablate` takes from a `transformers.Trainer`: model, tokenizer, evaluation set and metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from adapter_probe.data.batches import NO_TAG, EncodedBatches
from adapter_probe.data.request_rows import refuse_preferences
from adapter_probe.data.tagged import Words, count_tags, refuse_unscorable
from adapter_probe.errors import DataError, listed, one_line
from adapter_probe.metrics import METRICS, score
from adapter_probe.predictions import entity_types, labels_from_logits

if TYPE_CHECKING:
    from .in_memory import Called, Given

_TRIED = 32  # examples on which a metric of logits is compared with that of the likeliest classes
_KINDS = "iu"  # of NumPy's whole numbers


def of_trainer(call: Called, trainer: Any) -> Called:
    """The arguments with a trainer's model, and with the rest where the user gives none.

    Raises:
        DataError: it has no evaluation set, or its metric is no function of the predictions.
    """
    given = replace(
        call,
        checkpoint=trainer.model,
        tokenizer=call.tokenizer or getattr(trainer, "processing_class", None),
    )
    if call.batches is not None or call.task or not (isinstance(call.data, tuple) and not call.data):
        return given
    instead = "give data= (rows with texts) or batches= (what the model's forward takes)"
    data = trainer.eval_dataset
    if isinstance(data, Mapping):
        one = "batches=trainer.get_eval_dataloader(NAME)"
        raise DataError(f"the trainer has several evaluation sets, {listed(data)}; give one of them, {one}")
    refuse_preferences("the trainer's evaluation set", getattr(data, "column_names", None) or ())
    try:
        batches = list(trainer.get_eval_dataloader())
    except ValueError as error:  # transformers' for a missing one, or one of texts
        raise DataError(f"the trainer gives no batches ({one_line(error)}); {instead}") from error
    if not batches:
        raise DataError(f"the trainer's evaluation set has no rows; {instead}")
    metric = call.metric
    if metric is None and trainer.compute_metrics is not None:
        metric = _metric_of(trainer)
    return replace(given, batches=batches, metric=metric)


def metric_of_trainer(trainer: Any, metric: Any, given: Given) -> Any:
    """The metric to use for a trainer's, which may read more of the logits than the likeliest class.

    Both are tried on a few examples. Of tags, which no function of single predictions scores, it is the name
    of the metric that gives what the trainer's gives.

    Raises:
        DataError: none gives the same.
    """
    examples = given.examples
    if examples is None or getattr(metric, "trainer", None) is not trainer:
        return metric
    kind, logits = given.opened.description.task.kind, _tried(given)
    own_labels = examples.labels[: len(logits)]
    if kind == "tokens":
        return _metric_of_tags(metric, given, logits)
    rows = np.concatenate(logits)
    rows = rows[:, 0] if kind == "regression" and own_labels.ndim == 1 else rows
    plain = {"classification": rows.argmax(-1), "multilabel": labels_from_logits(rows)}
    own, ours = metric.of_rows(own_labels, rows), metric(own_labels, plain.get(kind, rows.astype(np.float64)))
    if not _same(own, ours):
        raise DataError(
            f"the trainer's compute_metrics gives {own:.6g} for the logits and {ours:.6g} for the "
            "predictions alone; give metric=, a name or a function of labels and predictions"
        )
    return metric


def _tried(given: Given) -> list[np.ndarray]:
    """The outputs of the first examples, float32 ``[1, ...]`` each."""
    import torch

    from adapter_probe.probe.general_model import inputs_of

    assert given.examples is not None
    encoded, model = given.examples.encoded, given.opened.model
    assert isinstance(encoded, EncodedBatches), "a trainer has batches"
    device = next(model.parameters()).device
    with torch.no_grad():
        return [
            encoded.read(model(**inputs_of(model, encoded, np.array([item]), device))).float().cpu().numpy()
            for item in range(min(_TRIED, len(encoded)))
        ]


def _metric_of_tags(metric: Any, given: Given, logits: list[np.ndarray]) -> str:
    words, names = given.examples.words, given.opened.description.task.label_names  # type: ignore[union-attr]
    assert words is not None, "tags are of words"
    few = Words(words.positions[: len(logits)], words.tags[: len(logits)])
    labels = np.full((len(logits), max(one.shape[1] for one in logits)), NO_TAG)
    for row, places, tags in zip(labels, few.positions, few.tags):
        row[places] = tags
    rows = np.zeros((*labels.shape, len(names)), np.float32)
    predicted = []
    for number, one in enumerate(logits):
        rows[number, : one.shape[1]] = one[0]
        predicted.append(few.predicted(np.array([number]), one[None]))
    found = {}
    for name in METRICS["tokens"] if entity_types(names) else ("tag_accuracy",):
        refuse_unscorable(name, names)
        counted, there = count_tags(name, few, names, np.concatenate(predicted, axis=1))
        found[name] = float(score(name, counted.reshape(*there.shape, 2).astype(np.float64), there))
    own = metric.of_rows(labels, rows)
    if chosen := next((name for name, ours in found.items() if _same(own, ours)), ""):
        return chosen
    said = ", ".join(f"{name} {ours:.6g}" for name, ours in found.items())
    raise DataError(
        f"the trainer's compute_metrics gives {own:.6g}, which is neither of {said}; give metric="
    )


def _same(one: float, other: float) -> bool:
    return bool(np.isclose(one, other, rtol=1e-6, atol=1e-9, equal_nan=True))


def _metric_of(trainer: Any) -> Callable[[np.ndarray, np.ndarray], float]:
    """The trainer's metric as a function of labels and predictions.

    Predicted classes are passed on as rows with a single 1, of which the largest is the class, and several
    labels as 1 and -1.
    """
    chosen = (trainer.args.metric_for_best_model or "").removeprefix("eval_")
    if chosen != "loss" and trainer.args.greater_is_better is False:
        raise DataError(f"the trainer's metric {chosen} is one of which less is better; give metric=")
    n_classes = int(getattr(trainer.model.config, "num_labels", 0) or 0)

    def metric(labels: np.ndarray, predictions: np.ndarray) -> float:
        rows = predictions
        if predictions.dtype.kind in _KINDS:
            rows = np.eye(max(n_classes, 1))[predictions] if predictions.ndim == 1 else 2 * predictions - 1
        return _score(trainer, chosen, rows, labels)

    metric.trainer, metric.of_rows = trainer, lambda labels, rows: _score(trainer, chosen, rows, labels)  # type: ignore[attr-defined]
    metric.__name__ = chosen if chosen and chosen != "loss" else "compute_metrics"
    return metric


def _score(trainer: Any, chosen: str, rows: np.ndarray, labels: np.ndarray) -> float:
    from transformers import EvalPrediction

    found: Mapping[str, float] = trainer.compute_metrics(EvalPrediction(predictions=rows, label_ids=labels))
    plain = {name.removeprefix("eval_"): value for name, value in found.items()}
    if chosen in plain:
        return float(plain[chosen])
    if len(plain) == 1:
        return float(next(iter(plain.values())))
    raise DataError(
        f"the trainer's compute_metrics gives {', '.join(plain)}; choose one with metric_for_best_model, "
        "or give metric="
    )
