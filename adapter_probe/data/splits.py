"""The labelled texts of a task."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import numpy as np

from adapter_probe.data.formats import Rows
from adapter_probe.data.labels import class_indices, label_texts, target_numbers
from adapter_probe.data.spec import TaskSpec
from adapter_probe.errors import DataError


@dataclass(frozen=True, eq=False)
class Split:
    """Labelled texts.

    Attributes:
        texts: the first or only text of every example.
        texts_b: the second text of every example, or None for single sentences.
        labels: ``[examples]``, int64 indices into the task's `label_names`, or float64 for regression.
        name: the split: train, validation or test.
        fingerprint: SHA-256 of texts and labels in order.
    """

    texts: tuple[str, ...]
    texts_b: tuple[str, ...] | None
    labels: np.ndarray
    name: str
    fingerprint: str

    def __len__(self) -> int:
        return len(self.texts)


def assemble(spec: TaskSpec, split: str, rows: Rows) -> Split:
    """The texts and labels of a split.

    Raises:
        DataError: a text or label does not fit the task, or all labels are equal.
    """
    texts, texts_b = (
        None if column is None else tuple(rows.texts(column))
        for column in (spec.columns.text, spec.columns.text_b)
    )
    values = label_texts(rows, spec.columns.label)
    if spec.kind == "regression":
        labels = target_numbers(rows, values)
    else:
        labels = class_indices(spec.label_names, rows, values, numbered=spec.preset is not None)
    if split != "test" and (labels == labels[0]).all():
        raise DataError(f"{rows.path}: every {split} label is {values[0]!r}; expected two or more labels")
    return _sealed(spec, split, texts, texts_b, labels)


def some_rows(spec: TaskSpec, loaded: Split, keep: np.ndarray) -> Split:
    """The rows ``keep`` (indices, int64) of a split."""
    texts, texts_b = (
        None if texts is None else tuple(texts[i] for i in keep) for texts in (loaded.texts, loaded.texts_b)
    )
    return _sealed(spec, loaded.name, texts, texts_b, loaded.labels[keep])


def _sealed(
    spec: TaskSpec, split: str, texts: tuple[str, ...], texts_b: tuple[str, ...] | None, labels: np.ndarray
) -> Split:
    """Rows together with their fingerprint, which identifies classes by name instead of index."""
    names = spec.label_names
    readable = labels.tolist() if spec.kind == "regression" else [names[i] for i in labels.tolist()]
    content = json.dumps([texts, texts_b, readable]).encode()
    return Split(texts, texts_b, labels, split, hashlib.sha256(content).hexdigest())
