"""A finished study as plain data: tables, main facts and identity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd

from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.ablation_tables import ablation_tables
from adapter_probe.analysis.deltas import of_stack
from adapter_probe.analysis.groups import group_scores
from adapter_probe.analysis.race_tables import RaceSummary
from adapter_probe.analysis.ranks import RankSummary
from adapter_probe.analysis.strengths import StrengthSummary
from adapter_probe.analysis.summary import AblationSummary, summarise


@dataclass(frozen=True, eq=False)
class AblationRecord:
    """A folder that `adapter-probe ablate` wrote.

    Attributes:
        folder: results folder.
        spans: ``spans.csv``.
        layers: ``layers.csv``, or None.
        removable: ``removable.csv``, or None.
        summary: ``summary.json``.
        identity: everything that determines the numbers.
        created_with: library versions, as far as known.
        groups: ``groups.csv``, or None if the data has no groups.
        label: label of its panel in a figure; if empty, the printed name of the task.
        stack: name of the stack of layers that it is about, if it is a part of a study of several.
    """

    folder: Path
    spans: pd.DataFrame
    layers: pd.DataFrame | None
    removable: pd.DataFrame | None
    summary: AblationSummary
    identity: Mapping[str, object]
    created_with: Mapping[str, object] = field(default_factory=dict)
    groups: pd.DataFrame | None = None
    label: str = ""
    stack: str = ""

    @property
    def in_stacks(self) -> list[AblationRecord]:
        """A study of each stack of layers; of a model with one stack, this study itself."""
        if self.summary.stacks is None:
            return [self]
        return [
            replace(
                self,
                stack=name,
                summary=summary,
                **{table: of_stack(getattr(self, table), name) for table in ("spans", "layers", "removable")},
            )
            for name, summary in self.summary.stacks.items()
        ]

    @property
    def by_module(self) -> bool:
        """Whether it is a map of layers and modules, and not a study of spans."""
        return "module" in self.spans

    @property
    def shares(self) -> pd.DataFrame | None:
        """`layers`, or None if a share is undefined, because spans were kept on or a score is undefined."""
        return None if self.layers is None or self.layers["share_points"].isna().any() else self.layers


@dataclass(frozen=True, eq=False)
class SweepRecord:
    """A folder that `adapter-probe init-sweep` wrote: its tables, None where one is missing."""

    folder: Path
    sweep: pd.DataFrame
    trials: pd.DataFrame | None
    identity: Mapping[str, object]


@dataclass(frozen=True, eq=False)
class TradeoffRecord:
    """A folder that `adapter-probe tradeoff` wrote: its tables, None where one is missing."""

    folder: Path
    tradeoff: pd.DataFrame
    aggregate: pd.DataFrame | None
    sizes: pd.DataFrame | None
    trials: pd.DataFrame | None
    identity: Mapping[str, object]
    costs: pd.DataFrame | None = None


@dataclass(frozen=True, eq=False)
class StrengthRecord:
    """A folder that `adapter-probe strength` wrote; see `AblationRecord`.

    Attributes:
        strengths: ``strengths.csv``, see `adapter_probe.analysis.strengths.strength_table`.
        summary: ``summary.json``.
    """

    folder: Path
    strengths: pd.DataFrame
    summary: StrengthSummary
    identity: Mapping[str, object]


@dataclass(frozen=True, eq=False)
class RaceRecord:
    """A folder that `adapter-probe ablate --race` wrote; see `AblationRecord`.

    Attributes:
        spans: ``spans.csv``, see `adapter_probe.analysis.race_tables.race_table`.
        summary: ``race.json``.
    """

    folder: Path
    spans: pd.DataFrame
    summary: RaceSummary
    identity: Mapping[str, object]
    created_with: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class RankRecord:
    """A folder that `adapter-probe ranks` wrote; see `AblationRecord`.

    Attributes:
        ranks: ``ranks.csv``, see `adapter_probe.analysis.ranks.rank_table`.
        spectra: ``spectra.csv``, see `adapter_probe.analysis.ranks.spectra_table`.
        summary: ``summary.json``.
    """

    folder: Path
    ranks: pd.DataFrame
    spectra: pd.DataFrame
    summary: RankSummary
    identity: Mapping[str, object]


StudyRecord = AblationRecord | SweepRecord | TradeoffRecord | StrengthRecord | RankRecord | RaceRecord


def ablation_record(
    results: AblationResults, folder: Path, created_with: Mapping[str, object] | None = None
) -> AblationRecord:
    """The record of a computed ablation, equal to that of `adapter_probe.load` on its files.

    Raises:
        ResultsError: there is no intact row, or a span is in two rows.
    """
    tables, groups = ablation_tables(results), group_scores(results)
    return AblationRecord(
        folder=folder,
        spans=tables.spans,
        layers=tables.layers,
        removable=tables.removable,
        summary=summarise(results, tables, groups),
        identity=results.identity,
        created_with=created_with or {},
        groups=groups,
    )
