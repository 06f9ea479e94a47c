"""All rows of a task's split, from any source, and fixed random subsets of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from adapter_probe.data.formats import Rows
from adapter_probe.data.forms import columns_of_file, with_columns
from adapter_probe.data.hub import HubSplit, read_hub
from adapter_probe.data.presets import Preset, find_preset
from adapter_probe.data.readers import read_rows
from adapter_probe.data.task_spec import TaskSpec
from adapter_probe.errors import DataError


def read_source(
    entry: str | Path, columns: Sequence[str] = (), encoding: str = "utf-8", reads: Sequence[str] = ()
) -> Rows:
    """Read a file, or a split on the hub; see `read_rows` and `read_hub`, and of `reads` `with_columns`."""
    on_hub, used = HubSplit.parse(str(entry)), columns_of_file(reads) or columns
    return with_columns(read_rows(entry, used, encoding) if on_hub is None else read_hub(on_hub), reads)


def read_split(spec: TaskSpec, split: str) -> Rows:
    """The rows of one split, from all of its files."""
    if split not in spec.files:
        raise no_such_split(spec, split)
    tables = [
        read_source(entry, spec.columns.names, spec.encoding, spec.reads) for entry in spec.files[split]
    ]
    tables = share_out(tables, split, spec.validation_share)
    preset = None if spec.preset is None else find_preset(spec.preset)
    return Rows.joined(without_undecided(preset, tables, spec.columns.label))


def no_such_split(spec: TaskSpec, split: str) -> DataError:
    """The error for a split that a task does not have."""
    hint = "; give a validation file, or --validation-share 0.1" if split == "validation" else ""
    return DataError(
        f"task {spec.name!r} has no labelled split {split!r}; it has: {', '.join(spec.files)}{hint}"
    )


def share_out(tables: list[Rows], split: str, validation_share: float) -> list[Rows]:
    """The rows of the training files that make the training or the validation split; the same every time.

    Args:
        validation_share: fraction of the rows, drawn at random; 0 if the validation split has separate files.
    """
    if not validation_share or split == "test":
        return tables
    n_rows = sum(len(rows.records) for rows in tables)
    n_validation = round(validation_share * n_rows)
    if not 0 < n_validation < n_rows:
        raise DataError(
            f"a validation share of {validation_share} of {n_rows} rows leaves no rows to "
            f"{'validate on' if n_validation == 0 else 'train on'}"
        )
    drawn = _drawn(n_rows, n_validation, seed=1)
    chosen = np.isin(np.arange(n_rows), drawn, invert=split == "train")
    ends = np.cumsum([len(rows.records) for rows in tables])
    parts = (rows.kept(np.flatnonzero(own)) for rows, own in zip(tables, np.split(chosen, ends[:-1])))
    return [rows for rows in parts if rows.records]


def without_undecided(preset: Preset | None, tables: list[Rows], label: str) -> list[Rows]:
    """The tables without the rows that a preset skips because their annotators reached no majority."""
    if preset is None or preset.skipped_label is None:
        return tables
    kept = []
    for rows in tables:
        labels = rows.column(label)
        kept.append(rows.kept(i for i, value in enumerate(labels) if value != preset.skipped_label))
        if not kept[-1].records:
            raise DataError(f"{rows.path}: every label is {preset.skipped_label!r}, which marks no label")
    return kept


def refuse_changed(spec: TaskSpec, split: str, fingerprint: str) -> None:
    """Check that the rows are those recorded in the task."""
    expected = spec.fingerprints.get(split)
    if fingerprint != expected:
        before = expected[:8] if expected else "none"
        raise DataError(
            f"{', '.join(spec.files[split])}: the {split} rows of task {spec.name!r} have changed "
            f"(fingerprint {before} -> {fingerprint[:8]})"
        )


def subset(n_rows: int, max_examples: int | None) -> np.ndarray | None:
    """Indices of a fixed random subset of rows, in their order; None for all.

    A smaller subset is contained in every larger one.

    Args:
        max_examples: maximum number of rows to keep; None for all.

    Raises:
        DataError: `max_examples` is less than 1.
    """
    if max_examples is not None and max_examples < 1:
        raise DataError(f"the number of examples must be at least 1, got {max_examples}")
    if max_examples is None or max_examples >= n_rows:
        return None
    return np.sort(_drawn(n_rows, max_examples, seed=0))


def _drawn(n_rows: int, n: int, seed: int) -> np.ndarray:
    """Indices of `n` random rows; a smaller draw begins every larger one."""
    # Raw generator output is the only part of NumPy's random streams that is stable between versions.
    return np.argsort(np.random.PCG64(seed).random_raw(n_rows), kind="stable")[:n]
