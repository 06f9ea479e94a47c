"""What `ablate` takes from a `transformers.Trainer`: model, tokenizer, evaluation set and metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from adapter_probe.data.batches import EncodedBatches
from adapter_probe.errors import DataError, one_line

from .arguments import Ablate

if TYPE_CHECKING:
    from .in_memory import Given

_TRIED = 32  # examples on which a metric of logits is compared with that of the likeliest classes
_KINDS = "iu"  # of NumPy's whole numbers


def of_trainer(call: Ablate, trainer: Any) -> Ablate:
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
    try:
        batches = list(trainer.get_eval_dataloader())
    except ValueError as error:  # transformers' for a missing one
        raise DataError(
            f"the trainer has no evaluation set ({one_line(error)}); give data= or batches="
        ) from error
    metric = call.metric
    if metric is None and trainer.compute_metrics is not None:
        metric = _metric_of(trainer)
    return replace(given, batches=batches, metric=metric)


def refuse_other_metric(trainer: Any, metric: object, given: Given) -> None:
    """Refuse a trainer's metric that reads more of the logits than the likeliest class, on a few examples.

    Raises:
        DataError: it does.
    """
    examples = given.examples
    if examples is None or getattr(metric, "trainer", None) is not trainer:
        return
    import torch

    from adapter_probe.probe.general_model import inputs_of

    encoded, model = examples.encoded, given.opened.model
    assert isinstance(encoded, EncodedBatches), "a trainer has batches"
    device = next(model.parameters()).device
    items = np.arange(min(_TRIED, len(encoded)))[:, None]
    with torch.no_grad():
        outs = [encoded.read(model(**inputs_of(model, encoded, item, device))) for item in items]
    logits, labels = torch.cat(outs).float().cpu().numpy(), examples.labels[: len(items)]
    classes = given.opened.description.task.kind == "classification"
    assert callable(metric)
    own = metric.of_rows(labels, logits if classes else logits[:, 0])  # type: ignore[attr-defined]
    ours = metric(labels, logits.argmax(-1) if classes else logits[:, 0].astype(np.float64))
    if not np.isclose(own, ours, rtol=1e-6, atol=1e-9, equal_nan=True):
        raise DataError(
            f"the trainer's compute_metrics gives {own:.6g} for the logits and {ours:.6g} for the "
            "predictions alone; give metric=, a name or a function of labels and predictions"
        )


def _metric_of(trainer: Any) -> Callable[[np.ndarray, np.ndarray], float]:
    """The trainer's metric as a function of labels and predictions.

    Predicted classes are passed on as rows with a single 1, of which the largest is the class.
    """
    chosen = (trainer.args.metric_for_best_model or "").removeprefix("eval_")
    if chosen != "loss" and trainer.args.greater_is_better is False:
        raise DataError(f"the trainer's metric {chosen} is one of which less is better; give metric=")
    n_classes = int(getattr(trainer.model.config, "num_labels", 0) or 0)

    def metric(labels: np.ndarray, predictions: np.ndarray) -> float:
        rows = np.eye(max(n_classes, 1))[predictions] if predictions.dtype.kind in _KINDS else predictions
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
