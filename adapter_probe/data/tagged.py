"""Sentences with a tag per word: their rows, their tokens, and what is counted of predicted tags.

As in the token classification of Transformers, a word's tag is read at its first piece, and words past the
maximum length are left out.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np

from adapter_probe.data.encoding import Encoded, add_arrays, encoded_batch
from adapter_probe.data.formats import TAG_COLUMNS
from adapter_probe.data.forms import DataForm, ExampleRows, refuse_disagreeing
from adapter_probe.data.labels import class_number
from adapter_probe.data.rows import Rows, fingerprint_of, is_text
from adapter_probe.data.task_spec import Columns, TaskSpec
from adapter_probe.errors import DataError, install_extra, listed, must_be, shown
from adapter_probe.formulas import NO_CLASS, NO_WORD
from adapter_probe.kinds.tags import entity_types
from adapter_probe.metrics import about
from adapter_probe.startup import import_needed

_TAGS = (TAG_COLUMNS[1], "ner_tags", "labels")


@dataclass(frozen=True, eq=False)
class Tagged(ExampleRows):
    """Sentences.

    Attributes:
        words: of every sentence.
        tags: of every sentence int64 ``[words]``, places in the task's `label_names`.
        name: the split.
        fingerprint: SHA-256 of words and tags in order.
    """

    words: tuple[tuple[str, ...], ...]
    tags: tuple[np.ndarray, ...]
    name: str
    fingerprint: str

    def __len__(self) -> int:
        return len(self.words)

    @property
    def labels(self) -> np.ndarray:
        """Int64 ``[sentences]``: their numbers of words."""
        return np.array([len(words) for words in self.words])

    def right(self, task: TaskSpec) -> str:
        """See `ExampleRows.right`."""
        return " ".join(task.label_names[tag] for tag in self.tags[0])


@dataclass(frozen=True, eq=False)
class Words:
    """Where the tags of encoded sentences are read, and what they should be.

    Attributes:
        positions: of every sentence int64 ``[words]``, ascending.
        tags: of every sentence int64 ``[words]``.
        places: of every sentence int64 ``[words]``, ascending: which of its words they are; None for all.
    """

    positions: tuple[np.ndarray, ...]
    tags: tuple[np.ndarray, ...]
    places: tuple[np.ndarray, ...] | None = None

    @cached_property
    def most(self) -> int:
        """The number of words of the longest sentence."""
        return max(map(len, self.tags))

    @property
    def by_tag(self) -> np.ndarray:
        """How many words of each sentence have each tag, int64 ``[sentences, tags]``."""
        n_tags = 1 + max(int(own.max()) for own in self.tags)
        return np.stack([np.bincount(own, minlength=n_tags) for own in self.tags])

    def predicted(self, items: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """The likeliest tags, int16 ``[variants, items, most]``.

        `NO_CLASS` where a logit is not finite; -2 after a sentence's end.

        Args:
            items: int ``[items]``, the sentences.
            logits: ``[variants, items, positions, tags]``.
        """
        found = np.full((*logits.shape[:2], self.most), NO_WORD, dtype=np.int16)
        for place, item in enumerate(items):
            own = logits[:, place, self.positions[item]]  # [variants, words, tags]
            finite = np.isfinite(own).all(axis=-1)
            found[:, place, : own.shape[1]] = np.where(finite, own.argmax(axis=-1), NO_CLASS)
        return found

    def by_word(self, tags: np.ndarray) -> np.ndarray:
        """Tags ``[..., sentences, most]`` by the places of words, `NO_WORD` where one is not scored."""
        places = self.places or tuple(map(np.arange, map(len, self.tags)))
        size = 1 + max(int(own[-1]) for own in places)
        found = np.full((*tags.shape[:-1], size), NO_WORD, dtype=np.int16)
        for item, own in enumerate(places):
            found[..., item, own] = tags[..., item, : len(own)]
        return found

    @property
    def true_by_word(self) -> np.ndarray:
        """The right tags, int16 ``[sentences, words]``; see `by_word`."""
        padded = [np.pad(own, (0, self.most - len(own))) for own in self.tags]
        return self.by_word(np.stack(padded))


def has_tags(rows: Rows) -> bool:
    """Whether rows hold words with tags, in lists."""
    first = rows.records[0]
    words, *tags = (isinstance(first.get(name), list) for name in (TAG_COLUMNS[0], *_TAGS))
    return words and any(tags)


def tag_columns(rows: Rows) -> Columns:
    """The columns of words and tags, by their usual names."""
    words, tags = TAG_COLUMNS[0], next((name for name in _TAGS if name in rows.names), None)
    if words not in rows.names or tags not in rows.names:
        raise DataError(
            f"{rows.path}: no words with tags found (columns: {listed(rows.names)}); give rows with 'tokens' "
            "and 'tags', lists of equal length, or a .conll file with a word and its tag in each line"
        )
    others = [name for name in rows.first_values if name in _TAGS and name != tags]
    refuse_disagreeing(rows, tags, others, (words, tags))
    return Columns(words, None, tags)


def form_of_words(spec: TaskSpec) -> DataForm:
    """What is asked of words with tags."""
    return DataForm("words with tags", f"one of `{spec.columns.label}` for each of `{spec.columns.text}`")


def assemble_tagged(spec: TaskSpec, split: str, rows: Rows) -> Tagged:
    """Words and tags of some rows of a split."""
    words, tags = [], []
    columns = zip(rows.column(spec.columns.text), rows.column(spec.columns.label), rows.places)
    for tokens, own, place in columns:
        if not isinstance(tokens, list) or not tokens or not all(map(is_text, tokens)):
            raise DataError(must_be(f"{place}: {spec.columns.text}", "a list of words", tokens))
        if not isinstance(own, list) or len(own) != len(tokens):
            there = f"{len(own)} tags" if isinstance(own, list) else shown(own)
            raise DataError(f"{place}: {len(tokens)} tokens have {there}; give one tag per token")
        words.append(tuple(map(str, tokens)))
        tags.append(np.array([class_number(tag, spec.label_names, place, "tag") for tag in own]))
    readable = [[spec.label_names[tag] for tag in own.tolist()] for own in tags]
    return Tagged(tuple(words), tuple(tags), split, fingerprint_of([words, readable]))


def encode_words(tokenizer: Any, rows: Tagged, max_length: int) -> tuple[Encoded, Words]:
    """Tokenise sentences in one call, and find the first piece of every word."""
    if not getattr(tokenizer, "is_fast", False):
        raise DataError("tags need a fast tokenizer, which says to which word a token belongs")
    batch = tokenizer(
        [list(words) for words in rows.words], is_split_into_words=True, truncation=True,
        max_length=max_length, padding=False, return_attention_mask=False,
    )  # fmt: skip
    positions, tags, places = [], [], []
    for number, own in enumerate(rows.tags):
        of_word = batch.word_ids(number)
        first = {word: place for place, word in reversed(list(enumerate(of_word))) if word is not None}
        kept = sorted(first)
        if not kept:
            raise DataError(f"{rows.name}: no word of sentence {number + 1} has a token; remove it")
        positions.append(np.array([first[word] for word in kept]))
        tags.append(own[kept])
        places.append(np.array(kept))
    words = Words(tuple(positions), tuple(tags), tuple(places))
    return words_with_fingerprint(encoded_batch(batch), words), words


def words_with_fingerprint(encoded: Any, words: Words) -> Any:
    """Encoded examples whose fingerprint covers the words, too."""
    digest = hashlib.sha256(encoded.fingerprint.encode())
    add_arrays(digest, (*words.positions, *words.tags))
    return replace(encoded, fingerprint=digest.hexdigest())


def tag_metric(names: Sequence[str]) -> str:
    """The usual metric for a head with these tags: F1 of entities if they are of entities, else accuracy.

    It is the accuracy also where the package is not installed that finds entities.
    """
    return "entity_f1" if entity_types(names) and find_spec("seqeval") else "tag_accuracy"


def refuse_unscorable(metric: str, names: Sequence[str]) -> None:
    """Refuse the F1 of entities if there are none, or without the package that finds them."""
    if not about(metric).is_of_entities:
        return
    if not entity_types(names):
        raise DataError(
            f"--metric entity_f1 needs tags such as O, B-PER and I-PER, and the head's are {listed(names)}; "
            "give --metric tag_accuracy, or the names of the head's outputs with --label-names"
        )
    try:
        import_needed("seqeval.metrics")
    except ImportError:
        raise DataError(
            f"--metric entity_f1 needs seqeval; {install_extra('tags')}, or give --metric tag_accuracy"
        ) from None


def count_tags(
    metric: str, words: Words, names: Sequence[str], predicted: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """How many entities of each type, or words of each tag, were found, were predicted, and there are.

    Args:
        metric: ``entity_f1`` or ``tag_accuracy``.
        predicted: ``[variants, sentences, most]``, see `Words.predicted`.

    Returns:
        float32 ``[variants, sentences, 2 classes]``: of each class what was found and what was predicted; NaN
        for a sentence with a logit that is not finite. And int64 ``[sentences, classes]``: what there is.
    """
    count, n_classes = _count_words, len(names)
    if about(metric).is_of_entities:
        count, n_classes = _count_entities, len(entity_types(names))
    found = np.empty((*predicted.shape[:2], n_classes, 2), dtype=np.float32)
    there = np.empty((len(words.tags), n_classes), dtype=np.int64)
    for item, gold in enumerate(words.tags):
        rows, which = np.unique(predicted[:, item, : len(gold)], axis=0, return_inverse=True)
        counts = count(rows.astype(np.int64), gold, names)  # [rows, classes, 2], [classes]
        values, there[item] = counts[0].astype(np.float32), counts[1]
        values[(rows == NO_CLASS).any(axis=1)] = np.nan
        found[:, item] = values[which.reshape(-1)]
    return found.reshape(*found.shape[:2], -1), there


def _count_words(rows: np.ndarray, gold: np.ndarray, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    tags = np.arange(len(names))
    said = rows[..., None] == tags  # [rows, words, tags]
    right = said & (gold[:, None] == tags)
    counted = np.stack([right.sum(axis=1), said.sum(axis=1)], axis=-1)
    return counted, np.bincount(gold, minlength=len(names))


def _count_entities(
    rows: np.ndarray, gold: np.ndarray, names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    get_entities = import_needed("seqeval.metrics.sequence_labeling").get_entities
    types = entity_types(names)

    def entities(tags: np.ndarray) -> set[tuple[str, int, int]]:
        return set(get_entities([names[tag] for tag in tags.tolist()]))

    def by_type(found: set[tuple[str, int, int]]) -> list[int]:
        counts = Counter(entity for entity, *_ in found)
        return [counts[name] for name in types]

    true = entities(gold)
    said = [entities(row) for row in rows]
    counted = [list(zip(by_type(one & true), by_type(one))) for one in said]
    return np.array(counted, dtype=np.int64).reshape(len(rows), len(types), 2), np.array(by_type(true))
