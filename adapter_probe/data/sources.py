"""Every row of a task's split, wherever it comes from, and a fixed subset of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from adapter_probe.data.formats import Rows
from adapter_probe.data.hub import HubSplit, read_hub
from adapter_probe.data.presets import Preset, find_preset
from adapter_probe.data.readers import read_rows
from adapter_probe.data.spec import TaskSpec
from adapter_probe.errors import DataError


def read_source(entry: str | Path, columns: Sequence[str] = ()) -> Rows:
    """Read a file, or a split on the hub; see `read_rows` and `read_hub`.

    Raises:
        DataError: it cannot be read.
    """
    on_hub = HubSplit.parse(str(entry))
    return read_rows(entry, columns) if on_hub is None else read_hub(on_hub)


def read_split(spec: TaskSpec, split: str) -> list[Rows]:
    """The rows of one split, one table a file.

    Raises:
        DataError: the task has no such split, or it cannot be read.
    """
    if split not in spec.files:
        raise DataError(
            f"task {spec.name!r} has no labelled split {split!r}; it has: {', '.join(spec.files)}"
        )
    tables = [read_source(entry, spec.columns.names) for entry in spec.files[split]]
    preset = None if spec.preset is None else find_preset(spec.preset)
    return judged(preset, tables, spec.columns.label)


def judged(preset: Preset | None, tables: list[Rows], label: str) -> list[Rows]:
    """The tables without the rows that a preset leaves out, which nobody could put a label on."""
    if preset is None or preset.skipped_label is None:
        return tables
    kept = []
    for rows in tables:
        keep = [value != preset.skipped_label for value in rows.column(label)]
        records, numbers = (
            [item for item, wanted in zip(items, keep) if wanted] for items in (rows.records, rows.numbers)
        )
        if not records:
            raise DataError(f"{rows.path}: every label is {preset.skipped_label!r}, which marks none")
        kept.append(replace(rows, records=records, numbers=numbers))
    return kept


def refuse_changed(spec: TaskSpec, split: str, fingerprint: str) -> None:
    """Make sure that the rows are those that the task was made from.

    Raises:
        DataError: they are not.
    """
    expected = spec.fingerprints.get(split)
    if fingerprint != expected:
        before = expected[:8] if expected else "none"
        raise DataError(
            f"{', '.join(spec.files[split])}: the {split} rows of task {spec.name!r} have changed "
            f"(fingerprint {before} -> {fingerprint[:8]})"
        )


def subset(n_rows: int, max_examples: int | None) -> np.ndarray | None:
    """Which rows to keep: always the same ones, drawn at random, in their order; None for all.

    A smaller number keeps a subset of a larger one's.

    Args:
        n_rows: how many there are.
        max_examples: how many to keep at most; None for all.

    Raises:
        DataError: `max_examples` is less than 1.
    """
    if max_examples is not None and max_examples < 1:
        raise DataError(f"the number of examples must be at least 1, got {max_examples}")
    if max_examples is None or max_examples >= n_rows:
        return None
    # Raw generator output is the part of NumPy's random streams that never changes between versions.
    return np.sort(np.argsort(np.random.PCG64(0).random_raw(n_rows), kind="stable")[:max_examples])
