"""The object of a span ablation, `Ablation`: its tables, summary, predictions and figures."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.study_records import AblationRecord
from adapter_probe.analysis.summary import AblationSummary
from adapter_probe.analysis.summary_text import ablation_rows, both_scores
from adapter_probe.argument_checks import checked
from adapter_probe.errors import ResultsError
from adapter_probe.results.ablation_files import read_generations
from adapter_probe.results.schema import PREDICTIONS
from adapter_probe.settings import Style, as_points

from .study_base import StoredStudy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap


@dataclass(frozen=True, eq=False, repr=False)
class Ablation(StoredStudy):
    """A finished ablation; what `adapter_probe.ablate` and `adapter_probe.load` return.

    Attributes:
        against: the same variants scored on the examples that `ablate` received as `against`, if any;
            `adapter_probe.compare_data` relates the two.
    """

    record: AblationRecord
    _results: AblationResults | Callable[[], AblationResults] | None = None
    against: Ablation | None = None

    @property
    def spans(self) -> pd.DataFrame:
        """One row per span, ``spans.csv``.

        `first`, `last` and `n_layers` (layers, both ends included); `score` (a fraction, in the metric's own
        units); `delta_points` = 100 (score - intact score), so that a loss is negative, with its 95%
        interval `ci_low_points`, `ci_high_points`; `p_value` against the intact model, `p_holm`
        and `significant` (below 0.05 after Holm's correction over all spans); `interaction_points` with its
        interval. Of a model with several stacks of layers, such as an encoder and a decoder, this table and
        the others begin with `stack`, in which the layers are numbered.
        """
        return self.record.spans

    @property
    def layers(self) -> pd.DataFrame | None:
        """One row per layer, or per group of layers, ``layers.csv``; None without all spans.

        `layer`; for the span of this layer alone `delta_points`, `ci_low_points`, `ci_high_points` and
        `p_holm` as in `spans`; `share_points`, the layer's share of the drop of all layers in percentage
        points (positive for a loss), with its interval `share_low_points`, `share_high_points`;
        `last_layer`, the last layer of the group.
        """
        return self.record.layers

    @property
    def removable(self) -> pd.DataFrame | None:
        """The longest span whose drop is within 0.5, 1 and 2 points, ``removable.csv``.

        `tolerance_points`; `basis`, what is held against the tolerance: the drop itself (``estimate``), or a
        95% bound that holds for the span which is chosen by it (``interval``); the span `first`, `last` and
        `n_layers`, missing if no span qualifies; its `delta_points` (negative for a loss) and
        `bound_low_points`, in percentage points.
        """
        return self.record.removable

    @property
    def groups(self) -> pd.DataFrame | None:
        """One row per variant and group of examples, ``groups.csv``; None when the data has no groups.

        Groups are the values of `field` and `UID` in data with minimal pairs, the tasks of
        lm-evaluation-harness, the types of entities in tags, or several labels. Columns: `group`,
        `n_examples`, `variant` (``intact``, ``all off`` or a span), `first`, `last`, `score`, `delta_points`.
        """
        return self.record.groups

    @property
    def summary(self) -> AblationSummary:
        """The main results, ``summary.json``; scores are fractions, differences are in points."""
        return self.record.summary

    @property
    def identity(self) -> Mapping[str, object]:
        """Everything that determines the numbers: checkpoint, base, tokenizer, data and settings.

        Empty if the folder does not record it.
        """
        if "checkpoint" in self.record.identity:
            return self.record.identity
        return self.results.identity if self.has_predictions else {}

    @property
    def has_predictions(self) -> bool:
        """Whether the study has `results` and `predictions`, whose file may be missing from its folder."""
        return self._results is not None

    @cached_property
    def results(self) -> AblationResults:
        """The outputs of every variant for every example: `masks`, `spans`, `outputs` and more.

        Raises:
            ResultsError: the folder contains no predictions, or they are damaged.
        """
        if self._results is None:
            raise ResultsError(f"{self.folder} contains no predictions: there is no {PREDICTIONS} in it")
        return self._results() if callable(self._results) else self._results

    @cached_property
    def texts(self) -> pd.DataFrame | None:
        """What every variant writes, ``generations.jsonl``; None where nothing is written.

        One row per variant and example: `variant`, `row` (from 1), `text`, and its `score`.
        """
        return read_generations(self.folder)

    @property
    def predictions(self) -> np.ndarray:
        """Predicted classes or regression values, ``[variants, examples]``; see `results` for the outputs.

        Of several labels 0 or 1, ``[variants, examples, labels]``; of tags, counts of entities or words.

        The first variant is the intact model; `results.row_names` lists the names of all variants.
        """
        return self.results.predictions

    @checked
    def heatmap(
        self,
        ax: Axes | None = None,
        *,
        tolerance: float = 1.0,
        paper: bool = False,
        colorbar: bool = True,
        notes: bool = True,
        cmap: str | Colormap | None = None,
        annot: bool = True,
        style: Style | None = None,
    ) -> Axes:
        """Draw the heatmap of the first and last layer switched off; see `plot` for spans that form a line.

        Of a model with several stacks of layers, the grids stand side by side.

        Args:
            ax: Axes to draw on; by default the current Axes if they are empty, else those of a new figure.
                The current rcParams apply.
            tolerance: tolerated drop, in percentage points, marked by the black line.
            paper: draw the grid that Houlsby et al. (2019) published for this task next to it.
            colorbar: whether to draw a colour bar.
            notes: whether to print task, scores and the legend of symbols in the empty corner.
            cmap: Matplotlib's colour map for the levels; by default this project's own colours.
            annot: whether to print the numbers in cells that have room for them.
            style: publication venue, such as ``icml``: draws a new figure with the venue's width and fonts
                (instead of `ax`).
        """
        from adapter_probe.figures.heatmap import heatmap

        return self._on(
            heatmap, ax, style, tolerance=as_points("tolerance", tolerance), paper=paper,
            colorbar=colorbar, notes=notes, cmap=cmap, annot=annot,
        )  # fmt: skip

    @checked
    def plot(
        self,
        ax: Axes | None = None,
        *,
        tolerance: float = 1.0,
        paper: bool = False,
        notes: bool = True,
        style: Style | None = None,
    ) -> Axes:
        """Draw the heatmap or, if the spans form a line, a curve with its interval.

        Spans form a line if all start at one layer (``spans="prefix"``), all end at one layer
        (``spans="suffix"``), or are disjoint (``spans="single"``).

        Arguments as of `heatmap`.
        """
        from adapter_probe.figures.span_curve import plot

        within = as_points("tolerance", tolerance)
        return self._on(plot, ax, style, tolerance=within, paper=paper, notes=notes)

    @checked
    def attribution(self, ax: Axes | None = None, *, legend: bool = True, style: Style | None = None) -> Axes:
        """Draw each layer's share of the total drop next to the drop without that layer alone.

        Unlike `heatmap`, it takes neither `tolerance`, which bounds the drop of a span and not the share of a
        layer, nor `paper`, because the paper's grids were published without shares.

        Args:
            ax: see `heatmap`.
            style: see `heatmap`.
            legend: whether to draw the legend of bars and diamonds.

        Raises:
            ResultsError: the study has no shares, because it kept spans on or a score is undefined.
        """
        from adapter_probe.figures.attribution import attribution

        return self._on(attribution, ax, style, legend=legend)

    def __repr__(self) -> str:
        rows = dict(self.rows())
        best = [
            f"{name}: {value}"
            for name, value in rows.items()
            if re.search(r"^(\S.*: )?(long|short)est ", name)
        ]
        lines = [f"Ablation of {rows.get('task', self.folder)}", both_scores(self.summary), rows.get("note")]
        return "\n".join(filter(None, [*lines, *(best[1::3] or best)]))  # of three tolerances the middle one

    def rows(self) -> list[tuple[str, str]]:
        """The summary as (name, value) pairs of text."""
        return ablation_rows(self.record.summary)
