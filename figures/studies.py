"""Results folders as the figures see them: which study each holds, and its tables."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from adapter_probe.analysis.attribution import interactions, shares
from adapter_probe.analysis.deltas import span_grid
from adapter_probe.errors import ResultsError
from adapter_probe.results.ablation import LAYERS, REMOVABLE, SPANS, read_spans
from adapter_probe.results.atomic import read_json
from adapter_probe.results.trials import STUDY, TRIALS

from . import frames
from .facts import AblationFacts, facts_of_folder
from .frames import read_table
from .report.sources import find_results

SWEEP, TRADEOFF, AGGREGATE, SIZES = "sweep.csv", "tradeoff.csv", "aggregate.csv", "sizes.csv"


@dataclass(frozen=True, eq=False)
class AblationStudy:
    """A folder that `adapter-probe ablate` wrote.

    Attributes:
        folder: where.
        spans: ``spans.csv``; with interactions, also where an older table lacks them, unless they are
            undefined.
        layers: ``layers.csv``, or what of it follows from the spans; None where the shares are undefined.
        removable: ``removable.csv``, or None.
        facts: whose it is.
        identity: what determines the numbers.
    """

    folder: Path
    spans: pd.DataFrame
    layers: pd.DataFrame | None
    removable: pd.DataFrame | None
    facts: AblationFacts
    identity: Mapping[str, object]


@dataclass(frozen=True, eq=False)
class SweepStudy:
    """A folder that `adapter-probe init-sweep` wrote: its tables, None where one is missing."""

    folder: Path
    sweep: pd.DataFrame
    trials: pd.DataFrame | None
    identity: Mapping[str, object]


@dataclass(frozen=True, eq=False)
class TradeoffStudy:
    """A folder that `adapter-probe tradeoff` wrote: its tables, None where one is missing."""

    folder: Path
    tradeoff: pd.DataFrame
    aggregate: pd.DataFrame | None
    sizes: pd.DataFrame | None
    trials: pd.DataFrame | None
    identity: Mapping[str, object]


Study = AblationStudy | SweepStudy | TradeoffStudy


def open_studies(folders: Iterable[str | Path]) -> list[Study]:
    """The studies in the folders; a folder of a checkpoint stands for the ablations inside it.

    Raises:
        ResultsError: a folder does not exist, holds nothing that can be drawn, or holds a damaged table.
    """
    return [open_study(folder) for folder in find_results(folders)]


def open_study(folder: Path) -> Study:
    """The study in one folder.

    Raises:
        ResultsError: as `open_studies`.
    """
    if (folder / SPANS).is_file():
        return _open_ablation(folder)
    trials = _read_if_there(folder / TRIALS, frames.TRIALS)
    if (folder / SWEEP).is_file():
        sweep = read_table(folder / SWEEP, frames.SWEEP, frames.CHOICE)
        return SweepStudy(folder, sweep, trials, _identity(folder, SWEEP))
    if (folder / TRADEOFF).is_file():
        return TradeoffStudy(
            folder,
            read_table(folder / TRADEOFF, frames.TRADEOFF, frames.CHOICE),
            _read_if_there(folder / AGGREGATE, frames.AGGREGATE),
            _read_sizes(folder / SIZES),
            trials,
            _identity(folder, TRADEOFF),
        )
    raise ResultsError(f"{folder} holds nothing to draw: there is none of {SPANS}, {SWEEP}, {TRADEOFF} in it")


def _open_ablation(folder: Path) -> AblationStudy:
    spans = read_spans(folder)
    if spans.empty:
        raise ResultsError(f"{folder / SPANS} has no rows")
    for name in ("significant", "non_monotone"):
        if name in spans and spans[name].dtype != bool:
            raise ResultsError(f"{folder / SPANS}: column {name} should hold true or false")
    facts, identity = facts_of_folder(folder, spans)
    layers = _read_if_there(folder / LAYERS, frames.LAYERS)
    if facts.study == "ablated" and (layers is None or "interaction_points" not in spans):
        spans, layers = _attribute(spans)
    if layers is not None and layers["share_points"].isna().any():
        layers = None  # spans that were kept, or an undefined score among those that were not
    removable = _read_if_there(folder / REMOVABLE, frames.REMOVABLE)
    return AblationStudy(folder, spans, layers, removable, facts, identity)


def _attribute(spans: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Interactions and shares without intervals, for tables that lack them; None where spans are missing."""
    drops = -span_grid(spans)  # [layers, layers]
    if np.isnan(drops[np.triu_indices(len(drops))]).any():
        return spans, None
    first, last = spans["first"].to_numpy(), spans["last"].to_numpy()
    spans = spans.assign(interaction_points=interactions(drops)[first, last])
    layers = pd.DataFrame({"layer": range(len(drops)), "delta_points": -np.diag(drops)})
    return spans, layers.assign(share_points=shares(drops))


def _read_if_there(path: Path, columns: Mapping[str, str]) -> pd.DataFrame | None:
    return read_table(path, columns) if path.is_file() else None


def _read_sizes(path: Path) -> pd.DataFrame | None:
    """The table of sizes: every column beside the fixed ones is a task's."""
    if not path.is_file():
        return None
    tasks = [name for name in read_table(path, frames.SIZES) if name not in frames.SIZES]
    return read_table(path, {**frames.SIZES, **dict.fromkeys(tasks, "number")})


def _identity(folder: Path, table: str) -> dict[str, object]:
    """What the trials have in common, and the hash of the table that is drawn."""
    shared = read_json(folder / STUDY) if (folder / STUDY).is_file() else {"folder": folder.resolve().name}
    digest = hashlib.sha256((folder / table).read_bytes()).hexdigest()
    return {"study": shared, f"{Path(table).stem}_sha256": digest}
