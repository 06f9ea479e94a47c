"""A finished study as plain data: tables and identity, computed or read from a folder."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd

from adapter_probe import metrics
from adapter_probe.analysis.attribution import interactions, shares
from adapter_probe.analysis.deltas import StudyKind, span_grid
from adapter_probe.analysis.groups import group_scores, group_summary
from adapter_probe.analysis.peft_settings import next_lora
from adapter_probe.analysis.summary import summary
from adapter_probe.analysis.tables import ablation_tables
from adapter_probe.errors import DataError, ResultsError
from adapter_probe.results import schema
from adapter_probe.results.ablation_files import AblationResults, read_spans
from adapter_probe.results.atomic import read_json
from adapter_probe.results.schema import find_results, read_table
from adapter_probe.results.sealing import check_complete, read_study

_SCORES = ("intact_score", "removed_delta_points", "majority_score")
_REMOVED = {"both": "all removed", "attention": "all attention removed", "ffn": "all feed-forward removed"}

_BASELINES = {"causal": "random choice", "regression": "constant answer"}


@dataclass(frozen=True)
class AblationOverview:
    """The main facts of an ablation.

    Attributes:
        task: name of the task as given by the user.
        split: evaluated split.
        study: whether the spans were ablated or kept on.
        metric: metric of the scores; None if unknown.
        n_examples: number of evaluated examples.
        intact: score with every adapter on, a fraction; None if undefined.
        removed_delta: change of the score with everything off, points; None if undefined.
        removed: description of everything off.
        majority: score of the most frequent class, or of a random choice; None if undefined or unknown.
        layer_parameters: number of parameters in the adapters of each layer that the study switches
            ``[layers]``; None if layers share adapters or it is not known.
        baseline: name of the baseline whose score is `majority`.
        warning: why the differences between spans mean nothing; None where they mean something, or where the
            folder does not say.
        label: label of its panel in a figure; if empty, the printed name of the task.
    """

    task: str
    split: str
    study: StudyKind
    metric: str | None
    n_examples: int
    intact: float | None
    removed_delta: float | None
    removed: str = _REMOVED["both"]
    majority: float | None = None
    layer_parameters: tuple[int, ...] | None = None
    baseline: str = "majority class"
    warning: str | None = None
    label: str = ""


@dataclass(frozen=True, eq=False)
class AblationRecord:
    """A folder that `adapter-probe ablate` wrote.

    Attributes:
        folder: results folder.
        spans: ``spans.csv``; with interactions, also where an older table lacks them, unless they are
            undefined.
        layers: ``layers.csv``, or what of it follows from the spans; None where nothing does.
        removable: ``removable.csv``, or None.
        overview: main facts.
        identity: everything that determines the numbers.
        summary: ``summary.json``; empty if it is missing.
        created_with: library versions, as far as known.
        groups: ``groups.csv``, or None if the data has no groups.
    """

    folder: Path
    spans: pd.DataFrame
    layers: pd.DataFrame | None
    removable: pd.DataFrame | None
    overview: AblationOverview
    identity: Mapping[str, object]
    summary: Mapping[str, object]
    created_with: Mapping[str, object] = field(default_factory=dict)
    groups: pd.DataFrame | None = None

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


StudyRecord = AblationRecord | SweepRecord | TradeoffRecord


def ablation_record(results: AblationResults, folder: Path) -> AblationRecord:
    """The record of a computed ablation, equal to that of `load_record` on its files.

    Args:
        results: the ablation, complete.
        folder: folder of its files.

    Raises:
        ResultsError: there is no intact row, or a span is in two rows.
    """
    tables, settings = ablation_tables(results), results.settings
    found: dict[str, object] = {
        "task": settings["task"],
        "split": settings["split"],
        **summary(results, tables),
    }
    if "guard" in settings:
        found["guard"] = settings["guard"]
    if lines := next_lora(found, tables.layers, settings, (~results.masks).any(axis=0)):
        found["peft"] = lines
    if (groups := group_scores(results)) is not None:
        found["groups"] = group_summary(groups)
    overview = _overview(found, folder / schema.SUMMARY, results.identity)
    told = tables.spans, tables.layers, tables.removable, overview, results.identity, found
    return AblationRecord(folder, *told, groups=groups)


def load_records(folders: Iterable[str | Path]) -> list[StudyRecord]:
    """The studies in the folders; a checkpoint is replaced by the ablations inside it.

    Raises:
        ResultsError: a folder does not exist, contains nothing to draw, or contains a damaged table.
    """
    return [load_record(folder) for folder in find_results(folders)]


def load_record(folder: Path) -> StudyRecord:
    """The study in one folder.

    Raises:
        ResultsError: as `load_records`.
    """
    check_complete(folder, dispensable=(schema.PREDICTIONS,))
    if (folder / schema.SPANS_CSV).is_file():
        return _open_ablation(folder)
    trials = _read_if_there(folder / schema.TRIALS_CSV, schema.TRIALS_COLUMNS, schema.OPTIONAL_TRIALS_COLUMNS)
    if (folder / schema.SWEEP_CSV).is_file():
        sweep = read_table(folder / schema.SWEEP_CSV, schema.SWEEP_COLUMNS, schema.CHOICE_COLUMNS)
        return SweepRecord(folder, sweep, trials, study_identity(folder, schema.SWEEP_CSV))
    if (folder / schema.TRADEOFF_CSV).is_file():
        return TradeoffRecord(
            folder,
            read_table(folder / schema.TRADEOFF_CSV, schema.TRADEOFF_COLUMNS, schema.CHOICE_COLUMNS),
            _read_if_there(folder / schema.AGGREGATE_CSV, schema.AGGREGATE_COLUMNS),
            _read_sizes(folder / schema.SIZES_CSV),
            trials,
            study_identity(folder, schema.TRADEOFF_CSV),
        )
    names = ", ".join((schema.SPANS_CSV, schema.SWEEP_CSV, schema.TRADEOFF_CSV))
    raise ResultsError(f"{folder} contains nothing to draw: none of {names} is in it")


def _open_ablation(folder: Path) -> AblationRecord:
    spans = read_spans(folder)
    if spans.empty:
        raise ResultsError(f"{folder / schema.SPANS_CSV} has no rows")
    for name in ("significant", "non_monotone"):
        if name in spans and spans[name].dtype != bool:
            raise ResultsError(f"{folder / schema.SPANS_CSV}: column {name} should contain true or false")
    manifest = read_json(folder / schema.MANIFEST) if (folder / schema.MANIFEST).is_file() else {}
    identity = manifest.get("identity")
    identity = identity if isinstance(identity, dict) else {"folder": folder.resolve().name}
    found = schema.read_summary(folder)
    overview = (
        _overview(found, folder / schema.SUMMARY, identity)
        if found
        else _overview_of_spans(folder, spans, identity)
    )
    layers = _read_if_there(folder / schema.LAYERS_CSV, schema.LAYERS_COLUMNS)
    if overview.study == "ablated" and (layers is None or "interaction_points" not in spans):
        spans, layers = _attribute(spans)
    removable = _read_if_there(folder / schema.REMOVABLE_CSV, schema.REMOVABLE_COLUMNS)
    versions = manifest.get("created_with")
    versions = versions if isinstance(versions, dict) else {}
    groups = _read_if_there(folder / schema.GROUPS_CSV, schema.GROUPS_COLUMNS)
    return AblationRecord(folder, spans, layers, removable, overview, identity, found, versions, groups)


def _attribute(spans: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """Interactions and shares without intervals, for tables that lack them; None if spans are missing."""
    drops = -span_grid(spans)  # [layers, layers]
    if np.isnan(drops[np.triu_indices(len(drops))]).any():
        return spans, None
    first, last = spans["first"].to_numpy(), spans["last"].to_numpy()
    spans = spans.assign(interaction_points=interactions(drops)[first, last])
    layers = pd.DataFrame({"layer": range(len(drops)), "delta_points": -np.diag(drops)})
    return spans, layers.assign(share_points=shares(drops))


def _read_if_there(
    path: Path, columns: Mapping[str, str], optional: Mapping[str, str] | None = None
) -> pd.DataFrame | None:
    return read_table(path, columns, optional) if path.is_file() else None


def _read_sizes(path: Path) -> pd.DataFrame | None:
    """The table of sizes, in which every column except the fixed ones is a task."""
    if not path.is_file():
        return None
    tasks = [name for name in read_table(path, schema.SIZES_COLUMNS) if name not in schema.SIZES_COLUMNS]
    return read_table(path, {**schema.SIZES_COLUMNS, **dict.fromkeys(tasks, "number")})


def study_identity(folder: Path, table: str) -> dict[str, object]:
    """The shared settings of the trials, and the hash of the table that is drawn."""
    shared = (
        read_study(folder / schema.STUDY)
        if (folder / schema.STUDY).is_file()
        else {"folder": folder.resolve().name}
    )
    digest = hashlib.sha256((folder / table).read_bytes()).hexdigest()
    return {"study": shared, f"{Path(table).stem}_sha256": digest}


def _overview(found: Mapping[str, Any], path: Path, identity: Mapping[str, object]) -> AblationOverview:
    """The overview from a summary.

    Raises:
        ResultsError: the summary, read from `path`, is damaged.
    """
    try:
        metrics.metric_label(found["metric"])
        if found["study"] not in get_args(StudyKind):
            raise ValueError(f"study is {found['study']!r}; allowed: {', '.join(get_args(StudyKind))}")
        intact, lost, majority = (None if found[n] is None else float(found[n]) for n in _SCORES)
        about = str(found["task"]), str(found["split"]), found["study"], found["metric"]
        parameters = _layer_parameters(found.get("layer_parameters"), found.get("n_layers"))
        said = int(found["n_examples"]), intact, lost, _removed(identity), majority, parameters
        baseline = _BASELINES.get(str(found.get("kind")), AblationOverview.baseline)
        return AblationOverview(*about, *said, baseline, _text_or_none(found.get("warning")))
    except KeyError as error:
        raise ResultsError(f"{path} is damaged: it lacks {error.args[0]!r}") from None
    except (TypeError, ValueError, DataError) as error:
        raise ResultsError(f"{path} is damaged: {error}") from None


def _text_or_none(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"warning should be a text or null, got {value!r}")
    return value


def _layer_parameters(value: object, n_layers: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    counts = value if isinstance(value, list) and len(value) == n_layers else [None]
    if not all(type(n) is int and n >= 0 for n in counts):
        raise ValueError(f"layer_parameters should be {n_layers} counts, got {value!r}")
    return tuple(counts)


def _overview_of_spans(folder: Path, spans: pd.DataFrame, identity: Mapping[str, object]) -> AblationOverview:
    """The overview without a summary: the task is named after the folder, and the metric is unknown.

    Score less delta is the intact score in every row; the span of all layers is everything removed.
    """
    intact = float((spans["score"] - spans["delta_points"] / 100).median())
    longest = spans.loc[spans["n_layers"].idxmax(), "delta_points"]
    intact, lost = (None if math.isnan(value) else float(value) for value in (intact, longest))
    about = folder.resolve().name, "validation", "ablated", None, int(spans["n_examples"].max())
    return AblationOverview(*about, intact, lost, _removed(identity))


def _removed(identity: Mapping[str, object]) -> str:
    return _REMOVED.get(str(settings_of(identity).get("sites")), _REMOVED["both"])


def settings_of(identity: Mapping[str, object]) -> Mapping[str, object]:
    """The settings of an ablation; empty where its identity has none."""
    settings = identity.get("settings")
    return settings if isinstance(settings, Mapping) else {}
