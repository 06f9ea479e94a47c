"""Windows against the context they are cut from, for tokenizers of both families."""

from __future__ import annotations

import itertools
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import naming
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from word_tokenizer import word_tokenizer

from adapter_probe.data.squad import Answer, Questions, WindowSettings, encode_windows
from adapter_probe.errors import DataError

WORDS = [f"w{number}" for number in range(30)]


def bert_like():
    """Whole words are tokens, accents are dropped, anything else is unknown."""
    tokenizer = word_tokenizer(WORDS)
    tokenizer.backend_tokenizer.normalizer = normalizers.BertNormalizer()
    return tokenizer


def roberta_like():
    """Bytes are tokens, so that a letter may be several; four special tokens and no token types."""
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(["<s>", "<pad>", "</s>", *alphabet])}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", model_input_names=["input_ids", "attention_mask"]
    )


TOKENIZERS = {"bert": bert_like(), "roberta": roberta_like()}


@pytest.mark.parametrize("version", ["0.23.1", "0.23.2"])
def test_versions_of_tokenizers_that_drop_windows_are_refused(version, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", {"tokenizers": version}.get)
    with pytest.raises(DataError, match=naming(version, "windows")):
        encode_windows(TOKENIZERS["bert"], questions_on(("w0", "w1 w2", "w1")), WindowSettings(8, 0, 1))


def questions_on(*examples):
    """Questions out of (question, context, answer) triples; an answer lies where it first comes."""
    contexts = tuple(dict.fromkeys(context for _, context, _ in examples))
    return Questions(
        questions=tuple(question for question, _, _ in examples),
        contexts=contexts,
        paragraph=np.array([contexts.index(context) for _, context, _ in examples]),
        answers=tuple((Answer(text, context.index(text)),) for _, context, text in examples),
        name="train",
        fingerprint="",
    )


def windows_of(windows, question):
    return np.flatnonzero(windows.question == question)


def labelled_text(windows, questions, window):
    """The words that a window's labels stand for."""
    first, last = windows.labels[window] - windows.context[window, 0]
    start, end = windows.offsets[window][first, 0], windows.offsets[window][last, 1]
    return questions.contexts[questions.paragraph[windows.question[window]]][start:end]


letters = st.text("abé€🐕 .,\t", max_size=6)
words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=40).map(" ".join)
spaced = st.tuples(st.sampled_from(["", " ", "\n"]), words, st.sampled_from(["", "  "])).map("".join)


@st.composite
def cases(draw):
    """A question, a context with an answer in it, and a way to cut them, in the words of either tokenizer."""
    family = draw(st.sampled_from(list(TOKENIZERS)))
    text = spaced if family == "bert" else st.tuples(letters, st.just("x"), letters).map("".join)
    examples = []
    for _ in range(draw(st.integers(1, 3))):
        context = draw(text)
        begin, stop = sorted(draw(st.tuples(st.integers(0, len(context)), st.integers(0, len(context)))))
        answer = context[begin:stop] if context[begin:stop].strip() else context.strip()
        examples.append((draw(text), context, answer))
    max_question, stride = draw(st.integers(1, 5)), draw(st.integers(0, 4))
    room = draw(st.integers(stride + 1, 12))
    special = 3 if family == "bert" else 4
    return (
        family,
        questions_on(*examples),
        WindowSettings(special + max_question + room, stride, max_question),
    )


def kept_question(tokenizer, question, most):
    """A question's first tokens, without the part of a letter that a cut would leave."""
    ids = tokenizer(question.strip(), add_special_tokens=False, return_offsets_mapping=True)
    offsets, kept = ids["offset_mapping"], len(ids["input_ids"])
    if kept > most:
        kept = most
        while kept and offsets[kept - 1][1] > offsets[kept][0]:
            kept -= 1
    return ids["input_ids"][:kept]


