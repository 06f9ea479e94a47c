"""All rows of a task's split, from any source, and fixed random subsets of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from adapter_probe.data.forms import columns_of_file, with_columns
from adapter_probe.data.hub import HubSplit, read_hub
from adapter_probe.data.readers import read_rows, read_text, uncompressed
from adapter_probe.data.rows import Rows, fingerprint_of
from adapter_probe.data.task_spec import TaskSpec
from adapter_probe.errors import DataError


def read_source(
    entry: str | Path, columns: Sequence[str] = (), encoding: str = "utf-8", reads: Sequence[str] = (),
    texts: bool = False,
) -> Rows:  # fmt: skip
    """Read a file, or a split on the hub; see `read_rows` and `read_hub`, and of `reads` `with_columns`.

    Args:
        texts: whether a ``.txt`` file is one text.
    """
    if (on_hub := HubSplit.parse(str(entry))) is not None:
        rows = read_hub(on_hub)
    elif texts and uncompressed(entry).suffix.lower() == ".txt":
        rows = Rows.numbered(entry, "text", [{"text": read_text(Path(entry), encoding)}])
    else:
        rows = read_rows(entry, columns_of_file(reads) or columns, encoding)
    return with_columns(rows, reads)


def read_split(spec: TaskSpec, split: str) -> list[Rows]:
    """The rows of one split, one table per file."""
    if split not in spec.files:
        hint = "; give a validation file, or --validation-share 0.1" if split == "validation" else ""
        raise DataError(
            f"task {spec.name!r} has no labelled split {split!r}; it has: {', '.join(spec.files)}{hint}"
        )
    texts, columns = spec.about.is_language_model, spec.columns.names
    tables = [read_source(one, columns, spec.encoding, spec.reads, texts) for one in spec.files[split]]
    return _share_out(tables, split, spec.validation_share)


def fingerprint_of_tables(tables: Sequence[Rows]) -> str:
    """SHA-256 of all that is in rows of a language model, whose columns say what is scored."""
    return fingerprint_of([rows.records for rows in tables], sort_keys=True)


def _share_out(tables: list[Rows], split: str, validation_share: float) -> list[Rows]:
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


def refuse_changed(spec: TaskSpec, split: str, fingerprint: str) -> None:
    """Check that the rows are those recorded in the task."""
    expected = spec.fingerprints.get(split)
    if fingerprint != expected:
        before = expected[:8] if expected else "none"
        raise DataError(
            f"{', '.join(spec.files[split])}: the {split} rows of task {spec.name!r} have changed "
            f"(fingerprint {before} -> {fingerprint[:8]})"
        )


def subset(n_rows: int, max_examples: int | None) -> list[int]:
    """Indices of a fixed random subset of rows, or of all, in their order.

    A smaller subset is contained in every larger one.
    """
    if max_examples is not None and max_examples < 1:
        raise DataError(f"the number of examples must be at least 1, got {max_examples}")
    if max_examples is None or max_examples >= n_rows:
        return list(range(n_rows))
    return np.sort(_drawn(n_rows, max_examples, seed=0)).tolist()


def _drawn(n_rows: int, n: int, seed: int) -> np.ndarray:
    """Indices of `n` random rows; a smaller draw begins every larger one."""
    # Raw generator output is the only part of NumPy's random streams that is stable between versions.
    return np.argsort(np.random.PCG64(seed).random_raw(n_rows), kind="stable")[:n]
