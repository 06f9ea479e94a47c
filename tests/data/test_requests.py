"""Rows of language models: their forms, and their tokens against lm-evaluation-harness where it is there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from byte_tokenizer import TEMPLATE, byte_tokenizer
from refusals import naming
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from adapter_probe.data.generating import Generation
from adapter_probe.data.prompts import prompts_of
from adapter_probe.data.request_rows import request_of
from adapter_probe.data.requests import (
    Request,
    choose_metric,
    requests_of,
    requests_with_fingerprint,
)
from adapter_probe.data.requests_encoding import count_texts, encode_requests
from adapter_probe.data.rows import RowOf, Rows
from adapter_probe.data.sources import read_source
from adapter_probe.errors import DataError
from adapter_probe.kinds.row_forms import ROW_FORMS


@pytest.fixture(params=[(True,), (False,), (False, False)], ids=["BOS", "EOS alone", "neither"])
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    return byte_tokenizer(*request.param)


def tables(*paths: Path) -> list[Rows]:
    return [read_source(path, texts=True) for path in paths]


def texts_of(tree) -> list[tuple[list[int], list[int]]]:
    """Of each continuation what is read before its first scored token, and what is scored, off the tree."""
    found = []
    for own in tree.scored:
        state, path = int(tree.read[tree.after[own[0]]]), []
        while state >= 0:
            path.append(int(tree.tokens[state]))
            state = int(tree.parents[state])
        found.append((path[::-1], tree.targets[own].tolist()))
    return found


USUAL = {"choice": "accuracy", "completion": "nll", "text": "bits_per_byte"}
CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
PURRS = {"question": "What purrs?", "choices": ["a cat", "a dog"], "answer": 0}
GOOD = {"sentence_good": "Cats purr.", "sentence_bad": "Cats purrs."}
PAIR = Request("", ("Cats purr.", "Cats purrs."), " ")
# Rows, the form that their columns make them of, and their requests; the text of a file stands alone.
FORMED = [
    ([{"context": "1 + 1 =", "choices": ["2", "3"], "gold": 0}], "choice",
     [Request("1 + 1 =", ("2", "3"), " ", 0)]),
    ([{"question": "How many?", "choices": ["one", "two", "three"], "answer": 2, "id": "x"}], "choice",
     [Request("Question: How many?\nAnswer:", ("one", "two", "three"), " ", 2)]),
    ([{**PURRS, "context": ""}], "choice",
     [Request("Question: What purrs?\nAnswer:", ("a cat", "a dog"), " ")]),
    # A part of the data that is missing names nothing.
    ([{**GOOD, "field": "morphology", "UID": "agree"}, {**GOOD, "field": "f", "UID": None},
      {**GOOD, "field": None, "UID": 3}, {**GOOD, "UID": ""}], "choice",
     [replace(PAIR, group=group) for group in ("morphology/agree", "f", "3", "")]),
    ([{"prompt": "Say:", "completion": " hi"}], "completion", [Request("Say:", (" hi",))]),
    # A text beside another kind is that kind written out.
    ([{"prompt": "Say:", "completion": " hi", "text": "Say: hi"}], "completion", [Request("Say:", (" hi",))]),
    ([{"messages": CHAT}], "completion", [Request("[user] Hi\n[assistant] ", ("Hello\n",), framed=False)]),
    ([{"text": "A whole text."}], "text", [Request("", ("A whole text.",))]),
    (["First line.\n\nSecond.", "Another."], "text",
     [Request("", ("First line.\n\nSecond.",)), Request("", ("Another.",))]),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "form", "requests"), FORMED)
def test_forms_by_their_columns(write, tokenizer, rows, form, requests):
    texts = [write(f"{number}.txt", row) for number, row in enumerate(rows) if isinstance(row, str)]
    files = texts or [write("rows.jsonl", *rows)]
    read = requests_of(tokenizer, tables(*files), "test")
    assert (read.form, read.rows, read.name) == (form, tuple(requests), "test")
    assert choose_metric(None, read) == USUAL[form]


TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
WITH_TOOLS = "{% if tools %}<{{ tools[0].function.name }}>{% endif %}{{ mood or '' }}" + TEMPLATE


@pytest.mark.parametrize(
    ("more", "start"),
    [
        ({"tools": TOOLS}, "<add>"),
        ({"tools": json.dumps(TOOLS)}, "<add>"),
        ({"tools": [], "chat_template_kwargs": {"mood": "!"}}, "!"),
        ({"tools": None, "chat_template_kwargs": None}, ""),
    ],
)
def test_messages_of_every_form_go_through_the_template_with_what_the_row_gives_it(more, start, write):
    tokenizer = byte_tokenizer(bos=False)
    tokenizer.chat_template = WITH_TOOLS
    asked, said = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}
    wanted = Request(f"{start}[user] Hi\n[assistant] ", ("Hello\n",), framed=False)
    for row in ({"messages": [asked, said]}, {"prompt": [asked], "completion": [said]}):
        (read,) = requests_of(tokenizer, tables(write("rows.jsonl", {**row, **more})), "test").rows
        assert read == wanted
    for column in ("messages", "prompt"):
        table = tables(write("rows.jsonl", {column: [asked], "answer": "Hello", **more}))
        (read,) = prompts_of(tokenizer, table, "test", Generation()).rows
        assert (read.context, read.framed) == (wanted.context, False)
    both = {"prompt": [asked], "chosen": [said], "rejected": [asked | said], **more}
    (read,) = requests_of(tokenizer, tables(write("rows.jsonl", both)), "test").rows
    assert read.context == wanted.context


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            [{"text": "a"}, {"prompt": "a", "completion": "b"}],
            "line 2; 'prompt', 'completion'; line 1; 'text'",
        ),
        ([{**PURRS, "context": "A cat purrs."}], "line 1; 'context'; 'A cat purrs.'"),
        (["version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"], "rows.jsonl; git lfs pull"),
        ([{"chosen_ids": [1], "rejected_ids": [2]}], "line 1; preferences; reward model"),
        ([{"input_ids": [1]}], "line 1; input_ids; batches="),
        ([{"label": 1}], "line 1; 'label'; context, choices, gold; prompt, completion"),
        ([{"context": "a", "choices": ["b", "c"], "gold": 2}], "line 1; 'gold'; 2; 0 to 1"),
        ([{"context": "a", "choices": ["b"], "gold": 0}], "line 1; 'choices'; ['b']; two or more"),
        ([{"context": "a", "choices": ["b", ""], "gold": 0}], "line 1; 'choices'; ['b', '']; two or more"),
        ([{"sentence_good": "a", "sentence_bad": ""}], "line 1; 'sentence_bad'; ''; text"),
        ([{"prompt": "a", "completion": 3}], "line 1; 'completion'; 3; string"),
        ([{"prompt": CHAT[:1], "completion": CHAT[:1]}], "line 1; 'completion'; last; assistant"),
        ([{"messages": CHAT, "tools": "add"}], "line 1; 'tools'; 'add'; list of functions"),
        ([{"text": "\ud800"}], "line 1; 'text'; '\\ud800'; string; Unicode"),
        ([{"messages": CHAT[:1]}], "line 1; 'messages'; two or more; last; assistant"),
        (
            [{"messages": [{**CHAT[0], "content": None}, CHAT[1]]}],
            "line 1; 'messages'; 'content': None; text",
        ),
        ([{**GOOD, "UID": "\udcff"}], "line 1; 'UID'; '\\udcff'; name; printable"),
        ([{**GOOD, "field": "\x1b[31m"}], "line 1; 'field'; '\\x1b[31m'; name; printable"),
        ([{**GOOD, "field": ["x"]}], "line 1; 'field'; ['x']; name; printable"),
        (
            [{"prompt": "a", "completion": "b", **GOOD}],
            "line 1; several; ('sentence_good', 'sentence_bad'); ('prompt', 'completion')",
        ),
    ],
)
def test_damaged_rows_are_one_line(rows, words, write):
    with pytest.raises(DataError, match=naming(*words.split("; "))):
        requests_of(byte_tokenizer(True), tables(write("rows.jsonl", *rows)), "test")


def test_a_metric_of_another_form_is_refused():
    with pytest.raises(DataError, match=naming("'acc_norm'", "'text'", "bits_per_byte")):
        choose_metric("acc_norm", requests_with_fingerprint("text", [], ""))
    for form, own in ROW_FORMS.items():
        assert all(choose_metric(m, requests_with_fingerprint(form, [], "")) == m for m in own.metrics)


def start_of(tokenizer) -> int | None:
    """What the convention puts before a text without a context."""
    return tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id


def rows_for(tokenizer) -> list[Request]:
    """All rows, or those that need nothing to start with."""
    return [row for row in ROWS if row.context.strip() or start_of(tokenizer) is not None]


def encode_pair_by_hand(tokenizer, context: str, continuation: str, most: int) -> tuple[list[int], list[int]]:
    """The convention as it is written down, for one continuation."""
    if context.strip() == "":
        before, scored = (
            [start_of(tokenizer)],
            tokenizer.encode(context + continuation, add_special_tokens=False),
        )
    else:
        spaces = len(context) - len(context.rstrip())
        continuation, context = context[len(context) - spaces :] + continuation, context.rstrip()
        before = tokenizer.encode(context)
        scored = tokenizer.encode(context + continuation)[len(before) :]
    return ((before + scored)[-(most + 1) :])[: -len(scored)], scored


ROWS = [
    Request("ab ab", ("ab", "c", "abab ab"), " ", 1),
    Request("trailing  \n", ("ab", "ab ab"), " ", 0),
    Request("", ("ab ab", "ab c"), " ", 0),
    Request("a much longer context than is read", ("ab", "é ab"), " ", 0),
]


def test_the_end_that_a_tokenizer_appends_is_no_part_of_a_text():
    """As of Llama's tokenizer with ``add_eos_token``."""
    plain, ending = byte_tokenizer(True), byte_tokenizer(True)
    ids = [(name, plain.convert_tokens_to_ids(name)) for name in ("<s>", "</s>")]
    ending.backend_tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=ids)
    assert ending.encode("ab")[-1] == ids[1][1]
    for form, rows in (("choice", ROWS), ("text", [Request("", ("ab ab, a text",))])):
        requests = requests_with_fingerprint(form, rows, "test")
        made = [encode_requests(tokenizer, requests, 12).fingerprint for tokenizer in (plain, ending)]
        assert made[0] == made[1]


