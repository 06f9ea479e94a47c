"""The function `load`. Only this module reads finished studies back; everything else takes the studies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from adapter_probe.analysis.race_tables import RaceSummary
from adapter_probe.analysis.ranks import RankSummary
from adapter_probe.analysis.strengths import StrengthSummary
from adapter_probe.analysis.study_records import (
    AblationRecord,
    RaceRecord,
    RankRecord,
    StrengthRecord,
    SweepRecord,
    TradeoffRecord,
)
from adapter_probe.analysis.summary import AblationSummary
from adapter_probe.argument_checks import checked
from adapter_probe.errors import ResultsError
from adapter_probe.results import schema
from adapter_probe.results.ablation_files import load_ablation, read_spans
from adapter_probe.results.atomic import read_json
from adapter_probe.results.sealing import check_complete
from adapter_probe.results.trial_files import study_identity

from .ablation_study import Ablation
from .study_base import DrawnStudy, StoredStudy

if TYPE_CHECKING:
    from .init_sweep import InitSweep
    from .race_study import Race
    from .rank_study import Ranks
    from .strength_study import Strengths
    from .tradeoff import Tradeoff


@checked
def load(folder: str | Path) -> Ablation | InitSweep | Tradeoff | Strengths | Ranks | Race:
    """Read the study in a results folder, without torch.

    Args:
        folder: results folder of a study, or a checkpoint with one ablation.

    Raises:
        ResultsError: the folder does not exist, contains no or several studies, or a table is damaged.
    """
    folders = schema.find_results([folder])
    if len(folders) > 1:
        names = ", ".join(str(path) for path in folders)
        raise ResultsError(f"{folder} contains {len(folders)} studies; give one of {names}")
    return _read(folders[0])


def studies_of(given: Sequence[DrawnStudy | str | Path]) -> list[DrawnStudy]:
    """The given studies and those in the given folders, in this order.

    A checkpoint is replaced by the ablations inside it. A folder is read once, and not if its study is given.

    Raises:
        ResultsError: a folder does not exist, contains nothing to draw, or contains a damaged table.
    """
    known = {one.folder.resolve() for one in given if isinstance(one, StoredStudy)}
    studies: list[DrawnStudy] = []
    for one in given:
        if isinstance(one, DrawnStudy):
            studies.append(one)
            continue
        for folder in schema.find_results([one]):
            if folder.resolve() not in known:
                known.add(folder.resolve())
                studies.append(_read(folder))
    return studies


def ablations_of(given: Sequence[Ablation | str | Path]) -> list[Ablation]:
    """The given ablations and those in the given folders, one each.

    Raises:
        ResultsError: as `load`, or a study is not an ablation.
    """
    found = [one if isinstance(one, Ablation) else load(one) for one in given]
    for one, study in zip(given, found):
        if not isinstance(study, Ablation):
            what = f"a study of type {type(study).__name__}"
            if type(study).__name__ == "Race":
                what = "a race, whose spans were not all computed on the same examples"
            raise ResultsError(f"{one} contains {what}; give an ablation")
    return found  # type: ignore[return-value]


def _read(folder: Path) -> Ablation | InitSweep | Tradeoff | Strengths | Ranks | Race:
    check_complete(folder, dispensable=(schema.PREDICTIONS,))
    if (folder / schema.RACE).is_file():
        return _read_race(folder)
    if (folder / schema.SPANS_CSV).is_file():
        return _read_ablation(folder)
    trials = _read_if_there(folder / schema.TRIALS_CSV, schema.TRIALS_COLUMNS)
    if (path := folder / schema.SWEEP_CSV).is_file():
        from .init_sweep import InitSweep

        sweep = schema.read_table(path, schema.SWEEP_COLUMNS)
        return InitSweep(SweepRecord(folder, sweep, trials, study_identity(path)))
    if (path := folder / schema.TRADEOFF_CSV).is_file():
        from .tradeoff import Tradeoff

        table = schema.read_table(path, schema.TRADEOFF_COLUMNS)
        aggregate = _read_if_there(folder / schema.AGGREGATE_CSV, schema.AGGREGATE_COLUMNS)
        sizes = _read_sizes(folder / schema.SIZES_CSV)
        costs = _read_if_there(folder / schema.COSTS_CSV, schema.COSTS_COLUMNS)
        identity = study_identity(path)
        return Tradeoff(TradeoffRecord(folder, table, aggregate, sizes, trials, identity, costs))
    if (path := folder / schema.STRENGTHS_CSV).is_file():
        from .strength_study import Strengths

        strengths = schema.read_table(path, schema.STRENGTHS_COLUMNS)
        summary = StrengthSummary.from_dict(schema.read_summary(folder), folder / schema.SUMMARY)
        said = read_json(folder / schema.STUDY) if (folder / schema.STUDY).is_file() else {}
        return Strengths(StrengthRecord(folder, strengths, summary, said))
    if (path := folder / schema.RANKS_CSV).is_file():
        from .rank_study import Ranks

        ranks = schema.read_table(path, schema.RANKS_COLUMNS)
        spectra = schema.read_table(folder / schema.SPECTRA_CSV, schema.SPECTRA_COLUMNS)
        found = RankSummary.from_dict(schema.read_summary(folder), folder / schema.SUMMARY)
        about = read_json(folder / schema.STUDY) if (folder / schema.STUDY).is_file() else {}
        return Ranks(RankRecord(folder, ranks, spectra, found, about))
    names = ", ".join((schema.SPANS_CSV, schema.SWEEP_CSV, schema.TRADEOFF_CSV))
    raise ResultsError(f"{folder} contains nothing to draw: none of {names} is in it")


def _read_race(folder: Path) -> Race:
    from .race_study import Race

    path = folder / schema.RACE
    summary = RaceSummary.from_dict(read_json(path), path)
    identity, versions = _manifest_of(folder)
    return Race(RaceRecord(folder, read_spans(folder), summary, identity, versions))


def _manifest_of(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The identity of a run and the versions that it was created with, as far as its folder says them."""
    manifest = read_json(folder / schema.MANIFEST) if (folder / schema.MANIFEST).is_file() else {}
    identity, versions = manifest.get("identity"), manifest.get("created_with")
    identity = identity if isinstance(identity, dict) else {"folder": folder.resolve().name}
    return identity, versions if isinstance(versions, dict) else {}


