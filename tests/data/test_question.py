"""What is said of rows on their way to a model: frames, cuts, windows, and the first row."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from asked_rows import PAIR, TALK, TOKENIZER, examples_of
from byte_tokenizer import byte_tokenizer
from refusals import naming
from tokenizers.processors import TemplateProcessing

from adapter_probe.data.combining import ranking_scores
from adapter_probe.data.examples import Reading
from adapter_probe.data.forms import columns_named
from adapter_probe.data.question import _unread_by
from adapter_probe.data.readers import read_rows
from adapter_probe.data.similarity import retrieval_of
from adapter_probe.data.task_spec import Columns, TaskSpec
from adapter_probe.data.tasks import find_task, load_with_question
from adapter_probe.errors import DataError
from adapter_probe.studies.example_files import of_columns

LONG = "abc def ghi jkl"  # fifteen bytes
FRAMED = byte_tokenizer(True)
FRAMED.backend_tokenizer.post_processor = TemplateProcessing(
    "<s> $A </s>", "<s> $A </s> $B </s>", [("<s>", FRAMED.bos_token_id), ("</s>", FRAMED.eos_token_id)]
)
LEFT = byte_tokenizer(True)
LEFT.truncation_side = "left"


def made(file: Path, kind: str, columns: Columns, most: int, tokenizer=TOKENIZER):
    names = {"classification": ("0", "1"), "tokens": ("O", "B")}.get(kind, ())
    task = TaskSpec("task", kind, "accuracy", names, columns, {"validation": (str(file),)}, {})
    return Reading(tokenizer, task, "validation", most).examples()


SINGLE, BOTH, NONE = Columns("text", None, "label"), Columns("a", "b", "label"), Columns("", None, "")
CLASSES = [{"text": LONG, "label": 0}, {"text": "ab", "label": 1}]
TEXTS = (CLASSES, "classification", SINGLE)
PAIRS = ([{"a": LONG, "b": "ab", "label": 0}, {"a": "ab", "b": "c", "label": 1}], "classification", BOTH)
WORDS = ([{"tokens": ["abcdef", "ghi"], "tags": ["O", "B"]}], "tokens", Columns("tokens", None, "tags"))
PROMPTS = ([{"prompt": LONG, "completion": " c"}, {"prompt": "x", "completion": "c"}], "causal", NONE)
PREFERRED = [{"prompt": LONG, **PAIR}]
TWICE = (
    "texts begin with <s> after another <s>, and are scored from the second one on; no end token is scored"
)
ENDED = "prompts begin with <s>; each answer ended by </s>"
# By name: rows, kind and columns, the most tokens, the tokenizer, and what the question says.
CASES = {
    "texts": (TEXTS, 8, TOKENIZER, "texts as <s> text; 1 of 2 texts are cut to 8 tokens at their end"),
    "left": (TEXTS, 8, LEFT, "texts as <s> text; 1 of 2 texts are cut to 8 tokens at their beginning"),
    "of just the length": (TEXTS, 16, TOKENIZER, "texts as <s> text"),
    "pairs": (
        PAIRS, 10, FRAMED, "texts as <s> text </s> text </s>; 1 of 2 texts are cut to 10 tokens at their end"
    ),
    "words": (WORDS, 5, TOKENIZER, "texts as <s> text; 1 of 1 texts are cut to 5 tokens at their end"),
    "windows": (
        ([{"text": LONG}], "causal", NONE), 9, TOKENIZER, f"{TWICE}; read in 2 windows of 9 tokens"
    ),
    "a long prompt": (
        PROMPTS, 12, TOKENIZER, "prompts begin with <s>; no end token is scored; 1 of 2 texts are cut to 12 "
        "tokens at their beginning",
    ),
    "a conversation": (([{"messages": TALK}], "causal", NONE), 64, TOKENIZER, "written by the chat template"),
    "preferences": ((PREFERRED, "causal", NONE), 64, TOKENIZER, ENDED),
    "rewards": (
        (PREFERRED, "pairwise", NONE), 12, TOKENIZER,
        f"{ENDED}; 2 of 2 texts are cut to 12 tokens at their end",
    ),
}  # fmt: skip
FIRST = {
    "texts": "<s>abc def ; right: 0",
    "pairs": "<s>abc def</s>ab</s>; right: 0",
    "a long prompt": "def ghi jkl[[ c]]",
    "a conversation": "[user] a?\n[assistant][[ ab\n]]",
    "preferences": "<s>abc def ghi jkl[[ab</s>]] or [[c</s>]]; right: number 1",
    "rewards": "<s>abc def ghi  beside <s>abc def ghi ; right: number 1",
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_added_and_cut_is_said(write, case):
    (rows, kind, columns), most, tokenizer, said = CASES[case]
    examples = made(write("rows.jsonl", *rows), kind, columns, most, tokenizer)
    assert "; ".join(examples.question.changes) == said
    whole = [len(tokenizer(*[row[n] for n in columns.names[:-1]])["input_ids"]) for row in rows] if (
        kind == "classification"
    ) else []  # fmt: skip
    n_cut = sum(length > most for length in whole)
    assert f"{n_cut} of " in said or not n_cut


@pytest.mark.parametrize("case", FIRST)
def test_the_first_row_is_shown_as_the_model_gets_it(write, case):
    (rows, kind, columns), most, tokenizer, _ = CASES[case]
    file = write("rows.jsonl", *rows)
    assert made(file, kind, columns, most, tokenizer).question.first == FIRST[case]


def test_a_subset_says_of_how_many(write):
    rows = [{"prompt": "x", "completion": "c"}] * 9
    file = write("rows.jsonl", *rows)
    task = TaskSpec("task", "causal", "nll", (), NONE, {"validation": (str(file),)}, {})
    question = Reading(TOKENIZER, task, "validation", 64, max_examples=4).examples().question
    assert question.lines("nll")[0].startswith("4 of 9 rows of rows.jsonl: ")


def test_a_document_with_its_querys_identifier_is_left_out_as_in_beir(write):
    texts = {"a": "ab", "b": "cab", "c": "bb", "d": "a b"}
    judged = {"a": {"b": 1.0}, "q": {"c": 2.0, "d": 1.0}}
    queries = {"a": "ab", "q": "c"}
    lines = [f"{query}\t{one}\t{gain:g}\n" for query, own in judged.items() for one, gain in own.items()]
    rows = [{"_id": one, "title": "left out", "text": text} for one, text in queries.items()]
    files = (
        write("corpus.jsonl", *({"_id": one, "title": "", "text": text} for one, text in texts.items())),
        write("queries.jsonl", *rows),
        write("test.tsv", "query-id\tcorpus-id\tscore\n", *lines),
    )
    split, items, combine, notes = retrieval_of([read_rows(file) for file in files], "test", None, dot=True)
    assert split.texts == ("ab", "c")
    assert notes == ("documents with their query's own identifier, which are left out: 1",)
    vectors = np.random.default_rng(0).normal(size=(1, len(items), 5)).astype(np.float32)
    place = {item: number for number, item in enumerate(items)}
    for number, (query, own) in enumerate(judged.items()):
        known = [
            one for one in texts if one != query
        ]  # BEIR takes the query's own document out of its results
        scores = [
            vectors[0, place[texts[one], "document"]] @ vectors[0, place[queries[query], "query"]]
            for one in known
        ]
        gains = np.array([own.get(one, 0.0) for one in known], np.float32)
        np.testing.assert_allclose(
            combine(vectors)[0, number], ranking_scores(np.array(scores), gains), rtol=1e-6
        )


def test_columns_are_chosen_and_renamed(tmp_path):
    file = tmp_path / "reviews.csv"
    file.write_text("review,stars,title\nab,1,x\nb,0,y\nc,1,z\n")
    (chosen,) = of_columns([str(file)], "text=review, label=stars", tmp_path, "utf-8")
    assert read_rows(chosen).records == [
        {"text": t, "label": n} for t, n in (("ab", "1"), ("b", "0"), ("c", "1"))
    ]
    question = examples_of(tmp_path, "classification", Path(chosen)).question
    assert question.lines("accuracy")[0] == "3 rows of reviews.csv: class `label` of `text`; accuracy"
    assert question.unread == ()
    assert of_columns([str(file)], ["text=review", "label=stars"], tmp_path, "utf-8") == (chosen,)


@pytest.mark.parametrize(
    ("files", "columns", "words"),
    [
        (["rows.csv"], "text,score", ("no column 'score'", "--columns text,score", "'label'")),
        (["rows.csv"], "text,text=label", ("--columns text,text=label", "once")),
        (["rows.csv"], "text,", ("--columns text,", "once")),
        ([], "text", ("--columns text", "--data")),
        (["lm-eval:arc_easy"], "text", ("--columns text", "--data")),
        (["corpus.jsonl", "queries.jsonl"], "text", ("--columns text", "--data")),
    ],
)
def test_columns_that_are_not_there_are_refused(tmp_path, files, columns, words):
    (tmp_path / "rows.csv").write_text("text,label\na,1\n")
    named = [file if ":" in file else str(tmp_path / file) for file in files]
    with pytest.raises(DataError, match=naming(*words)):
        of_columns(named, columns, tmp_path, "utf-8")


SENTENCES = ["ab", "c", "cab", "b"]
MEANT = {  # rows with columns that a training would refuse, and the same rows without them
    "text=review,label=stars": [
        ({"review": text, "stars": n % 2, "label": 1, "title": "x"}, {"text": text, "label": n % 2})
        for n, text in enumerate(SENTENCES)
    ],
    "prompt=instruction,completion=output": [
        ({"instruction": text, "output": "ab", "system": "c"}, {"prompt": text, "completion": "ab"})
        for text in SENTENCES
    ],
    "tokens,tags=ner": [
        ({"tokens": words, "ner": ["O", "B"], "tags": ["B", "B"]}, {"tokens": words, "tags": ["O", "B"]})
        for words in ([text, "c"] for text in SENTENCES)
    ],
}  # fmt: skip


@pytest.mark.parametrize("columns", MEANT)
def test_a_task_reads_the_columns_that_are_meant(write, columns):
    """As it reads a file with these alone, also when it is read back from a checkpoint's record."""
    files = [write(f"{name}.jsonl", *rows) for name, rows in zip("ab", map(list, zip(*MEANT[columns])))]
    task = find_task(train=files[0], validation=files[0], name="t", reads=columns_named(columns))
    plain = find_task(train=files[1], validation=files[1], name="t")
    assert replace(task, files=plain.files, reads=()) == plain
    again = TaskSpec.from_json(json.loads(json.dumps(task.to_json())))
    assert again == task
    assert "reads" not in plain.to_json()
    if task.kind != "causal":
        rows, question = load_with_question(again, "validation", expect_fingerprint=True)
        assert rows.fingerprint == load_with_question(plain, "validation")[0].fingerprint
        assert question.unread == ()


