"""Several ablations together: differences, averages over seeds, and trade-offs between two data sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from adapter_probe.analysis.comparing import (
    AverageRecord,
    ComparisonRecord,
    DataComparisonRecord,
    average_ablations,
    check_comparable,
    compare_ablations,
    compare_data_sets,
)
from adapter_probe.analysis.score_changes import section_of
from adapter_probe.analysis.summary_text import average_rows, comparison_rows, data_comparison_rows
from adapter_probe.argument_checks import as_tuple, checked
from adapter_probe.checkpoints.files import DESCRIPTION
from adapter_probe.errors import ResultsError
from adapter_probe.results.atomic import read_json
from adapter_probe.results.fingerprints import hash_json, refuse_changes
from adapter_probe.settings import Style, as_points
from adapter_probe.wording import common_value, task_label

from .ablation_study import Ablation
from .load import ablations_of
from .study_base import DrawnStudy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap


class SeveralAblations(DrawnStudy):
    """Base class of the studies of several ablations."""

    @property
    def spans(self) -> pd.DataFrame:
        """One row per span, with the columns that the class of `record` documents."""
        return self.record.spans


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(SeveralAblations):
    """Two ablations on the same examples; what `adapter_probe.compare` returns."""

    record: ComparisonRecord

    @checked
    def heatmap(
        self,
        ax: Axes | None = None,
        *,
        colorbar: bool = True,
        notes: bool = True,
        cmap: str | Colormap | None = None,
        annot: bool = True,
        style: Style | None = None,
    ) -> Axes:
        """Draw the difference of the drops, in points; see `Ablation.heatmap`."""
        from adapter_probe.figures.heatmap import heatmap

        return self._on(heatmap, ax, style, colorbar=colorbar, notes=notes, cmap=cmap, annot=annot)

    @checked
    def plot(self, ax: Axes | None = None, *, notes: bool = True, style: Style | None = None) -> Axes:
        """Draw the heatmap, or of spans in a line a curve; see `Ablation.plot`."""
        from adapter_probe.figures.span_curve import plot

        return self._on(plot, ax, style, notes=notes)

    def rows(self) -> list[tuple[str, str]]:
        """The main results as (name, value) pairs of text."""
        return comparison_rows(self.record)


@dataclass(frozen=True, eq=False, repr=False)
class Average(SeveralAblations):
    """The mean of ablations that differ in the seed; what `adapter_probe.average` returns.

    Attributes:
        record: the numbers.
        note: in what else than the seed the trainings differ, and what is not known of them; empty if they
            were compared and nothing does.
    """

    record: AverageRecord
    note: str = ""

    @checked
    def heatmap(
        self,
        ax: Axes | None = None,
        *,
        tolerance: float = 1.0,
        colorbar: bool = True,
        notes: bool = True,
        spread: bool = False,
        cmap: str | Colormap | None = None,
        annot: bool = True,
        style: Style | None = None,
    ) -> Axes:
        """Draw the mean drops with their spread over the studies; see `Ablation.heatmap`.

        The standard deviation is printed below each mean. When the cells are too small for two numbers, it is
        drawn as a second grid, in the right half of Axes that are wide enough; `spread` draws only that grid.
        """
        from adapter_probe.figures.heatmap import heatmap

        return self._on(
            heatmap, ax, style, tolerance=as_points("tolerance", tolerance), colorbar=colorbar,
            notes=notes, spread=spread, cmap=cmap, annot=annot,
        )  # fmt: skip

    @checked
    def plot(
        self,
        ax: Axes | None = None,
        *,
        tolerance: float = 1.0,
        notes: bool = True,
        style: Style | None = None,
    ) -> Axes:
        """Draw the heatmap, or of spans in a line a curve; see `Ablation.plot`."""
        from adapter_probe.figures.span_curve import plot

        return self._on(plot, ax, style, tolerance=as_points("tolerance", tolerance), notes=notes)

    def rows(self) -> list[tuple[str, str]]:
        """The main results as (name, value) pairs of text."""
        return [*average_rows(self.record), *[("trainings", self.note)] * bool(self.note)]


@dataclass(frozen=True, eq=False, repr=False)
class DataComparison(SeveralAblations):
    """The changes of every span on two data sets; what `adapter_probe.compare_data` returns."""

    record: DataComparisonRecord

    @checked
    def plot(self, ax: Axes | None = None, *, style: Style | None = None) -> Axes:
        """Draw every span as a point: its change on the task against that on the other data.

        Arguments as of `Ablation.heatmap`.
        """
        from adapter_probe.figures.joint import data_comparison

        return self._on(data_comparison, ax, style)

    def rows(self) -> list[tuple[str, str]]:
        """The main results as (name, value) pairs of text."""
        return data_comparison_rows(self.record)


@checked
def compare(a: Ablation | str | Path, b: Ablation | str | Path) -> Comparison:
    """The difference between two ablations' drops of every span, `b` minus `a`, with paired intervals.

    Args:
        a: an ablation, or its results folder.
        b: another ablation of the same spans on the same examples, or its results folder.

    Raises:
        ResultsError: a study is not an ablation, the studies differ in examples, metric or spans, or they are
            one study.
    """
    studies = ablations_of([a, b])
    if studies[0].folder.resolve() == studies[1].folder.resolve():
        raise ResultsError(f"{studies[0].folder} is given twice; a comparison needs two ablations")
    first, second = _names(studies)
    record = compare_ablations(studies[0].results, studies[1].results, (first, second))
    return Comparison(replace(record, **_told(studies, (first, second))))


_APART = frozenset(("checkpoint.delta_sha256", "code_schema", "settings.precision"))
"""In what ablations of several seeds may differ: the tensors, and how exactly they were computed."""
_OF_ONE_RUN = ("seed", "question", "validation_scores", "majority_score")
"""What the record of a training has besides its settings."""
_UNKNOWN = "not compared, as they are not recorded beside all studies; different seeds alone are assumed"
_POOLERS = "each has its own pooler, drawn anew and saved with its base; all else of the bases is the same"


@checked
def average(studies: Sequence[Ablation | str | Path]) -> Average:
    """The mean drop of every span over ablations that differ in the seed, with the spread over seeds.

    Args:
        studies: at least two ablations of the same spans and examples, or their results folders.

    Raises:
        ResultsError: one is no ablation, they differ in examples, metric, spans, base, method, settings or,
            as far as their checkpoints record it, in the training, or two are of one checkpoint.
    """
    ablations = ablations_of(as_tuple(studies))
    names = _names(ablations)
    results = [study.results for study in ablations]
    check_comparable(results, names, "averaged")
    known: dict[str, str] = {}
    trainings = [_training_of(one) for one in ablations]
    first = next((one for one in trainings if one is not None), None)
    bodies = {one.settings.get("base_without_pooler", "") for one in results}
    weights = {section_of(one.identity, "base").get("weights_sha256") for one in results}
    own_poolers = len(weights) > 1 and len(bodies) == 1 and "" not in bodies
    for study, name, training in zip(results, names, trainings):
        refuse_changes(
            {**results[0].identity, "training": first},
            {**study.identity, "training": first if training is None else training},
            f"{names[0]} and {name} differ in more than the seed",
            "; average only ablations of the same training with different seeds",
            apart=_APART | ({"base.weights_sha256"} if own_poolers else set()),
        )
        tensors = hash_json(study.identity.get("checkpoint"))
        if (other := known.setdefault(tensors, name)) != name:
            raise ResultsError(
                f"{other} and {name} are ablations of the same checkpoint; a mean over seeds needs each seed "
                "once"
            )
    task = common_value(one.summary.task for one in ablations if one.summary.study == "ablated")
    record = average_ablations(results, names, task or "")
    note = "; ".join([_POOLERS] * own_poolers + [_UNKNOWN] * (None in trainings))
    return Average(replace(record, **_told(ablations, names)), note)


def _training_of(study: Ablation) -> dict[str, Any] | None:
    """The settings of the training, but for its seed, that the checkpoint around a study's folder records."""
    path = study.folder.parent / DESCRIPTION
    record = read_json(path) if path.is_file() else {}
    own = section_of(study.results.identity, "checkpoint").get("delta_sha256")
    training = record.get("training") if record.get("delta_sha256") == own else None
    return {k: v for k, v in training.items() if k not in _OF_ONE_RUN} if training else None


