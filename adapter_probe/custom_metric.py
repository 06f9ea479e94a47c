"""Metrics of the user's own: a function of labels and predictions, with a name for files and messages."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from adapter_probe.errors import DataError, one_line, shown
from adapter_probe.formulas import finite_or_nan, is_complete

CUSTOM = "custom:"
"""Prefix of the names of user-defined metrics."""
Scale = Literal["", "share", "loss", "number"]
"""What the numbers of a metric are: scores up to 1, shares, losses, of which less is better, or others."""
_SHUFFLES = 8
_LONGEST = 120.0  # seconds that the calls for resamples may take
_FEWEST = 1_000  # resamples, of which the ends of an interval can be told


class CustomMetric(str):
    """A user-defined metric, named ``custom:``, its own name and, in brackets, its scale if that is known.

    Args:
        function: from labels ``[examples]`` and predictions ``[examples]``, class indices or a regression's
            numbers, to a number. The bootstrap calls it for every variant and resample, see `draws`.
        name: its own name; by default the function's.
        scale: what the numbers are; see `with_scale`.
        whole: the number that is a score of 1, such as 100 of percentages.
        of_outputs: whether it takes the model's outputs ``[examples, outputs]`` in place of predictions.
        seconds: how long a call takes; 0 if that is not known.
    """

    function: Callable[[np.ndarray, np.ndarray], float]
    scale: Scale
    whole: float
    of_outputs: bool
    seconds: float

    def __new__(
        cls,
        function: Callable[[np.ndarray, np.ndarray], float],
        name: str = "",
        scale: Scale = "",
        whole: float = 1.0,
        of_outputs: bool = False,
        seconds: float = 0.0,
    ) -> CustomMetric:
        """A string that carries the function.

        Raises:
            DataError: it cannot be called with labels and predictions.
        """
        name = name or getattr(function, "__name__", type(function).__name__)
        metric = super().__new__(cls, f"{CUSTOM}{name}" + (f" ({scale})" if scale else ""))
        metric.function, metric.scale, metric.whole = function, scale, whole
        metric.of_outputs, metric.seconds = of_outputs, seconds
        try:
            inspect.signature(function).bind(None, None)
        except ValueError:  # of a compiled function, which tells no signature
            return metric
        except TypeError as error:
            raise DataError(
                f"the metric {metric.own_name} does not take labels and predictions: {one_line(error)}"
            ) from None
        return metric

    def __getnewargs__(self) -> tuple[Any, ...]:  # type: ignore[override]
        """What a copy is made from."""
        return (self.function, self.own_name, self.scale, self.whole, self.of_outputs, self.seconds)

    @property
    def own_name(self) -> str:
        """The name of the function."""
        return split_name(self)[0]

    def with_scale(self, labels: np.ndarray, right: np.ndarray) -> CustomMetric:
        """The same with its scale, which right predictions and shuffled ones tell, and with its time.

        Less is better if the right ones score less than all shuffled ones. A score of 1, or of 100, for right
        ones is its upper end; if no shuffled one is negative, the scores are shares.

        Args:
            labels: of all examples, as `score` takes them.
            right: predictions, or outputs, that are right for all of them.

        Raises:
            Exception: whatever the function raises.
        """
        generator = np.random.default_rng(0)
        best = self.score(labels, right)
        others, begin = [], time.perf_counter()
        for _ in range(_SHUFFLES):
            others.append(self.score(labels, shuffled := right[generator.permutation(len(right))]))
        if not self.of_outputs:  # of which right ones are alike, so that a metric of ranks may take any order
            self.refuse_unsteady(labels, shuffled, others[-1])
        seconds = (time.perf_counter() - begin) / _SHUFFLES
        others = [value for value in others if np.isfinite(value)]
        if not np.isfinite(best) or not others:
            return self.with_number(self.scale, seconds=seconds)
        low, high = min(others), max(others)
        whole = next((whole for whole in (1.0, 100.0) if np.isclose(best, whole)), 0.0)
        scale: Scale = "" if max(abs(best), abs(low), abs(high)) <= 1 else "number"
        if best < low:
            scale = "loss"
        elif whole and max(low, high) <= best * (1 + 1e-6):
            scale = "share" if low >= 0 else ""
        return self.with_number(scale, whole or 1.0, seconds)

    def refuse_unsteady(self, labels: np.ndarray, predictions: np.ndarray, before: float) -> None:
        """Refuse a function whose score of these examples is another one when they come in another order."""
        order = np.random.default_rng(1).permutation(len(labels))
        after = self.score(labels[order], predictions[order])
        if not np.isclose(before, after, rtol=1e-4, atol=1e-6, equal_nan=True):
            raise DataError(
                f"the metric {self.own_name} gives {before:.6g}, and {after:.6g} for the same examples in "
                "another order; a study resamples them, so only labels and predictions may determine it, and "
                "not their places, chance or earlier calls"
            )

    def with_number(
        self, scale: Scale, whole: float | None = None, seconds: float | None = None
    ) -> CustomMetric:
        """The same with another scale, and another whole and time where they are given."""
        whole = self.whole if whole is None else whole
        seconds = self.seconds if seconds is None else seconds
        return CustomMetric(self.function, self.own_name, scale, whole, self.of_outputs, seconds)

    def draws(self, wanted: int, n_variants: int) -> int:
        """How many of the wanted resamples are scored.

        In thousands, as many as take two minutes, and at least 1,000; all where a call's time is not known.
        """
        most = _LONGEST / max(self.seconds * n_variants, 1e-9)
        return wanted if most >= wanted else max(_FEWEST, int(most) // _FEWEST * _FEWEST)

    def scores(
        self, predictions: np.ndarray, labels: np.ndarray, names: Sequence[str] | None = None, what: str = ""
    ) -> np.ndarray:
        """Scores ``[rows]`` of predictions ``[rows, examples]``; NaN where one is not finite.

        An exception of the function passes as it is, with a line on what was scored.

        Args:
            predictions: ``[rows, examples]``, or ``[rows, examples, labels]`` if an example has several
                labels, targets or outputs; a row that lacks a prediction has no score.
            labels: ``[examples]``, or ``[examples, labels]``.
            names: what each row is called in that line; by default its number.
            what: what comes before the name, such as ``a resample of``.
        """
        found = np.full(len(predictions), np.nan)
        for row, own in enumerate(predictions):
            if is_complete(own, own.ndim):
                try:
                    found[row] = self.score(labels, own)
                except Exception as error:
                    name = names[row] if names else f"row {row}"
                    if hasattr(error, "add_note"):  # from Python 3.11 on
                        error.add_note(f"adapter-probe: the metric {self.own_name} was scoring {what}{name}")
                    raise
        return finite_or_nan(found)

    def score(self, labels: np.ndarray, predictions: np.ndarray) -> float:
        """What the function gives, as a part of the whole.

        Raises:
            DataError: it is no number, or one that is too large.
        """
        return as_number(self.own_name, self.function(labels, predictions)) / self.whole


def as_number(name: str, value: Any) -> float:
    """What a metric returned.

    Raises:
        DataError: it is no number, or one that is too large.
    """
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise DataError(f"the metric {name} returned {shown(value)}; a score has to be one number") from None


def split_name(metric: str) -> tuple[str, Scale]:
    """The own name and the scale of a user-defined metric, from its name in files."""
    name = metric.removeprefix(CUSTOM)
    for scale in ("share", "loss", "number"):
        if name.endswith(end := f" ({scale})"):
            return name.removesuffix(end), scale  # type: ignore[return-value]
    return name, ""
