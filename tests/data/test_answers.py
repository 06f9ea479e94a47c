"""Answers against every pair of tokens tried one by one, and their scores against the published rules."""

from __future__ import annotations

import string

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from adapter_probe.data.answers import (
    Answers,
    answer_text,
    choose_windows,
    decode_windows,
    match_scores,
    normalise,
    score_answers,
)
from adapter_probe.data.encoding import Encoded
from adapter_probe.data.packing import cut_by_tokens, pack
from adapter_probe.data.squad import Answer, Questions, Windows, encode_windows
from adapter_probe.metrics import score

# The published evaluation, step by step: lower case, drop punctuation marks, drop a, an and the, split at
# white space; exact match is equality, F1 treats both as bags of words; the best of the true answers counts.


def published_words(text):
    letters = [letter for letter in text.lower() if letter not in set(string.punctuation)]
    words, word = [], ""
    for letter in [*letters, " "]:
        if letter.isspace():
            words.append(word)
            word = ""
        else:
            word += letter
    return [word for word in words if word and word not in ("a", "an", "the")]


def published_f1(given_text, true):
    given_words, true_words = published_words(given_text), published_words(true)
    left, same = list(true_words), 0
    for word in given_words:
        if word in left:
            left.remove(word)
            same += 1
    if same == 0:
        return 0.0
    precision, recall = same / len(given_words), same / len(true_words)
    return 2 * precision * recall / (precision + recall)


WORDS = (
    "the",
    "a",
    "An",
    "cat",
    "Cat's",
    "cats",
    "1,000",
    "Zürich",
    "ŁÓDŹ",
    "–",
    "...",
    "new-york",
    "",
    "  ",
)
phrases = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)


@given(phrases, st.lists(phrases, min_size=1, max_size=3))
@example("", [""])
@example("the", ["a", "an"])
@example("The  Cat.", ["cat"])
def test_scores_equal_the_published_rules(given_text, true):
    assert normalise(given_text).split() == published_words(given_text)
    same = any(published_words(given_text) == published_words(text) for text in true)
    f1 = max(published_f1(given_text, text) for text in true)
    assert match_scores(given_text, true) == (same, pytest.approx(f1))


@pytest.mark.parametrize(
    ("given_text", "true", "same", "f1"),
    [
        ("the Denver Broncos", ["Denver Broncos"], True, 1.0),
        ("Denver", ["Denver Broncos", "The Broncos"], False, 2 / 3),
        ("Broncos!", ["Denver Broncos", "The Broncos"], True, 1.0),
        ("$1,000", ["1000"], True, 1.0),
        ("U.S.A.", ["usa"], True, 1.0),
        ("state-of-the-art", ["stateoftheart"], True, 1.0),  # the hyphens go before the article is looked for
        ("Straße", ["straße"], True, 1.0),
        ("Strasse", ["Straße"], False, 0.0),
        ("“cat”", ["cat"], False, 0.0),  # only ASCII's punctuation marks are dropped
        ("cat\u00a0dog", ["cat dog"], True, 1.0),
        ("a–cat", ["–cat"], True, 1.0),  # an article before a mark that stays is an article
        ("an apple a day", ["apple day"], True, 1.0),
        ("anthem", ["the anthem"], True, 1.0),
        ("cat cat dog", ["cat dog dog"], False, 2 / 3),
        ("", ["cat"], False, 0.0),
        ("the", ["a"], True, 0.0),  # equal, as nothing is left of either; and no word in common
        ("cat", [""], False, 0.0),
    ],
)
def test_hand_made_cases(given_text, true, same, f1):
    assert match_scores(given_text, true) == (same, pytest.approx(f1))


def make_windows(lengths, contexts, question, width=3):
    """Windows whose every context token stands for `width` characters of its own."""
    ids = tuple(np.zeros(length, dtype=np.int64) for length in lengths)
    offsets = []
    for window, (begin, stop) in enumerate(contexts):
        starts = 100 * window + width * np.arange(stop - begin, dtype=np.int32)
        offsets.append(np.stack([starts, starts + width], axis=1))
    labels = np.zeros((len(lengths), 2), dtype=np.int64)
    return Windows(
        Encoded(ids, None, ""),
        np.array(question),
        np.array(contexts).reshape(-1, 2),
        tuple(offsets),
        labels,
    )


