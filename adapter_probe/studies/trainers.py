"""Trainers in place of checkpoints: their models, evaluation sets and metrics.

The evaluation sets of TRL's trainers on preferences are taken as they have tokenised them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from adapter_probe.data.request_rows import REFERENCES, Request, are_preferences
from adapter_probe.errors import DataError, listed, one_line
from adapter_probe.metrics import METRICS, default_metric, score
from adapter_probe.predictions import entity_types, labels_from_logits

from .checkpoint_arguments import Called

if TYPE_CHECKING:
    from adapter_probe.checkpoints.opened_peft import OpenedPeft
    from adapter_probe.data.examples import Examples

_TRIED = 32  # examples on which a metric of logits is compared with that of the likeliest classes


@dataclass(frozen=True, eq=False)
class TokenisedPreferences:
    """Preferences as tokens.

    Attributes:
        begins: of each row's two answers the number of tokens of the prompt at their start; None where the
            prompt is not told apart, as for a reward model.
        answers: tokens of the chosen and of the rejected answer of each row, after those of the prompt.
        reference: log-likelihoods of both answers by the reference model, if they are known.
    """

    begins: tuple[tuple[int, int], ...] | None
    answers: tuple[tuple[list[int], list[int]], ...]
    reference: tuple[tuple[float, ...], ...]


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
    if {"chosen_ids", "rejected_ids"} <= set(names) and len(data):  # type: ignore[arg-type]
        rows, is_off = _preferences_of(trainer, data)
        if not is_off or call.reference != "rows":
            return replace(given, batches=rows)
        if not next(one for one in fields(call) if one.name == "reference").init:
            raise DataError(
                "the trainer's reference is the model with all adapters off, which this study does not have; "
                "precompute the reference's log-likelihoods (precompute_ref_log_probs=True)"
            )
        return replace(given, batches=rows, reference="off")
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
        metric = _MetricOfTrainer(trainer)
    return replace(given, batches=batches, metric=metric)


class _MetricOfTrainer:
    """A trainer's metric as a function of labels and predictions.

    Predicted classes are passed on as rows with a single 1, of which the largest is the class, and several
    labels as 1 and -1.

    Raises:
        DataError: less of it is better.
    """

    def __init__(self, trainer: Any) -> None:
        self._compute = trainer.compute_metrics
        self._chosen = chosen = (trainer.args.metric_for_best_model or "").removeprefix("eval_")
        if chosen != "loss" and trainer.args.greater_is_better is False:
            raise DataError(f"the trainer's metric {chosen} is one of which less is better; give metric=")
        self._n_classes = max(int(getattr(trainer.model.config, "num_labels", 0) or 0), 1)
        self.__name__ = chosen if chosen and chosen != "loss" else "compute_metrics"

    def __call__(self, labels: np.ndarray, predictions: np.ndarray) -> float:
        rows = predictions
        if predictions.dtype.kind in "iu":  # whole numbers
            rows = np.eye(self._n_classes)[predictions] if predictions.ndim == 1 else 2 * predictions - 1
        return self.of_rows(labels, rows)

    def of_rows(self, labels: np.ndarray, rows: np.ndarray) -> float:
        """The metric of outputs as the model gives them."""
        from transformers import EvalPrediction

        found: Mapping[str, float] = self._compute(EvalPrediction(predictions=rows, label_ids=labels))
        plain = {name.removeprefix("eval_"): value for name, value in found.items()}
        if self._chosen in plain or len(plain) == 1:
            return float(plain.get(self._chosen, next(iter(plain.values()))))
        raise DataError(
            f"the trainer's compute_metrics gives {', '.join(plain)}; choose one with metric_for_best_model, "
            "or give metric="
        )


def metric_of_trainer(metric: Any, opened: OpenedPeft, examples: Examples | None) -> Any:
    """The metric to use for a trainer's, which may read more of the logits than the likeliest class.

    Both are tried on a few examples. Of tags, which no function of single predictions scores, it is the name
    of the metric that gives what the trainer's gives.

    Raises:
        DataError: none gives the same.
    """
    import torch

    from adapter_probe.data.batches import EncodedBatches
    from adapter_probe.probe.general_model import inputs_of

    if examples is None or not isinstance(metric, _MetricOfTrainer):
        return metric
    encoded, model = examples.encoded, opened.model
    assert isinstance(encoded, EncodedBatches), "a trainer has batches"
    device = next(model.parameters()).device
    with torch.no_grad():  # float32 [1, ...] of each
        logits = [
            encoded.read(model(**inputs_of(model, encoded, np.array([item]), device))).float().cpu().numpy()
            for item in range(min(_TRIED, len(encoded)))
        ]
    kind, own_labels = opened.description.task.kind, examples.labels[: len(logits)]
    if kind == "tokens":
        return _metric_of_tags(metric, opened.description.task.label_names, examples, logits)
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


def _metric_of_tags(
    metric: _MetricOfTrainer, names: tuple[str, ...], examples: Examples, logits: list[np.ndarray]
) -> str:
    from adapter_probe.data.batches import NO_TAG
    from adapter_probe.data.tagged import Words, count_tags, refuse_unscorable

    words = examples.words
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


def _preferences_of(trainer: Any, data: Any) -> tuple[TokenisedPreferences, bool]:
    """The rows of a trainer's evaluation set, truncated as it truncates them.

    Returns:
        the rows, and whether their reference model is the trainer's own with all adapters off.
    """
    rows = list(data)
    prompts = tuple(list(row["prompt_ids"]) for row in rows) if "prompt_ids" in rows[0] else None
    most = None if prompts is None else getattr(trainer.args, "max_length", None)
    ends = getattr(trainer.args, "truncation_mode", "keep_start") == "keep_end"
    begins, answers = [], []
    for number, row in enumerate(rows):
        prompt = [] if prompts is None else prompts[number]
        both = [[*prompt, *row[name]] for name in ("chosen_ids", "rejected_ids")]
        cuts = [max(0, len(one) - most) if ends and most is not None else 0 for one in both]
        left, right = (max(0, len(prompt) - cut) for cut in cuts)
        chosen, rejected = (one[cut:][:most] for one, cut in zip(both, cuts))
        begins.append((left, right))
        answers.append((chosen, rejected))
    if prompts is None:
        return TokenisedPreferences(None, tuple(answers), ((),) * len(rows)), False
    if set(REFERENCES) <= set(rows[0]):
        reference = tuple(tuple(float(row[name]) for name in REFERENCES) for row in rows)
    else:
        reference = _computed(trainer) or ((),) * len(rows)
    return TokenisedPreferences(tuple(begins), tuple(answers), reference), not reference[0]


def _computed(trainer: Any) -> tuple[tuple[float, ...], ...]:
    """The log-likelihoods by a trainer's reference model, or adapter; nothing if it has neither."""
    import torch

    from adapter_probe.checkpoints.in_memory import left_as_it_was

    adapters = getattr(trainer.model, "peft_config", {})
    if getattr(trainer, "ref_model", None) is None and "ref" not in adapters:
        return ()
    found: list[tuple[float, ...]] = []
    with left_as_it_was(trainer.model), torch.no_grad(), nullcontext(trainer.model.eval()):
        for batch in trainer.get_eval_dataloader():
            both = trainer.compute_ref_log_probs(trainer.ref_model or trainer.model, batch)
            found += zip(*(one.double().tolist() for one in both))
    return tuple(found)