@given(cases())
def test_windows_hold_the_question_and_follow_the_context(case):
    family, questions, cut = case
    tokenizer, special = TOKENIZERS[family], {"bert": 3, "roberta": 4}[family]
    windows = encode_windows(tokenizer, questions, cut)
    assert (windows.encoded.token_type_ids is None) == (family == "roberta")
    for number, question in enumerate(questions.questions):
        context = questions.contexts[questions.paragraph[number]]
        alone = tokenizer(context, add_special_tokens=False, return_offsets_mapping=True)
        question_ids = kept_question(tokenizer, question, cut.max_question)
        room, at = cut.max_length - special - len(question_ids), 0
        own = windows_of(windows, number)
        assert own.tolist() == list(range(own[0], own[0] + len(own)))
        for window in own:
            ids, (begin, stop) = windows.encoded.input_ids[window], windows.context[window]
            assert ids[1 : 1 + len(question_ids)].tolist() == question_ids
            assert (begin, stop) == (len(question_ids) + special - 1, len(ids) - 1)
            assert ids[begin:stop].tolist() == alone["input_ids"][at : at + room]
            offsets = [list(offset) for offset in alone["offset_mapping"][at : at + room]]
            assert windows.offsets[window].tolist() == offsets
            if family == "bert":
                types = windows.encoded.token_type_ids[window].tolist()
                assert types == [0] * begin + [1] * (len(ids) - begin)
            at += room - cut.stride
        assert at + cut.stride >= len(alone["input_ids"])
        if len(own) > 1:  # and the window before the last did not reach the end
            assert at - room + 2 * cut.stride < len(alone["input_ids"])


@given(cases())
def test_labels_are_the_tokens_that_touch_the_answer_where_all_are_there(case):
    family, questions, cut = case
    windows = encode_windows(TOKENIZERS[family], questions, cut)
    for window, number in enumerate(windows.question):
        context = questions.contexts[questions.paragraph[number]]
        answer = questions.answers[number][0]
        inside = [
            place
            for place in range(answer.start, answer.start + len(answer.text))
            if not context[place].isspace()
        ]
        own = windows_of(windows, number)
        everywhere = np.concatenate([windows.offsets[i] for i in own])
        touched = {
            (start, end)
            for start, end in everywhere.tolist()
            if any(start <= place < end for place in inside)
        }
        here = [i for i, offset in enumerate(windows.offsets[window].tolist()) if tuple(offset) in touched]
        whole = {tuple(windows.offsets[window][i].tolist()) for i in here} == touched
        begin = windows.context[window, 0]
        expected = [begin + here[0], begin + here[-1]] if whole and here else [0, 0]
        assert windows.labels[window].tolist() == expected


def test_a_worked_example():
    context = "w0 w1 w2 w3 w4 w5 w6 w7"
    questions = questions_on(("w9 w8 w7", context, "w3 w4"), ("w9", "w1 w2", "w2"))
    windows = encode_windows(
        TOKENIZERS["bert"], questions, WindowSettings(max_length=9, stride=2, max_question=2)
    )
    ids = [
        [TOKENIZERS["bert"].convert_ids_to_tokens(int(i)) for i in window]
        for window in windows.encoded.input_ids
    ]
    assert [" ".join(window) for window in ids] == [
        "[CLS] w9 w8 [SEP] w0 w1 w2 w3 [SEP]",
        "[CLS] w9 w8 [SEP] w2 w3 w4 w5 [SEP]",
        "[CLS] w9 w8 [SEP] w4 w5 w6 w7 [SEP]",
        "[CLS] w9 [SEP] w1 w2 [SEP]",
    ]
    assert windows.question.tolist() == [0, 0, 0, 1]
    assert windows.context.tolist() == [[4, 8], [4, 8], [4, 8], [3, 5]]
    assert windows.labels.tolist() == [[0, 0], [5, 6], [0, 0], [4, 4]]
    assert windows.offsets[1].tolist() == [[6, 8], [9, 11], [12, 14], [15, 17]]
    assert windows.offsets[1].dtype == np.int32
    assert labelled_text(windows, questions, 1) == "w3 w4"


def test_a_letter_of_several_tokens_is_pointed_at_whole():
    questions = questions_on(("x", "a 🐕 b", "🐕"))
    windows = encode_windows(TOKENIZERS["roberta"], questions, WindowSettings(40, 4, 4))
    first, last = windows.labels[0]
    assert last - first == 3  # four bytes
    assert labelled_text(windows, questions, 0) == "🐕"


