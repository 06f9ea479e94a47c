"""The object of a study of ranks, `Ranks`: its tables, summary and figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pandas as pd

from adapter_probe.analysis.ranks import RankSummary, effective_rank
from adapter_probe.analysis.study_records import RankRecord
from adapter_probe.analysis.summary_text import plain_text, score_text
from adapter_probe.argument_checks import checked
from adapter_probe.settings import Style
from adapter_probe.wording import examples_text

from .study_base import StoredStudy, axes_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, eq=False, repr=False)
class Ranks(StoredStudy):
    """Scores against the directions that adapters keep; what `adapter_probe.ranks` returns.

    Attributes:
        record: tables, summary and identity of the study as plain data.
    """

    record: RankRecord
    _temporary: TemporaryDirectory[str] | None = None  # which is removed with the last reference

    @property
    def table(self) -> pd.DataFrame:
        """One row per rank and span, ``ranks.csv``.

        `rank`, how many directions every tuned map keeps; `first`, `last`, `n_layers`, the span whose
        adapters are truncated; `whole`, whether it is of all that the study truncates; `score` (a fraction,
        in the metric's own units); `delta_points`, score minus that with all directions, in points, so that a
        loss is negative, with its 95% paired bootstrap interval `ci_low_points`, `ci_high_points`; `energy`,
        the share of the squared singular values of the span that is kept; `n_examples`.
        """
        return self.record.ranks

    @property
    def spectra(self) -> pd.DataFrame:
        """The singular values of every tuned map, ``spectra.csv``.

        `layer`, `module`, `expert` (0 of a map alone), `direction` (from 1), `value`.
        """
        return self.record.spectra

    @property
    def effective_ranks(self) -> pd.DataFrame:
        """The effective rank of every tuned map, by `layer` and `module`; of experts, the mean."""
        groups = self.spectra.groupby(["layer", "module", "expert"], sort=False)["value"]
        found = groups.apply(lambda values: effective_rank(values.to_numpy(float)))
        return found.groupby(["layer", "module"], sort=False).mean().rename("effective_rank").reset_index()

    @property
    def summary(self) -> RankSummary:
        """How many directions are needed, ``summary.json``."""
        return self.record.summary

    @checked
    def plot(self, ax: Axes | None = None, *, style: Style | None = None) -> Axes:
        """Draw the score against the kept directions.

        Args:
            ax: see `adapter_probe.Ablation.heatmap`.
            style: see `adapter_probe.Ablation.heatmap`.
        """
        from adapter_probe.figures.strengths import strengths

        with axes_for(ax, style) as place:
            return strengths(self.record, place)

    @checked
    def plot_spectra(self, ax: Axes | None = None, *, style: Style | None = None) -> Axes:
        """Draw the singular values of every layer's change.

        Args:
            ax: see `adapter_probe.Ablation.heatmap`.
            style: see `adapter_probe.Ablation.heatmap`.
        """
        from adapter_probe.figures.strengths import spectra

        with axes_for(ax, style) as place:
            return spectra(self.record, place)

    def rows(self) -> list[tuple[str, str]]:
        """The answer, and the score with so many directions in all layers, as pairs of text."""
        said = self.summary
        about = f"{said.task}, {said.data}, {examples_text(said.n_examples, said.metric)}, {said.metric}"
        whole = self.table[self.table["whole"]].sort_values("rank")
        scores = {
            f"rank {row.rank}": f"{score_text(row.score, said.metric)}, {100 * row.energy:.0f}% of the energy"
            for row in whole.itertuples(index=False)
        }
        return [
            ("directions needed", plain_text(said.verdict)),
            ("task", about),
            ("effective rank", f"{said.effective:.1f} of {said.largest}, the mean of the tuned maps"),
            *scores.items(),
        ]

    @checked
    def recipe(self, out: str | Path, *, checkpoint: str | Path | None = None) -> Path:
        """Write PEFT's configuration of a next LoRA with the needed directions, and the evidence.

        Every map gets at most as many as `summary.needed`, and keeps its scale.

        Args:
            out: the folder, which gets ``adapter_config.json`` and ``README.md``.
            checkpoint: the LoRA of the study; by default the folder above the results.

        Raises:
            ResultsError: the checkpoint is no LoRA of PEFT, or the folder cannot be written.
        """
        from .recipe import write_rank_recipe

        return write_rank_recipe(self.record, out, checkpoint)
