"""A finished study as plain data: tables, main facts and identity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.ablation_tables import ablation_tables
from adapter_probe.analysis.groups import group_scores
from adapter_probe.analysis.ranks import RankSummary
from adapter_probe.analysis.score_changes import of_stack, section_of, unit_of
from adapter_probe.analysis.strengths import JudgedSummary, StrengthSummary
from adapter_probe.analysis.summary import AblationSummary, summarise
from adapter_probe.results import schema
from adapter_probe.results.ablation_files import write_spans
from adapter_probe.results.atomic import write_csv, write_json
from adapter_probe.results.manifests import MADE_FROM, write_note
from adapter_probe.wording import switched_parts


def _file(name: str, columns: Mapping[str, str] | None = None, **about: Any) -> dict[str, Any]:
    """Metadata of a field that a file of the results folder holds: a table, or without columns a summary.

    A field that may be None has a file that may be missing.

    Args:
        columns: columns of a table with their kinds, see `schema.read_columns`.
        about: `others`, the kind of all other columns.
    """
    return {"file": name, "columns": columns, **about}


class StudyRecord:
    """Base class of the records: what `adapter_probe.load` reads, and by which a folder is known.

    Attributes:
        study: name of the public class of the study.
        known_by: the file by which a folder of such a study is known.
    """

    study: ClassVar[str]
    known_by: ClassVar[str]
    folder: Path
    identity: Mapping[str, object]

    @property
    def parts(self) -> str:
        """What the study switches, see `parts_of`."""
        return parts_of(section_of(self.identity, "identity") or self.identity)

    @property
    def table(self) -> Any:
        """The content of the file `known_by`: a table."""
        return next(getattr(self, name) for name, own in self.files().items() if own["file"] == self.known_by)

    @classmethod
    def files(cls) -> dict[str, Mapping[str, Any]]:
        """The fields that files hold, by name: `file`, `columns` and what else `_file` says of them."""
        return {one.name: one.metadata for one in fields(cls) if one.metadata}  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class AblationRecord(StudyRecord):
    """A folder that `adapter-probe ablate` wrote.

    Attributes:
        identity: everything that determines the numbers.
        created_with: library versions, as far as known.
        label: label of its panel in a figure; if empty, the printed name of the task.
        stack: name of the stack of layers that it is about, if it is a part of a study of several.
    """

    study = "Ablation"
    known_by = schema.SPANS_CSV

    folder: Path
    spans: pd.DataFrame = field(metadata=_file(schema.SPANS_CSV, schema.SPANS_COLUMNS))
    layers: pd.DataFrame | None = field(metadata=_file(schema.LAYERS_CSV, schema.LAYERS_COLUMNS))
    removable: pd.DataFrame | None = field(metadata=_file(schema.REMOVABLE_CSV, schema.REMOVABLE_COLUMNS))
    summary: AblationSummary = field(metadata=_file(schema.SUMMARY))
    identity: Mapping[str, object]
    created_with: Mapping[str, object] = field(default_factory=dict)
    groups: pd.DataFrame | None = field(
        default=None, metadata=_file(schema.GROUPS_CSV, schema.GROUPS_COLUMNS)
    )
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
    def unit(self) -> str:
        """The unit of such a map, see `adapter_probe.units`."""
        return unit_of(self.identity)

    @property
    def shares(self) -> pd.DataFrame | None:
        """`layers`, or None if a share is undefined, because spans were kept on or a score is undefined."""
        return None if self.layers is None or self.layers["share_points"].isna().any() else self.layers


@dataclass(frozen=True, eq=False)
class SweepRecord(StudyRecord):
    """A folder that `adapter-probe init-sweep` wrote: its tables, None where one is missing."""

    study = "InitSweep"
    known_by = schema.SWEEP_CSV

    folder: Path
    sweep: pd.DataFrame = field(metadata=_file(schema.SWEEP_CSV, schema.SWEEP_COLUMNS))
    trials: pd.DataFrame | None = field(metadata=_file(schema.TRIALS_CSV, schema.TRIALS_COLUMNS))
    identity: Mapping[str, object]


@dataclass(frozen=True, eq=False)
class TradeoffRecord(StudyRecord):
    """A folder that `adapter-probe tradeoff` wrote: its tables, None where one is missing."""

    study = "Tradeoff"
    known_by = schema.TRADEOFF_CSV

    folder: Path
    tradeoff: pd.DataFrame = field(metadata=_file(schema.TRADEOFF_CSV, schema.TRADEOFF_COLUMNS))
    aggregate: pd.DataFrame | None = field(metadata=_file(schema.AGGREGATE_CSV, schema.AGGREGATE_COLUMNS))
    sizes: pd.DataFrame | None = field(
        metadata=_file(schema.SIZES_CSV, schema.SIZES_COLUMNS, others="number")
    )
    trials: pd.DataFrame | None = field(metadata=_file(schema.TRIALS_CSV, schema.TRIALS_COLUMNS))
    identity: Mapping[str, object]
    costs: pd.DataFrame | None = field(default=None, metadata=_file(schema.COSTS_CSV, schema.COSTS_COLUMNS))


class DegreeRecord(StudyRecord):
    """Scores at several values of one setting, of all adapters and of those of single spans.

    Attributes:
        degree: the column of the table with the values.
        by: what the values are, in words.
        against: what they are compared with.
        asked: the question that the summary's verdict answers.
    """

    degree: ClassVar[str]
    by: ClassVar[str]
    against: ClassVar[str]
    asked: ClassVar[str]
    summary: JudgedSummary


@dataclass(frozen=True, eq=False)
class StrengthRecord(DegreeRecord):
    """A folder that `adapter-probe strength` wrote."""

    study = "Strengths"
    known_by = schema.STRENGTHS_CSV
    degree, by, against, asked = "strength", "strength", "strength 1", "Too strong or too weak?"

    folder: Path
    strengths: pd.DataFrame = field(metadata=_file(schema.STRENGTHS_CSV, schema.STRENGTHS_COLUMNS))
    summary: StrengthSummary = field(metadata=_file(schema.SUMMARY))
    identity: Mapping[str, object]


@dataclass(frozen=True, eq=False)
class RankRecord(DegreeRecord):
    """A folder that `adapter-probe ranks` wrote."""

    study = "Ranks"
    known_by = schema.RANKS_CSV
    degree, by, against = "rank", "kept directions", "all directions"
    asked = "How many directions are needed?"

    folder: Path
    ranks: pd.DataFrame = field(metadata=_file(schema.RANKS_CSV, schema.RANKS_COLUMNS))
    spectra: pd.DataFrame = field(metadata=_file(schema.SPECTRA_CSV, schema.SPECTRA_COLUMNS))
    summary: RankSummary = field(metadata=_file(schema.SUMMARY))
    identity: Mapping[str, object]


RECORDS: tuple[type[StudyRecord], ...] = (
    AblationRecord, SweepRecord, TradeoffRecord, StrengthRecord, RankRecord,
)  # fmt: skip
"""All kinds of studies that have a results folder."""


def write_record(record: StudyRecord, others: Sequence[Callable[[], object]] = ()) -> None:
    """Write a record's files, which `adapter_probe.load` reads.

    The file that the folder is known by comes last, so that what is interrupted is no finished study.

    Args:
        others: what writes further files of the folder.
    """
    write_note(record.folder, MADE_FROM, None)
    (record.folder / record.known_by).unlink(missing_ok=True)
    for write in others:
        write()
    for name, about in sorted(record.files().items(), key=lambda one: one[1]["file"] == record.known_by):
        path, value = record.folder / about["file"], getattr(record, name)
        if path.name == schema.SPANS_CSV:
            write_spans(record.folder, value)
        elif about["columns"] is None:
            write_json(path, value.to_dict())
        elif value is not None:
            write_csv(path, value)
        else:
            path.unlink(missing_ok=True)


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


def parts_of(identity: Mapping[str, object]) -> str:
    """What a study with this identity switches, see `adapter_probe.wording.switched_parts`."""
    return switched_parts(str(section_of(section_of(identity, "checkpoint"), "method").get("name")))