def test_letters_without_a_token_do_not_hide_an_answer_at_the_contexts_edge():
    accent = "\u0301"
    questions = questions_on(("w9", f"{accent}w1 w2", f"{accent}w1"), ("w9", f"w1 {accent}", f"w1 {accent}"))
    windows = encode_windows(TOKENIZERS["bert"], questions, WindowSettings(20, 2, 2))
    assert windows.labels.tolist() == [[3, 3], [3, 3]]


def test_windows_are_the_same_however_many_are_tokenised_at_once(monkeypatch):
    examples = [(f"w{i} w1", " ".join(WORDS[i:]), WORDS[i + 1]) for i in range(20)]
    questions, cut = questions_on(*examples), WindowSettings(14, 3, 2)
    together = encode_windows(TOKENIZERS["bert"], questions, cut)
    monkeypatch.setattr("adapter_probe.data.squad._AT_ONCE", 3)
    apart = encode_windows(TOKENIZERS["bert"], questions, cut)
    assert apart.encoded.fingerprint == together.encoded.fingerprint
    for field in ("question", "context", "labels"):
        np.testing.assert_array_equal(getattr(apart, field), getattr(together, field))


def test_usual_settings_and_smaller_ones_in_proportion():
    assert WindowSettings.within(384) == WindowSettings.within(512) == WindowSettings(384, 128, 64)
    assert WindowSettings.within(192) == WindowSettings(192, 64, 32)
    for limit in range(12, 385):
        encode_windows(TOKENIZERS["roberta"], questions_on(("x", "abc", "b")), WindowSettings.within(limit))


@pytest.mark.parametrize(
    ("cut", "facts"),
    [
        (WindowSettings(20, 8, 9), ("20 tokens", "8", "9", "less than that")),
        (WindowSettings(4, 0, 1), ("4 tokens", "0", "1")),
    ],
)
def test_settings_without_room_are_refused(cut, facts):
    with pytest.raises(DataError, match=naming(*facts)):
        encode_windows(TOKENIZERS["bert"], questions_on(("w1", "w2", "w2")), cut)


@pytest.mark.real_data
@pytest.mark.slow
@pytest.mark.parametrize("cut", [WindowSettings(), WindowSettings.within(128)])
def test_real_windows(real_questions, cut):
    tokenizer, questions = real_questions
    windows = encode_windows(tokenizer, questions, cut)
    assert windows.encoded.lengths.max() <= cut.max_length
    answered, same = set(), 0
    for window, number in enumerate(windows.question.tolist()):
        if windows.labels[window, 0]:
            gold, found = questions.answers[number][0].text, labelled_text(windows, questions, window)
            assert gold.strip() in found
            assert len(found) <= len(gold) + 12  # a word piece may reach beyond the answer
            answered.add(number)
            same += found == gold
    assert same >= 0.99 * (windows.labels[:, 0] > 0).sum()
    assert answered == set(range(len(questions)))
    for number in range(len(questions)):
        covered = {
            place
            for i in windows_of(windows, number)
            for begin, end in windows.offsets[i].tolist()
            for place in range(begin, end)
        }
        context = questions.contexts[questions.paragraph[number]]
        missed = {context[place] for place in set(range(len(context))) - covered}
        # The tokenizer drops accents that stand alone, and nothing else that can be seen.
        assert all(letter.isspace() or unicodedata.category(letter) == "Mn" for letter in missed)


@pytest.mark.real_data
def test_real_windows_of_one_question_follow_each_other(real_questions):
    tokenizer, questions = real_questions
    longest = max(range(len(questions)), key=lambda i: len(questions.contexts[questions.paragraph[i]]))
    one = questions_on(
        (questions.questions[longest], questions.contexts[questions.paragraph[longest]], "the")
    )
    windows = encode_windows(tokenizer, one)
    assert len(windows) > 1
    for before, after in itertools.pairwise(windows.offsets):
        np.testing.assert_array_equal(before[-128:], after[:128])