def _read_ablation(folder: Path) -> Ablation:
    identity, versions = _manifest_of(folder)
    record = AblationRecord(
        folder=folder,
        spans=read_spans(folder),
        layers=_read_if_there(folder / schema.LAYERS_CSV, schema.LAYERS_COLUMNS),
        removable=_read_if_there(folder / schema.REMOVABLE_CSV, schema.REMOVABLE_COLUMNS),
        summary=AblationSummary.from_dict(schema.read_summary(folder), folder / schema.SUMMARY),
        identity=identity,
        created_with=versions,
        groups=_read_if_there(folder / schema.GROUPS_CSV, schema.GROUPS_COLUMNS),
    )
    there = (folder / schema.PREDICTIONS).is_file()
    return Ablation(record, partial(load_ablation, folder) if there else None)


def _read_if_there(path: Path, columns: Mapping[str, str]) -> pd.DataFrame | None:
    return schema.read_table(path, columns) if path.is_file() else None


def _read_sizes(path: Path) -> pd.DataFrame | None:
    """The table of sizes, in which every column except the fixed ones is a task."""
    if not path.is_file():
        return None
    tasks = [
        name for name in schema.read_table(path, schema.SIZES_COLUMNS) if name not in schema.SIZES_COLUMNS
    ]
    return schema.read_table(path, {**schema.SIZES_COLUMNS, **dict.fromkeys(tasks, "number")})