def examples_of_preferences(opened: OpenedPeft, given: TokenisedPreferences) -> tuple[OpenedPeft, Examples]:
    """The rows as the examples of a model in memory, and the model with their task.

    Raises:
        DataError: the model is neither a language model nor a reward model, or an answer has no token.
    """
    from adapter_probe.data.combining import Numbers
    from adapter_probe.data.examples import Examples, encoded_pairs
    from adapter_probe.data.requests import requests_with_fingerprint
    from adapter_probe.data.requests_encoding import encode_texts

    task, decode = opened.description.task, cast("Callable[..., str]", opened.tokenizer.decode)
    wanted = "regression" if given.begins is None else "causal"
    if task.kind != wanted:
        raise DataError(
            "the trainer's evaluation set has preferences, which need a language model or a reward model "
            f"with one output; the model is of kind {task.kind}"
        )
    begins = given.begins or ((0, 0),) * len(given.answers)
    requests = [
        Request(
            decode(both[0][: begin[0]]), tuple(decode(one[at:]) for one, at in zip(both, begin)),
            framed=False, reference=own,
        )
        for begin, both, own in zip(begins, given.answers, given.reference)
    ]  # fmt: skip
    rows = requests_with_fingerprint("preference", requests, "given")
    if given.begins is None:
        task = replace(task, kind="pairwise", metric=default_metric("pairwise"))
        encoded, places = encoded_pairs([one for both in given.answers for one in both])
        return opened.with_task(task), Examples(rows, encoded, combine=Numbers(places))
    texts = [
        [(one[: max(at, 1)], one[max(at, 1) :]) for one, at in zip(both, begin)]  # a first token has no score
        for begin, both in zip(begins, given.answers)
    ]
    if bare := [number for number, both in enumerate(texts) if not all(scored for _, scored in both)]:
        raise DataError(
            f"row {bare[0] + 1} of the trainer's evaluation set has an answer without a token to score; "
            "leave it out, or raise the trainer's max_length"
        )
    return opened, Examples(rows, encode_texts(texts))
