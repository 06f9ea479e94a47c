"""Scores, drops, durations, methods and paths as plain text for the terminal, notebooks and `repr`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from adapter_probe import wording
from adapter_probe.models.peft_method import PeftMethod


def aligned_columns(rows: list[tuple[str, str]]) -> str:
    """(name, value) pairs as two aligned columns."""
    width = max(len(left) for left, _ in rows)
    return "\n".join(f"{left:<{width}}  {right}".rstrip() for left, right in rows)


def plain_text(text: str) -> str:
    """Text for the terminal, whose encoding may lack the signs of a figure."""
    return text.replace("−", "-").replace("–", "-")


def score_text(score: float | None, metric: str) -> str:
    """A score as text; see `adapter_probe.wording.score_text`."""
    return plain_text(wording.score_text(score, metric))


def change_text(delta: float | None, metric: str) -> str:
    """A change of a score, in points, as a drop or a gain; see `adapter_probe.wording.drop_text`."""
    return plain_text(wording.drop_text(None if delta is None else -delta, metric))


def change_interval_text(delta: float | None, interval: Sequence[float | None], metric: str) -> str:
    """A change of a score with its interval, in points, as a drop: `drop 1.2 points, 95% interval ...`."""
    if None in interval:
        return change_text(delta, metric)
    low, high = (-end for end in reversed(interval))  # type: ignore[operator]
    drop, ends = wording.drop_name(metric), plain_text(wording.interval_text(low, high, metric))
    return f"{change_text(delta, metric)}, 95% interval of the {drop} {ends}"


def amount_text(points: float, metric: str) -> str:
    """An amount of points as text; see `adapter_probe.wording.amount_text`."""
    return plain_text(wording.amount_text(points, metric))


def file_lists(groups: Iterable[Iterable[str | Path]]) -> str:
    """Paths, those that differ only in the suffix on one line: ``folder/heatmap.{pdf,png}``."""
    endings: dict[Path, list[str]] = {}
    for path in (Path(path) for group in groups for path in group):
        endings.setdefault(path.with_suffix(""), []).append(path.suffix[1:])
    return "\n".join(
        f"{stem}.{found[0]}" if len(found) == 1 else f"{stem}.{{{','.join(found)}}}"
        for stem, found in endings.items()
    )


def method_text(method: dict[str, Any]) -> str:
    """A training method and its settings, as text."""
    if "config" in method:
        of_peft = PeftMethod.from_json(method, "method").text
        name, _, settings = of_peft.partition(":")
        return ", ".join([wording.method_label(name), *filter(None, settings.split(","))])
    # Fine-tuning of no layers on top (k = 0) is a setting too.
    fields = [
        f"{name.replace('_', ' ')} {_field(value)}"
        for name, value in method.items()
        if name not in ("name", "inner") and (value or name == "k")
    ]
    return ", ".join([wording.METHOD_LABELS.get(method["name"], "adapters"), *fields])


def _field(value: Any) -> str:
    if isinstance(value, list):
        return "/".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def duration_text(seconds: float) -> str:
    """A duration in seconds, minutes or hours, as text."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