@st.composite
def decoding(draw):
    """A few windows of a few questions, logits with many ties and now and then no number, and both limits."""
    per_question = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    question = [number for number, times in enumerate(per_question) for _ in range(times)]
    lengths, contexts = [], []
    for _ in question:
        length = draw(st.integers(1, 9))
        begin = draw(st.integers(0, min(length, 3)))
        lengths.append(length)
        contexts.append((begin, draw(st.integers(begin, length))))
    values = st.sampled_from([*map(float, range(-3, 4)), *[0.0] * 10, np.nan, -np.inf, np.inf])
    logits = draw(arrays(np.float32, (draw(st.integers(1, 3)), sum(lengths), 2), elements=values))
    limits = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    return make_windows(lengths, contexts, question), logits, limits


def among_the_best(values, n_best):
    """Places of the `n_best` highest numbers and of those equal to the last of them."""
    ranked = sorted((value for value in values if np.isfinite(value)), reverse=True)
    least = ranked[min(n_best, len(ranked)) - 1] if ranked else None
    return {i for i, value in enumerate(values) if np.isfinite(value) and value >= least}


def try_every_pair(windows, rows, logits, n_best, max_tokens):
    """One variant's best (score, start, end) for every question, out of all that may be an answer.

    A question with a logit that is not finite has no score.
    """
    best, spoilt = {}, set()
    for window, place in enumerate(rows):
        if not np.isfinite(logits[place]).all():
            spoilt.add(windows.question[window])
        starts, ends = logits[place, 0].tolist(), logits[place, 1].tolist()
        begin, stop = windows.context[window]
        for first in among_the_best(starts, n_best):
            for last in among_the_best(ends, n_best):
                if begin <= first <= last < stop and last - first < max_tokens:
                    # Greatest score; of equals the earlier window, then the shorter answer, then the earlier.
                    rank = (starts[first] + ends[last], -window, first - last, -first)
                    offsets = windows.offsets[window]
                    found = (rank, int(offsets[first - begin, 0]), int(offsets[last - begin, 1]))
                    question = windows.question[window]
                    best[question] = max(best.get(question, found), found)
    return [
        (np.nan, -1, -1) if q in spoilt else (best[q][0][0], *best[q][1:]) if q in best else (-np.inf, -1, -1)
        for q in range(windows.question[-1] + 1)
    ]


@settings(max_examples=300, deadline=None)
@given(decoding())
def test_decoding_equals_trying_every_pair(case):
    windows, logits, limits = case
    stops = np.cumsum(windows.encoded.lengths)
    rows = [slice(stop - length, stop) for stop, length in zip(stops, windows.encoded.lengths)]
    found = choose_windows(windows, decode_windows(windows, np.arange(len(windows)), rows, logits, *limits))
    for variant, own in enumerate(logits):
        expected = try_every_pair(windows, rows, own, *limits)
        given_answers = zip(*(getattr(found, field)[variant].tolist() for field in ("score", "start", "end")))
        np.testing.assert_array_equal(list(given_answers), expected)


def gathered(parts):
    """What was decoded batch by batch, in the windows' order."""
    order = np.argsort(np.concatenate([index for index, _ in parts]))
    fields = (np.concatenate([getattr(a, f) for _, a in parts], axis=1) for f in ("score", "start", "end"))
    return Answers(*(values[:, order] for values in fields))


@given(decoding(), st.integers(1, 20))
def test_packed_batches_and_company_change_nothing(case, max_tokens):
    windows, logits, limits = case
    stops = np.cumsum(windows.encoded.lengths)
    starts = stops - windows.encoded.lengths
    rows = [slice(*bounds) for bounds in zip(starts, stops)]
    together = decode_windows(windows, np.arange(len(windows)), rows, logits, *limits)
    parts = []
    order = np.arange(len(windows))[::-1]
    for run in cut_by_tokens(windows.encoded.lengths, order, max_tokens):
        batch = pack(windows.encoded, run)
        own = np.concatenate([logits[:, rows[window]] for window in batch.index], axis=1)
        alone = [decode_windows(windows, batch.index, batch.rows, variant[None], *limits) for variant in own]
        joined = (np.concatenate([getattr(a, field) for a in alone]) for field in ("score", "start", "end"))
        parts.append((batch.index, Answers(*joined)))
    apart = gathered(parts)
    for field, kind in (("score", np.float32), ("start", np.int32), ("end", np.int32)):
        assert getattr(apart, field).dtype == kind
        np.testing.assert_array_equal(getattr(apart, field), getattr(together, field))


