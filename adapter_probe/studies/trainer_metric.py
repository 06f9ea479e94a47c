"""The metric of a trainer: its `compute_metrics`, called with what the trainer gives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from adapter_probe.custom_metric import CustomMetric, as_number
from adapter_probe.errors import DataError
from adapter_probe.kinds.labels import PREDICTED
from adapter_probe.kinds.table import about_kind
from adapter_probe.kinds.tags import entity_types
from adapter_probe.metrics import METRICS, OF_TOKENS, score

if TYPE_CHECKING:
    from adapter_probe.checkpoints.opened_peft import OpenedPeft
    from adapter_probe.data.batches import EncodedBatches
    from adapter_probe.data.examples import Examples

_PROBES = 24  # samples of the examples on which a metric is compared with those that have a name
_FACTORS = (1.0, 0.03, 30.0)  # which keep the likeliest classes, and change how likely they are
_ROWS = 16  # examples of one length that are computed at a time
_SURE = 10.0  # the logits of outputs that are right
HALF = ("fp16", "bf16", "fp16_full_eval", "bf16_full_eval")
_ROUNDING = {
    False: 1e-3,
    True: 0.05,
}  # of a trainer's outputs, in half precision or not, relative to the largest
INSTEAD = "give metric=, a name or a function of labels and predictions"


class MetricOfTrainer:
    """A trainer's `compute_metrics` as a function of labels and the model's outputs.

    Args:
        trainer: which has one.
        batches: those of its evaluation set.
        chosen: which of the numbers that it gives; by default the one that ``metric_for_best_model`` names,
            or the only one.

    Raises:
        DataError: the trainer's settings give it what a study does not have.
    """

    def __init__(self, trainer: Any, batches: Sequence[Any], chosen: str = ""):
        args = trainer.args
        best = (getattr(args, "metric_for_best_model", None) or "").removeprefix("eval_")
        self._trainer, self._batches = trainer, [*batches[:2], *batches[2:][-1:]]
        self._chosen, self._asked = chosen or ("" if best == "loss" else best), bool(chosen)
        self._is_loss = self._chosen == best and getattr(args, "greater_is_better", None) is False
        self._like: np.ndarray | None = None  # labels as the trainer gives them
        more = {name: getattr(args, name, None) for name in _MORE}
        if getattr(args, "eval_do_concat_batches", True) is False:
            more["eval_do_concat_batches=False"] = True
        if name := next((name for name, value in more.items() if value), ""):
            raise DataError(
                f"{name} of the trainer gives its compute_metrics {_MORE.get(name, 'a list of batches')}, "
                f"which a study does not; {_WRITES if name == 'predict_with_generate' else INSTEAD}"
            )

    @property
    def said(self) -> str:
        """What of it is used, once that is known."""
        return f"scored by the trainer's compute_metrics: {self._chosen}"

    def numbers(self, labels: np.ndarray, outputs: np.ndarray) -> dict[str, float]:
        """All that it gives, without ``eval_``, of outputs as the model gives them."""
        import torch
        from transformers import EvalPrediction

        if self._like is not None:
            column = labels.ndim == 1 and self._like.ndim == 2
            labels = (labels[:, None] if column else labels).astype(self._like.dtype)
        if (change := self._trainer.preprocess_logits_for_metrics) is not None:
            changed = change(torch.from_numpy(outputs), torch.from_numpy(labels))
            outputs = changed.numpy() if isinstance(changed, torch.Tensor) else changed
        found = self._trainer.compute_metrics(EvalPrediction(predictions=outputs, label_ids=labels))
        return {name.removeprefix("eval_"): value for name, value in found.items()}

    def __call__(self, labels: np.ndarray, outputs: np.ndarray) -> float:
        """The chosen number."""
        return as_number(self._chosen, self.numbers(labels, outputs)[self._chosen])

    def of_model(self, opened: OpenedPeft, examples: Examples) -> str:
        """The metric that gives the same: one that has a name or, of the outputs, one of the user's own.

        Raises:
            DataError: the trainer does not give it the outputs, or not one number.
            Exception: whatever it raises for the intact model.
        """
        task, encoded = opened.description.task, examples.encoded
        if task.about.reads_all and not task.about.of_words:
            name = type(self._trainer).__name__
            raise DataError(
                f"the compute_metrics of this {name} takes the outputs at every position, of which a study "
                f"keeps what is scored; give metric=, one of {', '.join(OF_TOKENS)}, kl and agreement"
            )
        outputs = intact_outputs(opened, encoded)  # type: ignore[arg-type]
        if task.about.of_words:
            return self._of_tags(task.label_names, examples, outputs)
        rows, labels = np.concatenate(outputs), examples.labels
        self._compare(rows)
        self._choose(self.numbers(labels, rows))
        before = self(labels, rows)
        self._refuse_joined(labels, rows)
        named = self._name_of(_plain(task.kind, rows.shape[1]), labels, rows)
        return named or self._own(task.kind, labels, rows, before)

    def _choose(self, found: Mapping[str, Any]) -> None:
        if self._chosen not in found and (self._asked or len(found) != 1):
            lacks = f", and no {self._chosen}" if self._asked else ""
            raise DataError(
                f"the trainer's compute_metrics gives {', '.join(found)}{lacks}; choose one with metric=, "
                f"such as metric={next(iter(found), '')!r}, or with metric_for_best_model"
            )
        self._chosen = self._chosen if self._chosen in found else next(iter(found))

    def _compare(self, rows: np.ndarray) -> None:
        """Refuse what is not the outputs ``[examples, outputs]`` in what the trainer itself computes."""
        import torch

        args, at = self._trainer.args, 0
        half = any(getattr(args, name, False) for name in HALF)
        for number, batch in enumerate(self._batches):
            with torch.no_grad():
                _, own, labels = self._trainer.prediction_step(self._trainer.model.eval(), dict(batch), False)
            if not isinstance(own, torch.Tensor) or not isinstance(labels, torch.Tensor):
                what, many = ("labels", labels) if isinstance(own, torch.Tensor) else ("outputs", own)
                n = len(many) if isinstance(many, (tuple, list, dict)) else 0
                raise DataError(
                    f"the trainer gives its compute_metrics {n} arrays of {what} in place of one, which a "
                    f"study does not; {INSTEAD}"
                )
            own_rows = own.float().cpu().numpy()
            at = len(rows) - len(own_rows) if number == 2 else at  # the last batch
            ours, at = rows[at : at + len(own_rows)], at + len(own_rows)
            ours = ours[:, : own_rows.shape[1]]  # of tags, the positions of this batch
            same = own_rows.shape == ours.shape
            if not same or not np.allclose(own_rows, ours, rtol=0, atol=_ROUNDING[half] * np.abs(ours).max()):
                raise DataError(
                    "the trainer gives its compute_metrics other outputs than the model's (it may have a "
                    f"compute_loss or prediction_step of its own); {INSTEAD}"
                )
            self._like = labels.cpu().numpy()
            given = dict(batch).get("labels", labels)
            if not torch.equal(torch.as_tensor(given).cpu().float(), labels.cpu().float()):
                raise DataError(
                    "the trainer gives its compute_metrics other labels than a study (label_names="
                    f"{getattr(args, 'label_names', None)}); {INSTEAD}"
                )

    def _refuse_joined(self, labels: np.ndarray, rows: np.ndarray) -> None:
        """Refuse a `preprocess_logits_for_metrics` that does not take every example for itself."""
        change = self._trainer.preprocess_logits_for_metrics
        if change is None:
            return
        import torch

        own = labels[:8]
        if self._like is not None:
            own = own.reshape(len(own), *self._like.shape[1:]).astype(self._like.dtype)
        few, given = torch.from_numpy(rows[:8]), torch.from_numpy(own)
        whole = change(few, given)
        single = [change(few[row : row + 1], given[row : row + 1]) for row in range(len(few))]
        alike = all(isinstance(one, torch.Tensor) for one in (whole, *single))
        joined = torch.cat([torch.atleast_1d(one) for one in single]) if alike else None
        if joined is None or whole.shape != joined.shape or not whole.double().allclose(joined.double()):
            raise DataError(
                "the trainer's preprocess_logits_for_metrics does not give one row per example, or one that "
                f"depends on the other examples of a batch, which a study resamples; {INSTEAD}"
            )

    def _name_of(
        self, plain: Mapping[str, Callable[..., np.ndarray]], labels: np.ndarray, rows: np.ndarray
    ) -> str:
        """The named metric that is equal to it, or to a hundredth of it, whatever the outputs; else empty."""
        generator, left = np.random.default_rng(0), {(name, whole) for name in plain for whole in (1, 100)}
        spread, finite = rows.std() or 1.0, 0
        for probe in range(_PROBES):
            drawn = generator.integers(0, len(rows), max(2, len(rows) // (1 + probe % 2)))
            noise = generator.normal(0, spread * (probe % 4), rows[drawn].shape)
            tried = ((rows[drawn] + noise) * _FACTORS[probe % len(_FACTORS)]).astype(np.float32)
            own = labels[drawn] if probe % 5 else generator.permutation(labels[drawn])
            try:
                value = self(own, tried)
            except Exception:  # such as for a sample with a single class
                continue
            ours = {name: float(plain[name](tried, own)) for name, _ in left}
            left = {one for one in left if _same(value, one[1] * ours[one[0]])}
            finite += bool(np.isfinite(value))
        names = [name for name, _ in left]
        return min(names, key=list(plain).index) if finite >= _PROBES // 2 and names else ""

    def _own(self, kind: str, labels: np.ndarray, rows: np.ndarray, before: float) -> CustomMetric:
        """The metric of the outputs, with its scale."""
        metric = CustomMetric(self, self._chosen, of_outputs=True)
        metric.refuse_unsteady(labels, rows, before)
        with suppress(Exception):  # of outputs that no model gave
            metric = metric.with_scale(labels, _right(kind, labels, rows.shape[1]))
        if self._is_loss and metric.scale not in ("", "loss"):
            raise DataError(
                f"greater_is_better=False says that less of the trainer's {self._chosen} is better, and "
                f"right outputs have more of it than shuffled ones; correct it, or {INSTEAD}"
            )
        if abs(metric.score(labels, rows)) > 1 and not metric.scale:
            return metric.with_number("number")
        return metric.with_number("loss", 1.0) if self._is_loss else metric

    def _of_tags(self, names: tuple[str, ...], examples: Examples, outputs: Sequence[np.ndarray]) -> str:
        """The name of the metric of tags that gives the same on all sentences and on parts of them."""
        from adapter_probe.data.batches import NO_TAG
        from adapter_probe.data.tagged import count_tags, refuse_unscorable

        words = examples.words
        assert words is not None, "tags are of words"
        width = max(one.shape[1] for one in outputs)
        labels = np.full((len(outputs), width), NO_TAG)
        rows = np.full((*labels.shape, len(names)), NO_TAG, np.float32)
        for number, one in enumerate(outputs):
            labels[number, words.positions[number]] = words.tags[number]
            rows[number, : one.shape[1]] = one[0]
        self._compare(rows)
        found = self.numbers(labels, rows)
        self._choose(found)
        predicted = np.concatenate(
            [words.predicted(np.array([n]), one[None]) for n, one in enumerate(outputs)], axis=1
        )
        generator = np.random.default_rng(0)
        samples = [np.arange(len(rows)), *(generator.integers(0, len(rows), len(rows)) for _ in range(8))]
        own = [self(labels[drawn], rows[drawn]) for drawn in samples]
        ours = {}
        for name in METRICS["tokens"] if entity_types(names) else ("tag_accuracy",):
            with suppress(DataError):  # the package that finds entities is not there
                refuse_unscorable(name, names)
                counted = count_tags(name, words, names, predicted)
                ours[name] = [_of_counts(name, *counted, drawn) for drawn in samples]
        for name, values in ours.items():
            if any(all(_same(a, w * b) for a, b in zip(own, values)) for w in (1, 100)):
                return name
        said = ", ".join(f"{name} {values[0]:.6g}" for name, values in ours.items())
        lacking = "" if "entity_f1" in ours or not entity_types(names) else " (entity_f1 needs seqeval)"
        raise DataError(
            f"the trainer's {self._chosen} is {own[0]:.6g}, and a study of tags has {said}{lacking}; give "
            "metric=, one of these"
        )


_MORE = {
    "include_for_metrics": "the inputs or losses too",
    "include_inputs_for_metrics": "the inputs too",
    "batch_eval_metrics": "one batch after the other",
    "predict_with_generate": "texts that the model writes",
    "prediction_loss_only": "nothing: the trainer does not call it",
}
_WRITES = (
    "give data= (rows with prompt and answer), generate=True and metric=, a name or a function of answers "
    "and texts"
)


def intact_outputs(opened: OpenedPeft, encoded: EncodedBatches) -> list[np.ndarray]:
    """The intact model's outputs of every example, float32 ``[1, ...]`` each."""
    import torch

    from adapter_probe.probe.switchable_model import inputs_of

    model = opened.model
    found: dict[int, np.ndarray] = {}
    device = next(model.parameters()).device
    for length in np.unique(encoded.lengths):
        items = np.flatnonzero(encoded.lengths == length)
        for chosen in np.split(items, range(_ROWS, len(items), _ROWS)):
            with torch.no_grad():
                out = encoded.read(model(**inputs_of(model, encoded, chosen, device))).float().cpu().numpy()
            found |= {item: out[row : row + 1] for row, item in enumerate(chosen.tolist())}
    return [found[item] for item in range(len(encoded))]