def _told(studies: Sequence[Ablation], names: Sequence[str]) -> dict[str, Any]:
    """What the summaries say: by name, why the spans of a study are not informative; model and data."""
    summaries = [study.summary for study in studies]
    pairs = zip(names, (one.warning for one in summaries))
    return {
        "warnings": {name: warning for name, warning in pairs if warning is not None},
        "model": common_value(one.model for one in summaries) or "",
        "data": common_value(one.data or task_label(one.task) for one in summaries) or "",
    }


@checked
def compare_data(task: Ablation | str | Path, other: Ablation | str | Path) -> DataComparison:
    """The change of every span on a task together with its change on other data.

    Args:
        task: an ablation on the task that the adapters were trained for, or its results folder.
        other: an ablation of the same checkpoint and spans on data that measures another ability.

    Raises:
        ResultsError: a study is not an ablation, or they differ in checkpoint or variants.
    """
    studies = ablations_of([task, other])
    said = [study.summary for study in studies]
    names = [one.task for one in said]
    if names[0] == names[1]:  # the task of the checkpoint
        names = [one.data or one.task for one in said]
    first, second = names if names[0] != names[1] else _names(studies)
    record = compare_data_sets(studies[0].results, studies[1].results, (first, second))
    return DataComparison(replace(record, warning=studies[0].summary.warning))


def _names(studies: Sequence[Ablation]) -> list[str]:
    """Distinct names of the studies: the shortest endings of their folders' paths that all differ."""
    paths = [study.folder.resolve().parts[::-1] for study in studies]
    # How many folders all of them end with.
    same = next((n for n, parts in enumerate(zip(*paths)) if len(set(parts)) > 1), 0)
    for depth in range(same + 1, max(map(len, paths), default=0) + 1):
        names = ["/".join(parts[same:depth][::-1]) for parts in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{number}: {parts[0]}" for number, parts in enumerate(paths, 1)]
