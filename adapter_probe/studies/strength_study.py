"""The object of a study of strengths, `Strengths`: its table, summary and figure."""

from __future__ import annotations

from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pandas as pd

from adapter_probe.analysis.strengths import StrengthSummary
from adapter_probe.analysis.study_records import StrengthRecord
from adapter_probe.analysis.summary_text import plain_text, score_text
from adapter_probe.argument_checks import checked
from adapter_probe.settings import Style
from adapter_probe.wording import examples_text, is_distance, metric_name

from .study_base import StoredStudy, axes_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False, repr=False)
class Strengths(StoredStudy):
    """Scores against the strength of the adapters; what `adapter_probe.strength` returns.

    Attributes:
        record: table, summary and identity of the study as plain data.
        against: the same strengths scored on the examples that `strength` received as `against`, if any.
    """

    record: StrengthRecord
    against: Strengths | None = None
    _temporary: TemporaryDirectory[str] | None = None  # which is removed with the last reference

    @property
    def table(self) -> pd.DataFrame:
        """One row per strength and span, ``strengths.csv``.

        `strength`; `first`, `last`, `n_layers`, the span whose adapters are scaled; `whole`, whether it is of
        all that the study scales; `score` (a fraction, in the metric's own units); `delta_points`, score
        minus that at strength 1, in points, so that a loss is negative, with its 95% paired bootstrap
        interval `ci_low_points`, `ci_high_points`; `n_examples`.
        """
        return self.record.strengths

    @property
    def summary(self) -> StrengthSummary:
        """Which strength is best, and by how much, ``summary.json``."""
        return self.record.summary

    @checked
    def plot(self, ax: Axes | None = None, *, style: Style | None = None) -> Axes:
        """Draw the score against the strength.

        Args:
            ax: see `adapter_probe.Ablation.heatmap`.
            style: see `adapter_probe.Ablation.heatmap`.
        """
        from adapter_probe.figures.strengths import strengths

        with axes_for(ax, style) as place:
            return strengths(self.record, place)

    def rows(self) -> list[tuple[str, str]]:
        """The answer, and the score of the whole adapter at every strength, as pairs of text."""
        said, points = self.summary, self._scores()
        if self.against is not None:
            there, others = self.against.summary, self.against._scores()
            points = {
                name: f"{score}; {others[name]} {metric_name(there.metric)} on {there.data}"
                for name, score in points.items()
            }
        about = f"{said.task}, {said.data}, {examples_text(said.n_examples, said.metric)}, {said.metric}"
        asked = "too strong or too weak" if not is_distance(said.metric) else "too strong"
        return [(f"{asked}?", plain_text(said.verdict)), ("task", about), *points.items()]

    def _scores(self) -> dict[str, str]:
        """The score of the whole adapter at every strength, as text."""
        whole = self.table[self.table["whole"]]
        return {
            f"strength {row.strength:g}": score_text(row.score, self.summary.metric)
            for row in whole.itertuples(index=False)
        }
