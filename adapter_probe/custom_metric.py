"""Metrics of the user's own: a function of labels and predictions, with a name for files and messages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import numpy as np

from adapter_probe.errors import DataError, one_line, shown
from adapter_probe.formulas import finite_or_nan, is_complete

CUSTOM = "custom:"
"""Prefix of the names of user-defined metrics."""


class CustomMetric(str):
    """A user-defined metric, named ``custom:`` and the function's name.

    Args:
        function: from labels ``[examples]`` and predictions ``[examples]``, class indices or a regression's
            numbers, to a score; more is better. The bootstrap calls it for every variant and resample.
    """

    function: Callable[[np.ndarray, np.ndarray], float]

    def __new__(cls, function: Callable[[np.ndarray, np.ndarray], float]) -> CustomMetric:
        """A string that carries the function.

        Raises:
            DataError: it cannot be called with labels and predictions.
        """
        metric = super().__new__(cls, CUSTOM + getattr(function, "__name__", type(function).__name__))
        metric.function = function
        try:
            inspect.signature(function).bind(None, None)
        except ValueError:  # of a compiled function, which tells no signature
            return metric
        except TypeError as error:
            raise DataError(
                f"the metric {metric.own_name} does not take labels and predictions: {one_line(error)}"
            ) from None
        return metric

    def __getnewargs__(self) -> tuple[Callable[[np.ndarray, np.ndarray], float]]:  # type: ignore[override]
        """What a copy is made from."""
        return (self.function,)

    @property
    def own_name(self) -> str:
        """The name of the function."""
        return self.removeprefix(CUSTOM)

    def scores(
        self, predictions: np.ndarray, labels: np.ndarray, names: Sequence[str] | None = None, what: str = ""
    ) -> np.ndarray:
        """Scores ``[rows]`` of predictions ``[rows, examples]``; NaN where one is not finite.

        An exception of the function passes as it is, with a line on what was scored.

        Args:
            predictions: ``[rows, examples]``, or ``[rows, examples, labels]`` if an example has several
                labels or targets; a row that lacks a prediction has no score.
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
        """What the function gives.

        Raises:
            DataError: it is no number, or one that is too large.
        """
        value = self.function(labels, predictions)
        try:
            if isinstance(value, (str, bytes)):
                raise TypeError
            return float(value)
        except (TypeError, ValueError, OverflowError):
            raise DataError(
                f"the metric {self.own_name} returned {shown(value)}; a score has to be one number"
            ) from None
