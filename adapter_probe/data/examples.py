"""One split of a task of any kind, read and encoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from adapter_probe.data.batches import EncodedBatches
from adapter_probe.data.combining import Agreement, Combine, Numbers
from adapter_probe.data.encoding import Encoded, encode, encoded_with_fingerprint
from adapter_probe.data.generating import Generation, Prompting
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
from adapter_probe.data.rows import Rows
from adapter_probe.data.similarity import (
    RERANKED,
    TRIPLETS,
    Texts,
    of_retrieval,
    pairs_of,
    reranked_of,
    retrieval_of,
    triplets_of,
)
from adapter_probe.data.sources import fingerprint_of_tables, read_split, refuse_changed
from adapter_probe.data.squad import Questions, Windows, WindowSettings, encode_windows
from adapter_probe.data.tagged import Tagged, Words, encode_words
from adapter_probe.data.task_of_files import data_name
from adapter_probe.data.task_spec import TaskSpec
from adapter_probe.data.tasks import load_with_question
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
        return self.rows.labels


@dataclass(frozen=True)
class Reading:
    """One split of a task, to be read and encoded.

    Attributes:
        max_length: the most tokens that the model reads of an example.
        max_examples: keep at most this many rows, see `load_split`.
        expect_fingerprint: whether to refuse rows that differ from those recorded in the task.
        prompting: how tasks of lm-evaluation-harness are asked.
        start: of an encoder-decoder, see `encode_requests`.
        prepared: of a model of embeddings, what its tokenizer is given of a text with a role; else None.
        dot: whether embeddings are compared by their dot product.
        generation: how answers are written, if they are.
        trains: whether a language model is to be trained on them, see `encode_training`.
    """

    tokenizer: Any
    task: TaskSpec
    split: str
    max_length: int
    max_examples: int | None = None
    expect_fingerprint: bool = False
    prompting: Prompting | None = None
    start: Start | None = None
    prepared: Prepared | None = None
    dot: bool = False
    generation: Generation = field(default_factory=Generation)
    trains: bool = False

    def examples(self) -> Examples:
        """Read and encode them."""
        read = _READ.get(self.task.kind, _labelled) if self.prepared is None else _embedded
        return self.about(read(self))

    def about(self, examples: Examples) -> Examples:
        """The examples with a question that names their source and shows the first one."""
        if (question := examples.question) is None:
            return examples
        places = getattr(examples.combine, "places", None)
        own = (0,) if places is None else tuple(place for place in places[0].tolist() if place >= 0)
        first, right = first_row(self.tokenizer, examples.encoded, own), examples.rows.right(self.task)
        first += f"; right: {right}" if right else ""
        source = data_name(self.task.files[self.split])
        return replace(examples, question=replace(question, source=source, first=first))

    def rows(self) -> tuple[Split | Questions | Tagged, Question]:
        """Labelled rows, and their question."""
        return load_with_question(self.task, self.split, self.max_examples, self.expect_fingerprint)

    def tables(self) -> list[Rows]:
        """Rows of any other kind, one table per file."""
        tables = read_split(self.task, self.split)
        if self.expect_fingerprint:
            refuse_changed(self.task, self.split, fingerprint_of_tables(tables))
        return tables


def _asking(question: Question, examples: Examples, *changes: str) -> Examples:
    """Examples with their question, and what becomes of the texts; the first one is what is added to them."""
    frame, *others = changes
    framed = f"texts as {frame}" if frame else "no special token is added"
    return replace(examples, question=replace(question, changes=(framed, *others, *question.changes)))


def _of_texts(
    asked: Reading, texts: Split, examples: Split, question: Question, combine: Combine | None = None
) -> Examples:
    """Examples whose items are texts, or pairs of them."""
    encoded = encode(asked.tokenizer, texts, asked.max_length)
    cut = cut_texts(asked.tokenizer, texts.texts, texts.texts_b, encoded.lengths, asked.max_length)
    frame = frame_of(asked.tokenizer, texts.texts_b is not None)
    return _asking(question, Examples(examples, encoded, combine=combine), frame, *cut)


def _labelled(asked: Reading) -> Examples:
    """Texts with a label, several labels or a number."""
    rows, question = asked.rows()
    return _of_texts(asked, rows, rows, question)


def _tagged(asked: Reading) -> Examples:
    """Words with tags."""
    rows, question = asked.rows()
    encoded, words = encode_words(asked.tokenizer, rows, asked.max_length)
    texts = [list(one) for one in rows.words]
    cut = cut_texts(asked.tokenizer, texts, None, encoded.lengths, asked.max_length, True)
    return _asking(question, Examples(rows, encoded, words=words), frame_of(asked.tokenizer), *cut)


def _questions(asked: Reading) -> Examples:
    """Questions on contexts, which are read in windows."""
    rows, question = asked.rows()
    most = asked.max_length
    windows = encode_windows(asked.tokenizer, rows, WindowSettings.within(most))
    many = len(windows) > len(rows)
    cut = (f"contexts are read in {len(windows):,} windows of {most:,} tokens",) if many else ()
    return _asking(question, Examples(rows, windows.encoded, windows), frame_of(asked.tokenizer, True), *cut)


def _reranked(asked: Reading) -> Examples:
    """Queries with documents, each read with its query."""
    tables = asked.tables()
    rows, pairs, combine, notes = reranked_of(tables, asked.split, asked.max_examples)
    both = Split(tuple(one for one, _ in pairs), tuple(two for _, two in pairs), rows.labels, asked.split, "")
    question = replace(question_of(RERANKED, tables, len(pairs)), changes=notes)
    return _of_texts(asked, both, rows, question, combine)


def _requests(asked: Reading) -> tuple[Requests, Question]:
    """Rows whose columns say what is scored, or tasks of lm-evaluation-harness."""
    tokenizer, split, most, generation = asked.tokenizer, asked.split, asked.max_examples, asked.generation
    files = asked.task.files.get(split, ())
    if any(map(is_task, files)):
        requests = load_tasks(files, split, most, tokenizer, asked.prompting)
        if generation.generate:
            raise DataError(
                "--generate is for rows of files; a task of lm-evaluation-harness says itself whether "
                "the model writes, and how"
            )
        return requests, Question("the requests of the tasks", len(requests), len(requests))
    tables = asked.tables()
    if generation.generate:
        requests = prompts_of(tokenizer, tables, split, generation, most)
    else:
        requests = requests_of(tokenizer, tables, split, most, turns=asked.trains and asked.start is None)
    assert requests.about is not None, "rows of files have a form"
    return requests, question_of(requests.about, tables, len(requests), tokenizer=tokenizer)


def _of_language_model(asked: Reading) -> Examples:
    """Rows of a language model."""
    (requests, question), tokenizer, start = _requests(asked), asked.tokenizer, asked.start
    scores = encode_requests if requests.generation is None else encode_prompts
    encode_rows: Any = encode_training if asked.trains else scores
    made = Examples(requests, encode_rows(tokenizer, requests, asked.max_length, start))
    changes = changes_of(tokenizer, requests, made.encoded, asked.max_length, start)
    asks = f"log-likelihood of {question.asks}" if requests.scored.are_preferences else question.asks
    return replace(made, question=replace(question, asks=asks, changes=changes))


def _of_reward_model(asked: Reading) -> Examples:
    """Preferences of a reward model."""
    (requests, question), tokenizer, most = _requests(asked), asked.tokenizer, asked.max_length
    encoded, places = encode_preferences(tokenizer, requests, most)
    changes = changes_of(tokenizer, requests, encoded, most, asked.start)
    changes += cut_preferences(tokenizer, requests, most)
    question = replace(question, asks=f"reward of {question.asks}", changes=changes)
    return Examples(requests, encoded, combine=Numbers(places), question=question)


_READ: dict[str, Callable[[Reading], Examples]] = {
    "tokens": _tagged, "extractive": _questions, "ranking": _reranked, "causal": _of_language_model,
    "pairwise": _of_reward_model,
}  # fmt: skip
"""What reads the rows of a kind of task; labelled texts if it is not listed."""


def _embedded(asked: Reading) -> Examples:
    """Examples of embeddings: every distinct text is an item."""
    rows, texts, combine, question = _EMBEDDED[asked.task.kind](asked)
    prepared: Any = asked.prepared
    items = Split(tuple(prepared(text, role) for text, role in texts), None, rows.labels, asked.split, "")
    return _of_texts(asked, items, rows, question, combine)


_Embedded = tuple[Split, Texts, Combine, Question]
"""The examples, their distinct texts, what makes scores of these, and the question."""


def _texts_alone(asked: Reading) -> _Embedded:
    """Texts whose embeddings are compared with the intact model's."""
    given, question = asked.rows()
    texts = [(text, "") for text in dict.fromkeys((*given.texts, *(given.texts_b or ())))]
    labels = np.zeros(len(texts), dtype=np.int64)
    rows = replace(given, texts=tuple(text for text, _ in texts), texts_b=None, labels=labels)
    return rows, texts, Agreement(asked.dot), question


