"""The object of a race, `Race`: its table, summary and figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pandas as pd

from adapter_probe.analysis.race_tables import RaceSummary, race_rows
from adapter_probe.analysis.study_records import RaceRecord
from adapter_probe.analysis.summary_text import plain_text
from adapter_probe.argument_checks import checked
from adapter_probe.settings import Style

from .study_base import StoredStudy, axes_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False, repr=False)
class Race(StoredStudy):
    """Verdicts on spans without all examples for all of them; what `adapter_probe.race` returns.

    Attributes:
        record: table, summary and identity of the race as plain data.
    """

    record: RaceRecord
    _temporary: TemporaryDirectory[str] | None = None  # which is removed with the last reference

    @property
    def spans(self) -> pd.DataFrame:
        """One row per span, ``spans.csv``.

        `first`, `last` and `n_layers`; `decision`: ``within`` or ``beyond`` the tolerance, ``assumed beyond``
        (not tried, since a shorter span inside is not within), ``not needed``, ``undefined``, and of
        ``least:K`` ``among the least`` or not; `n_examples`, how many examples the span was computed on;
        `score` and `delta_points` on these alone; `bound_low_points` and `bound_high_points`, between which
        `delta_points` on all examples lies: each of the two is right for all spans together with a
        probability of at least 1 - `risk`. There are neither tests nor bootstrap intervals.
        """
        return self.record.spans

    @property
    def summary(self) -> RaceSummary:
        """The answer, with what is certain about it and what it cost, ``race.json``."""
        return self.record.summary

    @property
    def identity(self) -> Mapping[str, object]:
        """Everything that determines the numbers: checkpoint, base, data, settings and those of the race."""
        return self.record.identity

    @checked
    def plot(self, ax: Axes | None = None, *, notes: bool = True, style: Style | None = None) -> Axes:
        """Draw the verdict on every span, and how many examples it took.

        Args:
            ax: see `adapter_probe.Ablation.heatmap`.
            notes: whether to print task, answer and certainty in the empty corner.
            style: see `adapter_probe.Ablation.heatmap`.
        """
        from adapter_probe.figures.race import race

        with axes_for(ax, style) as place:
            return race(self.record, place, notes=notes)

    def rows(self) -> list[tuple[str, str]]:
        """The answer, its certainty and its cost, as pairs of text."""
        return [(plain_text(name), plain_text(said)) for name, said in race_rows(self.summary)]
