"""Scores of every variant on each group of the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from adapter_probe import metrics
from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.score_changes import finite_or_none, intact_row, removed_row
from adapter_probe.custom_metric import CustomMetric
from adapter_probe.results.schema import GROUPS_COLUMNS, MODULE_COLUMN, STACK_COLUMN

INTACT, REMOVED = "intact", "all off"
_Part = tuple[str, int, np.ndarray, np.ndarray]
"""A name, a number of examples, and the predictions and labels that are scored."""


def group_scores(results: AblationResults) -> pd.DataFrame | None:
    """A row a part of the data and variant; None where the examples say of no part.

    Parts within a part, such as ``syntax/island_effects``, are listed after the whole, ``syntax``. Tags and
    several labels are parts themselves: every type of entity, tag or label that occurs.

    Returns:
        Columns `group`; `n_examples` in it; `variant`, the first ones being ``intact`` and ``all off``;
        `first` and `last` layer that are off, empty where the variant is no span; `score`; `delta_points`
        against the intact model.
    """
    if (classes := results.scored.classes_of_labels()) and not isinstance(results.metric, CustomMetric):
        parts = _by_class(results, classes)
    elif results.groups is not None:
        parts = _by_group(results, results.groups)
    else:
        return None
    rows = _rows(results)
    frames = []
    for group, n_examples, predictions, labels in parts:
        scores = np.asarray(metrics.score(results.metric, predictions, labels), dtype=np.float64)
        own = rows.assign(group=group, n_examples=n_examples, score=scores[rows["row"]])
        intact = scores[intact_row(results)]
        frames.append(own.assign(delta_points=metrics.to_points(results.metric, own["score"] - intact)))
    if not frames:
        return None
    columns = [name for name in (*STACK_COLUMN, *MODULE_COLUMN, *GROUPS_COLUMNS) if name in frames[0]]
    return pd.concat(frames, ignore_index=True)[columns]


def _by_class(results: AblationResults, classes: Sequence[str]) -> Iterator[_Part]:
    """Every type, tag or label that occurs; of its examples, those that have it are counted."""
    for number, name in enumerate(classes):
        labels = results.scored_with[:, [number]]
        if labels.any():
            yield name, int((labels > 0).sum()), results.predictions[:, :, [number]], labels


def _by_group(results: AblationResults, groups: np.ndarray) -> Iterator[_Part]:
    names = groups.astype(str)
    wholes = np.array([name.rpartition("/")[0] for name in names.tolist()])
    inside = {name: names == name for name in np.unique(names).tolist() if name}
    inside |= {whole: (wholes == whole) | (names == whole) for whole in np.unique(wholes).tolist() if whole}
    for group in sorted(inside):
        labels = results.scored_with[inside[group]]
        yield group, len(labels), results.predictions[:, inside[group]], labels


def _rows(results: AblationResults) -> pd.DataFrame:
    """The variants: `row` of the results, what to call it, and its layers."""
    intact, removed = intact_row(results), removed_row(results)
    spans = [row for row in np.flatnonzero(results.spans[:, 0] >= 0) if row not in (intact, removed)]
    order = np.array([intact, removed, *spans])
    names = [INTACT, REMOVED, *(results.row_names[row] for row in spans)]
    ends = pd.DataFrame(results.spans[order], columns=["first", "last"], dtype="Int64")
    parts = {"stack": results.stacks, "module": results.modules}
    own = {name: values[order] for name, values in parts.items() if values is not None}
    return ends.mask(ends < 0).assign(row=order, variant=names, **own)


@dataclass(frozen=True)
class GroupScores:
    """The scores on one group of the data: intact, and with every adapter off that the study switches."""

    n_examples: int
    intact_score: float | None
    removed_score: float | None
    removed_delta_points: float | None


def group_summary(groups: pd.DataFrame) -> dict[str, GroupScores]:
    """The scores of every part, by name."""
    intact, removed = (groups[groups["variant"] == name].set_index("group") for name in (INTACT, REMOVED))
    return {
        group: GroupScores(
            int(intact.loc[group, "n_examples"]),
            finite_or_none(intact.loc[group, "score"]),
            finite_or_none(removed.loc[group, "score"]),
            finite_or_none(removed.loc[group, "delta_points"]),
        )
        for group in intact.index
    }