def test_the_usual_search_is_transformers_own():
    # The best pair of all, 25 and 30 in, starts at the 21st highest logit: the usual search passes it over.
    windows, logits = make_windows([60], [(0, 60)], [0]), np.full((1, 60, 2), -9.0, np.float32)
    logits[0, :20, 0], logits[0, 25, 0] = np.linspace(2, 1, 20), 0.5
    logits[0, 30, 1], logits[0, 19, 1] = 9.0, 8.0
    found = decode_windows(windows, np.array([0]), [slice(0, 60)], logits)
    assert (found.start[0, 0], found.end[0, 0]) == (3 * 1, 3 * 31)  # 30 tokens and not one more
    wide = decode_windows(windows, np.array([0]), [slice(0, 60)], logits, 21, 6)
    assert (wide.start[0, 0], wide.end[0, 0]) == (3 * 25, 3 * 31)


CONTEXT = "The big cat sat on a mat in Łódź."
QUESTIONS = Questions(
    questions=("Who?", "Where?", "Where then?"),
    contexts=(CONTEXT, "Elsewhere."),
    paragraph=np.array([0, 0, 1]),
    answers=((Answer("big cat", 4), Answer("cat", 8)), (Answer("a mat", 19),), (Answer("Elsewhere", 0),)),
    name="validation",
    fingerprint="",
)


def test_scores_of_variants():
    places = [  # three variants: start and end of the answer to each question
        [(0, 11), (19, 24), (0, 10)],
        [(8, 15), (19, 32), (-1, -1)],
        [(-1, -1), (24, 25), (0, 0)],
    ]
    start, end = np.array(places, dtype=np.int32).transpose(2, 0, 1)
    answers = Answers(np.zeros(start.shape, np.float32), start, end)
    texts = [[answer_text(QUESTIONS, q, *place) for q, place in enumerate(row)] for row in places]
    assert texts[0] == ["The big cat", "a mat", "Elsewhere."]
    assert texts[1] == ["cat sat", "a mat in Łódź", ""]
    exact, f1 = score_answers(QUESTIONS, answers)
    assert (exact.dtype, f1.dtype) == (np.float64, np.float64)
    assert exact.tolist() == [[True, True, True], [False, False, False], [False, False, False]]
    for variant, row in enumerate(texts):
        for question, text in enumerate(row):
            true = [answer.text for answer in QUESTIONS.answers[question]]
            assert f1[variant, question] == pytest.approx(max(published_f1(text, t) for t in true))
    np.testing.assert_allclose(score("squad_f1", f1, QUESTIONS.paragraph), f1.mean(axis=1))
    np.testing.assert_allclose(score("exact_match", exact, QUESTIONS.paragraph), [1, 0, 0])


def test_a_score_that_is_not_finite_is_no_score():
    start, end = np.zeros((2, 1, 3), dtype=np.int32)
    answers = Answers(np.array([[1.0, np.nan, 1.0]], np.float32), start, end)
    for values in score_answers(QUESTIONS, answers):
        assert np.isnan(values[0]).tolist() == [False, True, False]


def test_no_answer_scores_nothing_even_where_nothing_is_right():
    questions = Questions(("?",), ("The.",), np.zeros(1, int), ((Answer("The", 0),),), "validation", "")
    none, the = (
        Answers(np.zeros((1, 1)), np.full((1, 1), a), np.full((1, 1), b)) for a, b in ((-1, -1), (0, 3))
    )
    assert [array.item() for array in score_answers(questions, none)] == [0, 0]
    assert [array.item() for array in score_answers(questions, the)] == [1, 0]


def decode_all(windows, logits_of):
    parts = []
    order = np.argsort(windows.encoded.lengths, kind="stable")
    for run in cut_by_tokens(windows.encoded.lengths, order, 4096):
        batch = pack(windows.encoded, run)
        parts.append((batch.index, decode_windows(windows, batch.index, batch.rows, logits_of(batch))))
    return choose_windows(windows, gathered(parts))


@pytest.mark.real_data
@pytest.mark.slow
def test_logits_that_know_the_labels_find_the_real_answers(real_questions):
    tokenizer, questions = real_questions
    windows = encode_windows(tokenizer, questions)

    def logits_of(batch):
        logits = np.zeros((1, len(batch.input_ids), 2), np.float32)
        for window, rows in zip(batch.index, batch.rows):
            for i, place in enumerate(windows.labels[window]):
                logits[0, rows.start + place, i] = 9
        return logits

    answers = decode_all(windows, logits_of)
    exact, f1 = score_answers(questions, answers)
    # A long answer is beyond the 30 tokens, and a word piece may reach beyond its answer.
    assert exact.mean() > 0.98
    assert f1.mean() > 0.99
    for number, own in enumerate(questions.answers):
        text = answer_text(questions, number, answers.start[0, number], answers.end[0, number])
        true = [answer.text for answer in own]
        assert exact[0, number] == any(published_words(text) == published_words(t) for t in true)
        assert f1[0, number] == pytest.approx(max(published_f1(text, t) for t in true))