def test_other_data_may_have_the_new_names_already(tmp_path, write):
    """The columns of `data` and those of `against` are named at once."""
    old = write("old.jsonl", {"review": "ab", "stars": 1})
    new = write("new.jsonl", {"text": "ab", "stars": 1, "label": 0})
    for file in (old, new):
        (made,) = of_columns([str(file)], "text=review,label=stars", tmp_path, "utf-8", or_new=True)
        assert read_rows(made).records == [{"text": "ab", "label": 1}]
    with pytest.raises(DataError, match=naming(str(new), "no column 'review'")):
        of_columns([str(new)], "text=review", tmp_path, "utf-8")


@pytest.mark.parametrize(("golds", "said"), [([1, 2] * 5, True), ([0, 2] * 5, False), ([1, 2], False)])
def test_right_choices_that_may_count_from_1_are_named(tmp_path, golds, said):
    rows = [{"context": "a", "choices": ["x", "y", "z"], "gold": gold} for gold in golds]
    changes = examples_of(tmp_path, "causal", rows).question.changes
    assert any("no row's right choice is the first one" in one for one in changes) == said


@pytest.mark.parametrize(
    ("template", "lost"),
    [
        ("{% for m in messages %}{{ m.role + m.content }}{% endfor %}", ("messages.weight", "tools")),
        ("{{ messages | tojson }}", ("tools",)),  # which writes every field
        ("{{ messages | tojson }}{{ tools | tojson }}", ()),
    ],
)
def test_what_a_template_never_names_is_not_read(template, lost):
    row = {"messages": [{"role": "user", "content": "a", "weight": 0.5}], "tools": [{"name": "f"}]}
    table = SimpleNamespace(asked={"messages", "tools"}, records=[row])
    assert _unread_by(template, [table]) == lost