@pytest.mark.parametrize("most", [64, 12])
def test_choices_are_encoded_with_their_context_and_cut(tokenizer, most):
    rows = rows_for(tokenizer)
    requests = requests_with_fingerprint("choice", rows, "test")
    encoded = encode_requests(tokenizer, requests, most)
    counts = count_texts(requests, encoded)
    assert len(encoded.trees) == len(rows) >= 3
    for row, tree, count in zip(rows, encoded.trees, counts):
        expected = [encode_pair_by_hand(tokenizer, row.context, f" {choice}", most) for choice in row.choices]
        assert texts_of(tree) == expected
        for choice, (_, scored), numbers in zip(row.choices, expected, count):
            assert numbers.tolist() == [len(scored), len(choice), len(choice.encode()), len(choice.split())]
        assert (count[len(row.choices) :] == 0).all()
    assert encoded.lengths.tolist() == [len(tree.tokens) for tree in encoded.trees]


@pytest.mark.parametrize("most", [5, 7, 100])
def test_each_token_of_a_long_text_is_scored_once(tokenizer, most):
    text = "ab ab, a text of some length. é"
    requests = requests_with_fingerprint("text", [Request("", (text,)), Request("", ("abc",))], "test")
    encoded = encode_requests(tokenizer, requests, most)
    whole = tokenizer.encode(text)
    windows = [texts_of(tree)[0] for tree, example in zip(encoded.trees, encoded.example) if example == 0]
    start = start_of(tokenizer)
    counted = len(whole) - (start is None)
    assert [token for _, scored in windows for token in scored] == whole[-counted:]
    assert windows[0][0] == [whole[0] if start is None else start]
    whole = whole[-counted:]
    done = len(windows[0][1])
    for before, scored in windows[1:]:
        assert before == whole[done - len(before) : done]  # what stands there, as much as fits
        assert len(before) + len(scored) - 1 == most
        done += len(scored)
    assert count_texts(requests, encoded)[0, 0].tolist() == [counted, len(text), len(text.encode()), 8]


