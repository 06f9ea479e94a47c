"""Tasks whose rows say by their columns what is scored: of language models, and of embeddings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from adapter_probe.data.columns import LABEL_COLUMNS
from adapter_probe.data.formats import Rows
from adapter_probe.data.hub import HubSplit
from adapter_probe.data.requests import FORM_METRICS, form_of, is_of_language_model, read_tables
from adapter_probe.data.similarity import kind_of_rows
from adapter_probe.data.sources import no_such_split, read_source, refuse_changed, share_out
from adapter_probe.data.spec import Columns, TaskSpec, check_name
from adapter_probe.errors import DataError, listed
from adapter_probe.metrics import COMPARISONS, METRICS, Kind


def are_for_language_model(files: Mapping[str, tuple[str, ...]], encoding: str) -> bool:
    """Whether the first file's columns are those of a language model's rows, without a label."""
    entry = next(iter(files.values()))[0]
    if HubSplit.parse(entry) or Path(entry).suffix.lower() not in (".jsonl", ".json"):
        return False
    table = read_source(entry, (), encoding)
    return is_of_language_model(table) and not set(LABEL_COLUMNS) & {name.lower() for name in table.names}


def task_of_rows(
    name: str, kind: Kind, files: dict[str, tuple[str, ...]], metric: str | None, encoding: str,
    validation_share: float,
) -> TaskSpec:  # fmt: skip
    """The task of rows whose columns say what is scored.

    Args:
        kind: ``causal``, ``pairwise`` or ``ranking``.
        metric: metric; by default that of the rows.
        validation_share: share of the training rows that make the validation split.

    Raises:
        DataError: a file cannot be read, the rows are of no known form or of several, or the metric does not
            fit them.
    """
    check_name(name)
    spec = TaskSpec(name, kind, "", (), Columns("", None, ""), files, {}, None, encoding, validation_share)
    tables = {split: read_language_split(spec, split) for split in files}
    forms = {split: _columns_and_form(own[0], kind) for split, own in tables.items()}
    (lead, (columns, form)), *others = forms.items()
    for split, (found, _) in others:
        if found != columns:
            raise DataError(
                f"the {split} rows of {name} have {found}, but the {lead} rows have {columns}; give rows of "
                "one kind"
            )
    allowed = FORM_METRICS[form] if kind == "causal" else METRICS[kind]
    if metric not in (None, *allowed) or metric in COMPARISONS:
        known = ", ".join(one for one in allowed if one not in COMPARISONS)
        raise DataError(f"metric {metric!r} does not fit rows of form {form!r}; allowed: {known}")
    prints = {split: _print_of(own) for split, own in tables.items()}
    return replace(spec, metric=metric or allowed[0], fingerprints=prints)


def read_language_split(spec: TaskSpec, split: str, expect_fingerprint: bool = False) -> list[Rows]:
    """The rows of one split of a language model's task, one table per file.

    Raises:
        DataError: the task has no such split, its files cannot be read, or they have changed.
    """
    if split not in spec.files:
        raise no_such_split(spec, split)
    tables = share_out(read_tables(spec.files[split], spec.encoding), split, spec.validation_share)
    if expect_fingerprint:
        refuse_changed(spec, split, _print_of(tables))
    return tables


def _print_of(tables: Sequence[Rows]) -> str:
    """SHA-256 of rows as they are in their files, in order."""
    content = json.dumps([rows.records for rows in tables], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def _columns_and_form(table: Rows, kind: Kind) -> tuple[str, str]:
    """What has to be the same in all splits, in the words of an error, and the form of the rows."""
    if kind == "causal":
        return form_of(table)
    found = {"pairwise": "negative texts", "ranking": "no negative texts", None: listed(table.names)}
    return found[kind_of_rows(table.names)], kind