def _plain(kind: str, n_outputs: int) -> dict[str, Callable[..., np.ndarray]]:
    """The metrics that have a name, as functions of outputs and labels."""
    predicted_by = PREDICTED[kind]

    def named(name: str) -> Callable[..., np.ndarray]:
        return lambda rows, labels: score(
            name, predicted := predicted_by(rows), labels.reshape(predicted.shape)
        )

    if n_outputs > 1 and not about_kind(kind).has_classes:
        return {}
    return {name: named(name) for name in METRICS[kind] if name != "f1" or n_outputs == 2}


def _right(kind: str, labels: np.ndarray, n_outputs: int) -> np.ndarray:
    """Outputs that are right for all examples, float32 ``[examples, outputs]``."""
    if not about_kind(kind).has_classes:
        return labels.reshape(len(labels), -1).astype(np.float32)
    there = np.eye(n_outputs)[labels] if labels.ndim == 1 else labels
    return (_SURE * (2 * there - 1)).astype(np.float32)


def _of_counts(name: str, counted: np.ndarray, there: np.ndarray, drawn: np.ndarray) -> float:
    values = counted.reshape(*there.shape, 2).astype(np.float64)
    return float(score(name, values[drawn], there[drawn]))


def _same(one: float, other: float) -> bool:
    return bool(np.isclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True))