@pytest.mark.parametrize(
    ("form", "row"),
    [
        ("choice", Request("", ("ab", "c"), " ")),
        ("choice", Request("  ", ("ab", "c"), " ")),
        ("completion", Request("", ("ab",), framed=False)),
        ("text", Request("", ("x",))),
    ],
)
def test_a_text_without_a_start_needs_something_before_what_is_scored(form, row):
    rows = [Request("a", ("b", "c"), " ") if form == "choice" else Request("a", ("bc",)), row]
    if form == "text":
        rows[0] = Request("", ("bc",))
    with pytest.raises(DataError, match=naming("test row 2")):
        encode_requests(byte_tokenizer(False, False), requests_with_fingerprint(form, rows, "test"), 12)
    assert len(encode_requests(byte_tokenizer(False), requests_with_fingerprint(form, rows, "test"), 12)) == 2


def test_what_cannot_be_scored_is_one_line(tokenizer):
    long = requests_with_fingerprint("choice", [Request("a", ("b", "c" * 30), " ")], "test")
    with pytest.raises(DataError, match=naming("test row 1", "31", "1 to 8")):
        encode_requests(tokenizer, long, 8)


def test_the_order_of_choices_and_what_is_scored_count(tokenizer):
    prints = {
        encode_requests(
            tokenizer, requests_with_fingerprint("choice", [Request("a", choices, " ")], "test"), 64
        ).fingerprint
        for choices in (("b", "c"), ("c", "b"), ("b", "d"))
    }
    assert len(prints) == 3


