"""What a figure says about an ablation beside its grid, from the folder's summary."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from adapter_probe import metrics
from adapter_probe.analysis.deltas import Study
from adapter_probe.errors import DataError, ResultsError
from adapter_probe.results.atomic import read_json

SUMMARY, MANIFEST = "summary.json", "manifest.json"
_SCORES = ("intact_score", "removed_delta_points", "majority_score")
_REMOVED = {"both": "all removed", "attention": "all attention removed", "ffn": "all feed-forward removed"}


@dataclass(frozen=True)
class AblationFacts:
    """One ablation in a few words.

    Attributes:
        task: its name as the user gave it.
        split: which data the scores are of.
        study: whether the spans were ablated or kept.
        metric: the score; None where nothing tells.
        n_examples: scored.
        intact: score with every adapter on, a fraction; None where undefined.
        removed_delta: points that the score changes by with everything off; None where undefined.
        removed: what everything is.
        majority: score of the commonest class; None where undefined or unknown.
    """

    task: str
    split: str
    study: Study
    metric: str | None
    n_examples: int
    intact: float | None
    removed_delta: float | None
    removed: str = _REMOVED["both"]
    majority: float | None = None


def facts_of_folder(folder: Path, spans: pd.DataFrame) -> tuple[AblationFacts, dict[str, Any]]:
    """The facts and the identity, from ``summary.json`` and ``manifest.json``, as far as they are there.

    Without a summary, the task goes by the folder's name and the metric is unknown; the rest is in the spans.

    Raises:
        ResultsError: one of the files is damaged.
    """
    manifest = read_json(folder / MANIFEST) if (folder / MANIFEST).is_file() else {}
    identity = manifest.get("identity")
    identity = identity if isinstance(identity, dict) else {"folder": folder.resolve().name}
    settings = identity.get("settings")
    sites = settings.get("sites") if isinstance(settings, dict) else None
    removed = _REMOVED.get(sites, _REMOVED["both"]) if isinstance(sites, str) else _REMOVED["both"]
    if not (folder / SUMMARY).is_file():
        return _facts_of_spans(folder, spans, removed), identity
    path = folder / SUMMARY
    found = read_json(path)
    try:
        metrics.metric_label(found["metric"])
        if found["study"] not in get_args(Study):
            raise ValueError(f"study is {found['study']!r}; allowed: {', '.join(get_args(Study))}")
        intact, lost, majority = (None if found[n] is None else float(found[n]) for n in _SCORES)
        where = str(found["task"]), str(found["split"]), found["study"], found["metric"]
        return AblationFacts(*where, int(found["n_examples"]), intact, lost, removed, majority), identity
    except KeyError as error:
        raise ResultsError(f"{path} is damaged: it lacks {error.args[0]!r}") from None
    except (TypeError, ValueError, DataError) as error:
        raise ResultsError(f"{path} is damaged: {error}") from None


def _facts_of_spans(folder: Path, spans: pd.DataFrame, removed: str) -> AblationFacts:
    """Score less delta is the intact score in every row; the span of all layers is everything removed."""
    intact = float((spans["score"] - spans["delta_points"] / 100).median())
    longest = spans.loc[spans["n_layers"].idxmax(), "delta_points"]
    intact, lost = (None if math.isnan(value) else float(value) for value in (intact, longest))
    n_examples = int(spans["n_examples"].max())
    return AblationFacts(
        folder.resolve().name, "validation", "ablated", None, n_examples, intact, lost, removed
    )
