"""The labelled texts of a task."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import numpy as np

from adapter_probe.data.formats import Rows
from adapter_probe.data.labels import class_indices, label_sets, label_texts, target_numbers
from adapter_probe.data.spec import TaskSpec


@dataclass(frozen=True, eq=False)
class Split:
    """Labelled texts.

    Attributes:
        texts: the first or only text of every example.
        texts_b: the second text of every example, or None for single sentences.
        labels: ``[examples]``, int64 indices into the task's `label_names`, or float64 for regression; of
            several labels int64 ``[examples, labels]``, 0 or 1.
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


def assemble_split(spec: TaskSpec, split: str, rows: Rows) -> Split:
    """The texts and labels of some rows of a split; the fingerprint has classes by name.

    Without a column of labels, every label is 0.

    Raises:
        DataError: a text or label does not fit the task.
    """
    texts, texts_b = (
        None if column is None else tuple(rows.texts(column))
        for column in (spec.columns.text, spec.columns.text_b)
    )
    if not spec.columns.label:
        content = json.dumps([texts, texts_b]).encode()
        nothing = np.zeros(len(rows.records), dtype=np.int64)
        return Split(texts, texts_b, nothing, split, hashlib.sha256(content).hexdigest())
    names = spec.label_names
    if spec.kind == "multilabel":
        several = label_sets(rows, spec.columns.label, names)
        sets = [[name for name, on in zip(names, row) if on] for row in several.tolist()]
        content = json.dumps([texts, texts_b, sets]).encode()
        return Split(texts, texts_b, several, split, hashlib.sha256(content).hexdigest())
    values = label_texts(rows, spec.columns.label)
    if spec.kind == "regression":
        labels = target_numbers(rows, values)
        readable = labels.tolist()
    else:
        labels = class_indices(names, rows, values, numbered=spec.preset is not None)
        readable = [names[i] for i in labels.tolist()]
    content = json.dumps([texts, texts_b, readable]).encode()
    return Split(texts, texts_b, labels, split, hashlib.sha256(content).hexdigest())