@pytest.mark.parametrize("most", [64, 12])
def test_lm_evals_own_code_makes_the_same_tokens(tokenizer, most):
    model = pytest.importorskip("lm_eval.api.model")
    utils = pytest.importorskip("lm_eval.utils")
    huggingface = pytest.importorskip("lm_eval.models.huggingface")
    own = huggingface.HFLM.__new__(huggingface.HFLM)
    own.tokenizer, own.backend, own.add_bos_token = tokenizer, "causal", None
    # With neither, the library needs one named, also for rows that have a context and so do not use it.
    own.custom_prefix_token_id = 0 if start_of(tokenizer) is None else None
    seen: list = []
    own._loglikelihood_tokens = lambda requests, disable_tqdm=False: seen.extend(requests) or []
    rows = rows_for(tokenizer)
    encoded = encode_requests(tokenizer, requests_with_fingerprint("choice", rows, "test"), most)
    for row, tree in zip(rows, encoded.trees):
        instances = [type("Instance", (), {"args": (row.context, f" {choice}")}) for choice in row.choices]
        seen.clear()
        model.TemplateLM.loglikelihood(own, instances)
        whole = [((before + scored)[-(most + 1) :], len(scored)) for _, before, scored in seen]
        assert texts_of(tree) == [(text[:-n], text[-n:]) for text, n in whole]
    if start_of(tokenizer) is None:
        return
    text = "ab ab, a text of some length. é"
    encoded = encode_requests(
        tokenizer, requests_with_fingerprint("text", [Request("", (text,))], "test"), most
    )
    windows = utils.get_rolling_token_windows(own.tok_encode(text), own.prefix_token_id, most, 1)
    expected = [utils.make_disjoint_window(window) for window in windows]
    assert [texts_of(tree)[0] for tree in encoded.trees] == expected


def test_a_subset_is_always_the_same(write, tokenizer):
    path = write("rows.jsonl", *({"text": f"text {i}"} for i in range(40)))
    few, more = (requests_of(tokenizer, tables(path), "test", n).rows for n in (5, 20))
    assert set(few) < set(more)
    assert len(few) == 5
    assert np.diff([int(row.choices[0].split()[1]) for row in more]).min() > 0


def test_a_prompt_as_text_is_the_users_turn_of_answers_that_have_none():
    texts = {"chosen": "4", "rejected": "5"}
    answers = {name: [{"role": "assistant", "content": text}] for name, text in texts.items()}
    turn = {"role": "user", "content": "What is 2+2?"}
    tokenizer = byte_tokenizer(True)
    written, whole = (
        request_of(RowOf("row 1", {"prompt": prompt, **answers}), tokenizer)
        for prompt in (turn["content"], [turn])
    )
    assert "2+2" in written[1].context
    assert written == whole
