"""One split of a task of any kind, read and encoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from adapter_probe.data.batches import EncodedBatches
from adapter_probe.data.combining import Agreement, Combine, Numbers
from adapter_probe.data.encoding import Encoded, encode, encoded_with_fingerprint
from adapter_probe.data.generating import Generation, Prompting
from adapter_probe.data.given import data_name
from adapter_probe.data.labels import Split
from adapter_probe.data.lm_eval_tasks import is_task, load_tasks
from adapter_probe.data.prompts import EncodedPrompts, encode_prompts, prompts_of
from adapter_probe.data.question import (
    Question,
    changes_of,
    cut_preferences,
    cut_texts,
    first_row,
    frame_of,
    question_of,
)
from adapter_probe.data.requests import Requests, requests_of
from adapter_probe.data.requests_encoding import EncodedRequests, Start, encode_requests, whole_texts
from adapter_probe.data.similarity import (
    RERANKED,
    TRIPLETS,
    of_retrieval,
    pairs_of,
    reranked_of,
    retrieval_of,
    triplets_of,
)
from adapter_probe.data.spec import TaskSpec
from adapter_probe.data.squad import Questions, Windows, WindowSettings, encode_windows
from adapter_probe.data.tagged import Tagged, Words, encode_words
from adapter_probe.data.tasks import load_with_question, read_language_split
from adapter_probe.data.training_texts import encode_training
from adapter_probe.errors import DataError, listed

Prepared = Callable[[str, str], str]
"""From a text and its role to what a tokenizer is given."""


@dataclass(frozen=True, eq=False)
class Examples:
    """The examples that a model is evaluated or trained on.

    Attributes:
        rows: the rows: labelled texts, questions, or requests for a language model.
        encoded: token ids, one item per text or request; for questions and long texts, one per window.
        windows: the relation of items to questions or requests; None for labelled texts.
        words: where the tags of words are read; None without tags.
        combine: what makes the examples' outputs of those of the items, where an example is several of them.
        notes: what else to say of the rows, one sentence each.
        question: what is asked of which rows; None where only the model's forward knows it.
    """

    rows: Split | Questions | Requests | Tagged
    encoded: Encoded | EncodedRequests | EncodedBatches | EncodedPrompts
    windows: Windows | None = None
    words: Words | None = None
    combine: Combine | None = None
    notes: tuple[str, ...] = ()
    question: Question | None = None

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
    prepared: Prepared | None = None,
    dot: bool = False,
    generation: Generation | None = None,
) -> Examples:
    """Read and encode one split.

    Args:
        max_examples: keep at most this many rows, see `load_split`.
        expect_fingerprint: whether to refuse rows that differ from those recorded in the task.
        start: of an encoder-decoder, see `encode_requests`.
        prepared: of a model of embeddings, what its tokenizer is given of a text with a role; else None.
        dot: whether embeddings are compared by their dot product.
        generation: how answers are written, if they are.

    Raises:
        DataError: the rows cannot be read as the task describes, have changed, or `max_length` is too small.
    """
    if prepared is not None:
        made = _embedded(tokenizer, task, split, max_length, max_examples, prepared, dot, expect_fingerprint)
    elif task.kind == "ranking":
        made = _reranked(tokenizer, task, split, max_length, max_examples, expect_fingerprint)
    elif task.kind in ("causal", "pairwise"):
        made = _of_requests(
            tokenizer, task, split, max_length, max_examples, expect_fingerprint, prompting, start,
            generation or Generation(),
        )  # fmt: skip
    else:
        made = _labelled(tokenizer, task, split, max_length, max_examples, expect_fingerprint)
    return _about(made, task, split, tokenizer)


def _about(examples: Examples, task: TaskSpec, split: str, tokenizer: Any) -> Examples:
    """The examples with a question that names their source and shows the first one as the model gets it."""
    if (question := examples.question) is None:
        return examples
    places = getattr(examples.combine, "places", None)
    own = (0,) if places is None else tuple(place for place in places[0].tolist() if place >= 0)
    first = first_row(tokenizer, examples.encoded, own) + _right(examples.rows, task)
    return replace(examples, question=replace(question, source=data_name(task.files[split]), first=first))


def _right(rows: Split | Questions | Requests | Tagged, task: TaskSpec) -> str:
    """What is right for the first row, where its tokens do not say it."""
    found = ""
    if isinstance(rows, Questions):
        found = listed(dict.fromkeys(answer.text for answer in rows.answers[0]))
    elif isinstance(rows, Requests) and rows.generation is not None:
        found = listed(rows.rows[0].choices)
    elif isinstance(rows, Requests) and len(rows.rows[0].choices) > 1:
        found = f"number {rows.rows[0].gold + 1}"
    elif isinstance(rows, Tagged):
        found = " ".join(task.label_names[tag] for tag in rows.tags[0])
    elif isinstance(rows, Split) and task.kind == "classification" and task.columns.label:
        found = task.label_names[int(rows.labels[0])]
    elif isinstance(rows, Split) and task.kind == "regression":
        found = f"{rows.labels[0]:g}"
    return f"; right: {found}" if found else ""


def _labelled(
    tokenizer: Any, task: TaskSpec, split: str, max_length: int, max_examples: int | None, expect: bool
) -> Examples:
    """Labelled texts, questions, or words with tags."""
    rows, question = load_with_question(task, split, max_examples, expect)
    if isinstance(rows, Tagged):
        encoded, words = encode_words(tokenizer, rows, max_length)
        cut = cut_texts(tokenizer, [list(one) for one in rows.words], None, encoded.lengths, max_length, True)
        return _asking(question, Examples(rows, encoded, words=words), frame_of(tokenizer), *cut)
    if isinstance(rows, Questions):
        windows = encode_windows(tokenizer, rows, WindowSettings.within(max_length))
        more = len(windows) - len(rows)
        cut = (f"contexts are read in {len(windows):,} windows of {max_length:,} tokens",) if more else ()
        made = Examples(rows, windows.encoded, windows)
        return _asking(question, made, frame_of(tokenizer, True), *cut)
    encoded = encode(tokenizer, rows, max_length)
    cut = cut_texts(tokenizer, rows.texts, rows.texts_b, encoded.lengths, max_length)
    return _asking(question, Examples(rows, encoded), frame_of(tokenizer, rows.texts_b is not None), *cut)


def _asking(question: Question, examples: Examples, *changes: str) -> Examples:
    """Examples with their question, and what becomes of the texts; the first one is what is added to them."""
    frame, *others = changes
    framed = f"texts as {frame}" if frame else "no special token is added"
    return replace(examples, question=replace(question, changes=(framed, *others, *question.changes)))


def _reranked(
    tokenizer: Any, task: TaskSpec, split: str, max_length: int, max_examples: int | None, expect: bool
) -> Examples:
    """Queries with documents, each read with its query."""
    tables = read_language_split(task, split, expect)
    rows, pairs, combine, notes = reranked_of(tables, split, max_examples)
    both = Split(tuple(one for one, _ in pairs), tuple(two for _, two in pairs), rows.labels, split, "")
    encoded = encode(tokenizer, both, max_length)
    cut = cut_texts(tokenizer, both.texts, both.texts_b, encoded.lengths, max_length)
    question = question_of(RERANKED, tables, len(pairs))
    made = Examples(rows, encoded, combine=combine)
    return _asking(question, made, frame_of(tokenizer, True), *cut, *notes)


def _of_requests(
    tokenizer: Any, task: TaskSpec, split: str, max_length: int, max_examples: int | None, expect: bool,
    prompting: Prompting | None, start: Start | None, generation: Generation,
) -> Examples:  # fmt: skip
    """Rows of a language model, or preferences of a reward model."""
    if any(map(is_task, task.files.get(split, ()))):
        requests = load_tasks(task.files[split], split, max_examples, tokenizer, prompting)
        if generation.generate:
            raise DataError(
                "--generate is for rows of files; a task of lm-evaluation-harness says itself whether "
                "the model writes, and how"
            )
        question = Question("the requests of the tasks", len(requests), len(requests))
    else:
        tables = read_language_split(task, split, expect)
        if generation.generate:
            requests = prompts_of(tokenizer, tables, split, generation, max_examples)
        else:
            requests = requests_of(tokenizer, tables, split, max_examples)
        assert requests.about is not None, "rows of files have a form"
        question = question_of(requests.about, tables, len(requests))
    if requests.generation is not None:
        made = Examples(requests, encode_prompts(tokenizer, requests, max_length, start))
    elif task.kind == "pairwise":
        encoded, places = encode_preferences(tokenizer, requests, max_length)
        made = Examples(requests, encoded, combine=Numbers(places))
    else:
        made = Examples(requests, encode_requests(tokenizer, requests, max_length, start))
    changes = changes_of(tokenizer, requests, made.encoded, max_length, start)
    if task.kind == "pairwise":
        changes += cut_preferences(tokenizer, requests, max_length)
    if requests.form == "preference":
        scored = "reward" if task.kind == "pairwise" else "log-likelihood"
        question = replace(question, asks=f"{scored} of {question.asks}")
    return replace(made, question=replace(question, changes=changes))


def _embedded(
    tokenizer: Any,
    task: TaskSpec,
    split: str,
    max_length: int,
    max_examples: int | None,
    prepared: Prepared,
    dot: bool,
    expect_fingerprint: bool,
) -> Examples:
    """Examples of embeddings: every distinct text is an item; see `load_examples`."""
    notes: tuple[str, ...] = ()
    if task.kind == "embedding":  # which are compared with the intact model's
        given, question = load_with_question(task, split, max_examples, expect_fingerprint)
        assert isinstance(given, Split), "there are texts"
        texts = [(text, "") for text in dict.fromkeys((*given.texts, *(given.texts_b or ())))]
        rows = replace(given, texts=tuple(text for text, _ in texts), texts_b=None)
        rows, combine = replace(rows, labels=np.zeros(len(texts), dtype=np.int64)), Agreement(dot)
    elif task.kind == "regression":
        rows, question = _scored_pairs(task, split, max_examples, expect_fingerprint)
        texts, combine = pairs_of(rows, dot)
    else:
        tables = read_language_split(task, split, expect_fingerprint)
        if task.kind == "pairwise":
            rows, texts, combine = triplets_of(tables, split, max_examples, dot)
            question = question_of(TRIPLETS, tables, len(rows))
        else:
            rows, texts, combine, notes = retrieval_of(tables, split, max_examples, dot)
            question = of_retrieval(tables, len(rows))
    items = Split(tuple(prepared(text, role) for text, role in texts), None, rows.labels, split, "")
    encoded = encode(tokenizer, items, max_length)
    cut = cut_texts(tokenizer, items.texts, None, encoded.lengths, max_length)
    return _asking(question, Examples(rows, encoded, combine=combine), frame_of(tokenizer), *cut, *notes)


def _scored_pairs(
    task: TaskSpec, split: str, max_examples: int | None, expect_fingerprint: bool
) -> tuple[Split, Question]:
    rows, question = load_with_question(task, split, max_examples, expect_fingerprint)
    if not isinstance(rows, Split) or rows.texts_b is None:
        raise DataError(
            f"{listed(task.files[split])}: embeddings are compared, and the rows have one text each; "
            "give sentence1, sentence2 and score, or anchor, positive and negative"
        )
    own = task.columns
    asks = f"similarity of `{own.text}` and `{own.text_b}`, beside `{own.label}`"
    return rows, replace(question, asks=asks)


def load_training(
    tokenizer: Any,
    task: TaskSpec,
    max_length: int,
    max_examples: int | None = None,
    start: Start | None = None,
) -> Examples:
    """Read and encode a training split; see `load_examples` and `encode_training`."""
    if task.kind != "causal":
        return load_examples(
            tokenizer, task, "train", max_length, max_examples=max_examples, expect_fingerprint=True
        )
    tables = read_language_split(task, "train", expect_fingerprint=True)
    requests = requests_of(tokenizer, tables, "train", max_examples, turns=start is None)
    assert requests.about is not None, "rows of files have a form"
    made = Examples(requests, encode_training(tokenizer, requests, max_length, start))
    changes = changes_of(tokenizer, requests, made.encoded, max_length, start)
    question = replace(question_of(requests.about, tables, len(requests)), changes=changes)
    return _about(replace(made, question=question), task, "train", tokenizer)


def encode_preferences(tokenizer: Any, requests: Requests, max_length: int) -> tuple[Encoded, np.ndarray]:
    """Tokenise preferences as TRL does for a reward model, equal texts once.

    Args:
        max_length: maximum number of tokens; longer texts are truncated at the end.

    Returns:
        the texts; and int64 ``[examples, 2]``, which of them are the chosen and the rejected one.

    Raises:
        DataError: the rows are no preferences, or a text has no tokens.
    """
    if requests.form != "preference":
        raise DataError(f"{requests.name}: the rows are no preferences; give columns chosen and rejected")
    ids = [
        tokenizer(text, add_special_tokens=request.framed, truncation=True, max_length=max_length)
        for request in requests.rows
        for text in whole_texts(tokenizer, request)
    ]
    return encoded_pairs([one["input_ids"] for one in ids], [one.get("token_type_ids") for one in ids])


def encoded_pairs(
    ids: Sequence[Sequence[int]], types: Sequence[Sequence[int] | None] = ()
) -> tuple[Encoded, np.ndarray]:
    """Token ids of texts, of which every two make an example, equal texts once; see `encode_preferences`."""
    places: dict[tuple[int, ...], int] = {}
    items = [places.setdefault(tuple(one), len(places)) for one in ids]
    if empty := [number for number, one in enumerate(ids) if not len(one)]:
        raise DataError(f"row {empty[0] // 2 + 1} has a text without tokens")
    first = {item: number for number, item in reversed(list(enumerate(items)))}
    kept = [first[item] for item in range(len(places))]
    arrays = tuple(np.array(ids[number], dtype=np.int64) for number in kept)
    own = [types[number] for number in kept] if types and types[0] is not None else None
    typed = None if own is None else tuple(np.array(one, dtype=np.int64) for one in own)
    return encoded_with_fingerprint(arrays, typed), np.array(items, dtype=np.int64).reshape(-1, 2)
