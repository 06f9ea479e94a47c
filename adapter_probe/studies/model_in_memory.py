"""Models in memory and trainers in place of checkpoints: what `ablate` and `open` need of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from adapter_probe.data.request_rows import are_preferences
from adapter_probe.data.rows import token_rows
from adapter_probe.errors import DataError, ModelError, ResultsError, listed, one_line
from adapter_probe.metrics import METRICS, score
from adapter_probe.predictions import entity_types, labels_from_logits
from adapter_probe.results.atomic import make_folder

from .checkpoint_arguments import Ablate, Trainer
from .preference_trainers import (
    TokenisedPreferences,
    examples_of_preferences,
    is_tokenised,
    preferences_of,
)

if TYPE_CHECKING:
    import torch

    from adapter_probe.checkpoints.opened_peft import OpenedPeft
    from adapter_probe.data.examples import Examples

Called = TypeVar("Called", bound=Ablate)  # `Ablate`, or the arguments of what extends it


_ON_DISK = ("cluster", "revision", "adapter", "dequantise")
"""Arguments that a model in memory cannot follow."""


@contextmanager
def opened_call(
    call: Called,
) -> Iterator[tuple[Called, Given, TemporaryDirectory[str] | None]]:
    """A model in memory, opened, and left as it was afterwards.

    Returns:
        the arguments with its name in place of the model and with a results folder; the open model; and the
        folder, if it is a temporary one.

    Raises:
        ModelError, CheckpointError: see `open_in_memory`.
        DataError: there is no data, or batches and labels are not the model's.
        ResultsError: an argument needs a checkpoint on disk.
    """
    from adapter_probe.checkpoints.in_memory import left_as_it_was

    trainer = call.checkpoint if isinstance(call.checkpoint, Trainer) else None
    if trainer is not None:
        call = of_trainer(call, trainer)
    model: Any = call.checkpoint
    if flag := next((one for one in _ON_DISK if getattr(call, one)), ""):
        raise ResultsError(f"{flag} needs a checkpoint on disk; save the model and give its folder")
    if call.batches is None and (rows := token_rows(call.data)) is not None:
        call = replace(call, data=(), batches=rows)
    texts = bool(call.task) or not (isinstance(call.data, tuple) and not call.data)
    if texts == (call.batches is not None):
        given = (
            "both data and batches are given; give one of them"
            if texts
            else "a model in memory has no data of its own; give data= or batches="
        )
        raise DataError(given)
    with left_as_it_was(model):
        opened = _given(call, model)
        if trainer is not None:
            call = replace(call, metric=metric_of_trainer(trainer, call.metric, opened))
        temporary = TemporaryDirectory(prefix="adapter-probe-") if call.out is None else None
        folder = Path(temporary.name) if temporary else make_folder(str(call.out))
        device = str(device_of(model))
        yield (
            replace(call, checkpoint=str(opened.opened.folder), base=None, out=folder, device=device),
            opened,
            temporary,
        )


class Given(NamedTuple):
    """A model in memory, and its examples where they are batches.

    Attributes:
        opened: the model.
        examples: the examples, or None for those that the arguments name.
    """

    opened: OpenedPeft
    examples: Examples | None = None


def _given(call: Ablate, model: Any) -> Given:
    if call.batches is None:
        if call.labels is not None or call.read != "logits":
            raise DataError("labels and read apply only to batches; the labels of texts are in data")
        return Given(open_given(model, call.tokenizer, call.device, call.base))
    if isinstance(call.batches, TokenisedPreferences):
        opened = open_given(model, call.tokenizer, call.device, call.base)
        return Given(*examples_of_preferences(opened, call.batches))
    if isinstance(call.against, (str, Path)) or len(call.against):
        raise ResultsError("against needs texts; omit it with batches")
    if call.precision == "mixed":
        raise ResultsError("precision 'mixed' needs texts; give float32, float64 or bfloat16 with batches")
    from adapter_probe.checkpoints.in_memory import open_in_memory
    from adapter_probe.probe.batches import examples_of

    _refuse_other_device(model, call.device)
    opened = open_in_memory(model, base_model=call.base)
    examples, task = examples_of(opened.model, call.batches, call.labels, call.read)
    return Given(opened.with_task(task), examples)


def open_given(model: torch.nn.Module, tokenizer: Any, device: str, base: Any = None) -> OpenedPeft:
    """Open a model in memory on the device that it is on; a fine-tuned one with its base.

    Raises:
        ModelError: there is no tokenizer, or the device is another one.
        CheckpointError: see `open_in_memory`.
    """
    from adapter_probe.checkpoints.in_memory import open_in_memory

    if tokenizer is None:
        raise ModelError("a model in memory has no tokenizer of its own; give tokenizer=")
    _refuse_other_device(model, device)
    return open_in_memory(model, tokenizer, base)


def _refuse_other_device(model: torch.nn.Module, device: str) -> None:
    from adapter_probe.device import choose_device

    own = device_of(model)
    if device != "auto" and choose_device(device) != own:
        raise ModelError(f"the model is on {own}, where it runs; move it there, or omit device={device!r}")


def device_of(model: torch.nn.Module) -> torch.device:
    """The device of a model's first weights."""
    import torch

    return next((p.device for p in model.parameters() if p.device.type != "meta"), torch.device("cpu"))


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
    data = getattr(trainer, "eval_dataset", None)
    if isinstance(data, Mapping):
        one = "batches=trainer.get_eval_dataloader(NAME)"
        raise DataError(f"the trainer has several evaluation sets, {listed(data)}; give one of them, {one}")
    names = getattr(data, "column_names", None) or ()
    if is_tokenised(names) and len(data):  # type: ignore[arg-type]
        rows, is_off = preferences_of(trainer, data)
        reference = "off" if is_off and call.reference == "rows" else call.reference
        return replace(given, batches=rows, reference=reference)
    if are_preferences(names):
        return replace(given, data=list(data))  # type: ignore[arg-type]
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

    from adapter_probe.data.batches import EncodedBatches
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
    from adapter_probe.data.batches import NO_TAG
    from adapter_probe.data.tagged import Words, count_tags, refuse_unscorable

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
