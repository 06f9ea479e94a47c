"""A finished study as plain data: tables, main facts and identity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from adapter_probe import metrics
from adapter_probe.analysis.ablation_tables import ablation_tables
from adapter_probe.analysis.deltas import StudyKind
from adapter_probe.analysis.groups import group_scores, group_summary
from adapter_probe.analysis.peft_settings import next_lora
from adapter_probe.analysis.summary import summarise
from adapter_probe.errors import DataError, ResultsError
from adapter_probe.results.ablation_files import AblationResults
from adapter_probe.results.schema import SUMMARY
from adapter_probe.wording import ALL_OFF

_SCORES = ("intact_score", "removed_delta_points", "majority_score")
_SITES = {"attention": "attention", "ffn": "feed-forward"}

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
        data: name of the evaluated data where they are not a split of the checkpoint's own task; else empty.
    """

    task: str
    split: str
    study: StudyKind
    metric: str | None
    n_examples: int
    intact: float | None
    removed_delta: float | None
    removed: str = ALL_OFF
    majority: float | None = None
    layer_parameters: tuple[int, ...] | None = None
    baseline: str = "majority class"
    warning: str | None = None
    label: str = ""
    data: str = ""


@dataclass(frozen=True, eq=False)
class AblationRecord:
    """A folder that `adapter-probe ablate` wrote.

    Attributes:
        folder: results folder.
        spans: ``spans.csv``.
        layers: ``layers.csv``, or None.
        removable: ``removable.csv``, or None.
        overview: main facts.
        identity: everything that determines the numbers.
        summary: ``summary.json``.
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


def ablation_record(
    results: AblationResults, folder: Path, created_with: Mapping[str, object] | None = None
) -> AblationRecord:
    """The record of a computed ablation, equal to that of `adapter_probe.load` on its files.

    Args:
        results: the ablation, complete.
        folder: folder of its files.
        created_with: library versions.

    Raises:
        ResultsError: there is no intact row, or a span is in two rows.
    """
    tables, settings = ablation_tables(results), results.settings
    found: dict[str, object] = {
        "task": settings["task"],
        "split": settings["split"],
        **summarise(results, tables),
    }
    if part := _switched_part(settings):
        found["switched"] = part
    if settings.get("data"):
        found["data"] = settings["data"]
    if results.metric == "f1":
        found["positive_class"] = results.label_names[-1]
    if "engine" in settings:
        found["engine"] = settings["engine"]
    if "guard" in settings:
        found["guard"] = settings["guard"]
    if lines := next_lora(found, tables.layers, settings, (~results.masks).any(axis=0)):
        found["peft"] = lines
    if (groups := group_scores(results)) is not None:
        found["groups"] = group_summary(groups)
    return AblationRecord(
        folder=folder,
        spans=tables.spans,
        layers=tables.layers,
        removable=tables.removable,
        overview=overview_of(found, folder / SUMMARY, results.identity),
        identity=results.identity,
        summary=found,
        created_with=created_with or {},
        groups=groups,
    )


def overview_of(found: Mapping[str, Any], path: Path, identity: Mapping[str, object]) -> AblationOverview:
    """The overview from a summary.

    Raises:
        ResultsError: the summary, read from `path`, is damaged.
    """
    try:
        metrics.metric_label(found["metric"])
        if found["study"] not in get_args(StudyKind):
            raise ValueError(f"study is {found['study']!r}; allowed: {', '.join(get_args(StudyKind))}")
        intact, lost, majority = (None if found[n] is None else float(found[n]) for n in _SCORES)
        warning, data = (_text_or_none(found.get(name), name) for name in ("warning", "data"))
        return AblationOverview(
            task=str(found["task"]),
            split=str(found["split"]),
            study=found["study"],
            metric=found["metric"],
            n_examples=int(found["n_examples"]),
            intact=intact,
            removed_delta=lost,
            removed=removed_of(identity),
            majority=majority,
            layer_parameters=_layer_parameters(found.get("layer_parameters"), found.get("n_layers")),
            baseline=_BASELINES.get(str(found.get("kind")), AblationOverview.baseline),
            warning=warning,
            data=data or "",
        )
    except KeyError as error:
        raise ResultsError(f"{path} is damaged: it lacks {error.args[0]!r}") from None
    except (TypeError, ValueError, DataError) as error:
        raise ResultsError(f"{path} is damaged: {error}") from None


def _text_or_none(value: object, name: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} should be a text or null, got {value!r}")
    return value


def _layer_parameters(value: object, n_layers: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    counts = value if isinstance(value, list) and len(value) == n_layers else [None]
    if not all(type(n) is int and n >= 0 for n in counts):
        raise ValueError(f"layer_parameters should be {n_layers} counts, got {value!r}")
    return tuple(counts)


def removed_of(identity: Mapping[str, object]) -> str:
    """Description of everything off."""
    part = _switched_part(section_of(identity, "settings"))
    if not part:
        return ALL_OFF
    return f"{part if 'layers' in part else f'all {part}'} switched off"


def _switched_part(settings: Mapping[str, object]) -> str:
    """The part of the adapters that an ablation switches: ``attention of layers 8-23``; empty for all."""
    sites, layers = _SITES.get(str(settings.get("sites")), ""), settings.get("layers")
    of_layers = f"layers {layers}" if layers else ""
    return " of ".join(part for part in (sites, of_layers) if part)


def section_of(identity: Mapping[str, object], name: str) -> Mapping[str, Any]:
    """A section of an ablation's identity, such as its settings; empty where the identity lacks it."""
    section = identity.get(name)
    return section if isinstance(section, Mapping) else {}
