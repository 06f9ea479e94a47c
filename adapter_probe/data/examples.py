"""One split of a task of any kind, read and encoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from adapter_probe.data.batches import EncodedBatches
from adapter_probe.data.encoding import Encoded, encode
from adapter_probe.data.language_tasks import read_language_split
from adapter_probe.data.lm_eval_tasks import is_task, load_tasks
from adapter_probe.data.preferences import encode_preferences
from adapter_probe.data.prompting import Prompting
from adapter_probe.data.questions import Questions
from adapter_probe.data.requests import Requests, requests_of
from adapter_probe.data.requests_encoding import EncodedRequests, Start, encode_requests
from adapter_probe.data.spec import TaskSpec
from adapter_probe.data.splits import Split
from adapter_probe.data.squad import Windows, WindowSettings, encode_windows
from adapter_probe.data.tagged import Tagged, Words, encode_words
from adapter_probe.data.tasks import load_split
from adapter_probe.data.training_texts import encode_training


@dataclass(frozen=True, eq=False)
class Examples:
    """The examples that a model is evaluated or trained on.

    Attributes:
        rows: the rows: labelled texts, questions, or requests for a language model.
        encoded: token ids, one item per text or request; for questions and long texts, one per window.
        windows: the relation of items to questions or requests; None for labelled texts.
        words: where the tags of words are read; None without tags.
        pairs: int64 ``[examples, 2]``, the items whose scores are compared, the larger one first; else None.
    """

    rows: Split | Questions | Requests | Tagged
    encoded: Encoded | EncodedRequests | EncodedBatches
    windows: Windows | None = None
    words: Words | None = None
    pairs: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def labels(self) -> np.ndarray:
        """``[examples]``: class indices, regression targets, paragraph indices, or right choices.

        Of several labels or targets ``[examples, labels]``; of tags the numbers of words.
        """
        if isinstance(self.rows, Requests):
            return np.array([request.gold for request in self.rows.rows], dtype=np.int64)
        return self.rows.paragraph if isinstance(self.rows, Questions) else self.rows.labels


def load_examples(
    tokenizer: Any,
    task: TaskSpec,
    split: str,
    max_length: int,
    *,
    max_examples: int | None = None,
    expect_fingerprint: bool = False,
    prompting: Prompting | None = None,
    start: Start | None = None,
) -> Examples:
    """Read and encode one split.

    Args:
        max_examples: keep at most this many rows, see `load_split`.
        expect_fingerprint: whether to refuse rows that differ from those recorded in the task.
        start: of an encoder-decoder, see `encode_requests`.

    Raises:
        DataError: the rows cannot be read as the task describes, have changed, or `max_length` is too small.
    """
    if task.kind in ("causal", "pairwise"):
        if any(map(is_task, task.files.get(split, ()))):
            requests = load_tasks(task.files[split], split, max_examples, tokenizer, prompting)
        else:
            tables = read_language_split(task, split, expect_fingerprint)
            requests = requests_of(tokenizer, tables, split, max_examples)
        if task.kind == "pairwise":
            encoded, pairs = encode_preferences(tokenizer, requests, max_length)
            return Examples(requests, encoded, pairs=pairs)
        return Examples(requests, encode_requests(tokenizer, requests, max_length, start))
    rows = load_split(task, split, max_examples, expect_fingerprint)
    if isinstance(rows, Tagged):
        encoded, words = encode_words(tokenizer, rows, max_length)
        return Examples(rows, encoded, words=words)
    if isinstance(rows, Questions):
        windows = encode_windows(tokenizer, rows, WindowSettings.within(max_length))
        return Examples(rows, windows.encoded, windows)
    return Examples(rows, encode(tokenizer, rows, max_length))


def load_training_texts(
    tokenizer: Any,
    task: TaskSpec,
    max_length: int,
    max_examples: int | None = None,
    start: Start | None = None,
) -> Examples:
    """Read and encode the training split of a language model; see `load_examples` and `encode_training`."""
    tables = read_language_split(task, "train", expect_fingerprint=True)
    requests = requests_of(tokenizer, tables, "train", max_examples, turns=start is None)
    return Examples(requests, encode_training(tokenizer, requests, max_length, start))