def _scored_pairs(asked: Reading) -> _Embedded:
    """Pairs with a number, which their similarity should follow."""
    rows, question = asked.rows()
    if rows.texts_b is None:
        raise DataError(
            f"{listed(asked.task.files[asked.split])}: embeddings are compared, and the rows have one text "
            "each; give sentence1, sentence2 and score, or anchor, positive and negative"
        )
    own = asked.task.columns
    asks = f"similarity of `{own.text}` and `{own.text_b}`, beside `{own.label}`"
    return rows, *pairs_of(rows, asked.dot), replace(question, asks=asks)


def _triplets(asked: Reading) -> _Embedded:
    """Texts with a similar one and others."""
    tables = asked.tables()
    rows, texts, combine = triplets_of(tables, asked.split, asked.max_examples, asked.dot)
    return rows, texts, combine, question_of(TRIPLETS, tables, len(rows))


def _retrieved(asked: Reading) -> _Embedded:
    """Queries with the documents of a corpus."""
    tables = asked.tables()
    rows, texts, combine, notes = retrieval_of(tables, asked.split, asked.max_examples, asked.dot)
    return rows, texts, combine, replace(of_retrieval(tables, len(rows)), changes=notes)


_EMBEDDED: dict[str, Callable[[Reading], _Embedded]] = {
    "embedding": _texts_alone, "regression": _scored_pairs, "pairwise": _triplets, "ranking": _retrieved,
}  # fmt: skip


def encode_preferences(tokenizer: Any, requests: Requests, max_length: int) -> tuple[Encoded, np.ndarray]:
    """Tokenise preferences as TRL does for a reward model, equal texts once, and truncated at their ends.

    Returns:
        the texts; and int64 ``[examples, 2]``, which of them are the chosen and the rejected one.
    """
    if not requests.scored.are_preferences:
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
