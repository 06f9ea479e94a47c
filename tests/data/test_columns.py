"""Every column is read, named or refused: layouts of public data, and what is said of each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from asked_rows import CHOICE, CLASSES, OTHER, PAIR, TALK, TOKENIZER, TOOLS, TWO, examples_of
from refusals import naming

from adapter_probe.data.columns import _PAIRS, _TEXTS, LABEL_COLUMNS
from adapter_probe.data.examples import Reading
from adapter_probe.data.prompts import WRITTEN
from adapter_probe.data.request_rows import FORMS
from adapter_probe.data.similarity import RERANKED, RETRIEVED, TRIPLETS
from adapter_probe.data.tasks import find_task
from adapter_probe.errors import DataError

# By the kind of head, a row or several, and either the words of the question with what is not read, or the
# words of the refusal.
NAMED: dict[str, list[tuple[Any, ...]]] = {
    "causal": [
        (
            [{**row, "id": n, "source": "web"} for n, row in enumerate(TWO)],
            "`completion` after `prompt`; id; source",
        ),
        ({"text": "ab c", "title": "ab", "url": "x"}, "`text`; title; url"),
        (
            {"text": "Do: ab. It is: c", "instruction": "ab", "output": "c", "input": ""},
            "`text`; instruction; output",
        ),
        # UltraFeedback
        (
            {
                "prompt": "a?",
                "prompt_id": "7f",
                "chosen": TALK,
                "rejected": OTHER,
                "messages": TALK,
                "score_chosen": 8.5,
                "score_rejected": 2.0,
            },
            "`chosen` above `rejected`, after `prompt`; prompt_id; messages; score_chosen",
        ),
        # UltraChat
        (
            {"prompt": "a?", "prompt_id": "7f", "messages": TALK},
            "the last turn of `messages`; prompt; prompt_id",
        ),
        ({"messages": TALK, "tools": TOOLS}, "`messages`"),
        (
            {"messages": [TALK[0], {**TALK[1], "weight": 0, "reasoning_content": "b"}], "tools": TOOLS},
            "`messages`; messages.weight; messages.reasoning_content; tools",
        ),
        (
            {"question": "a?", **CHOICE, "answer": 1, "subject": "law", "id": "q1"},
            "`choices` after `question`, right is `answer`; subject; id",
        ),
        # BLiMP
        (
            {
                "sentence_good": "a b",
                "sentence_bad": "b a",
                "field": "f",
                "UID": "u",
                "pair_id": 3,
                "one_prefix_prefix": "a",
                "linguistics_term": "agreement",
            },
            "`sentence_good` likelier than `sentence_bad`; pair_id; one_prefix_prefix; linguistics_term",
        ),
    ],
    "writing": [
        # MATH
        (
            {"prompt": "a?", "answer": 4, "solution": "2 + 2", "level": "Level 1"},
            "what the model writes after `prompt`, beside `answer`; solution; level",
        ),
    ],
    "classification": [
        (
            [{**row, "title": "t", "keyword": "k", "topic": "x", "id": 5} for row in CLASSES],
            "class `label` of `text`; title; keyword; topic; id",
        ),
        (
            [{**row, "sentiment": ["bad", "good"][row["label"]]} for row in CLASSES],
            "class `label` of `text`; sentiment",
        ),
        ([{**row, "split": "test"} for row in CLASSES], "`label` of `text`; split"),
    ],
    "reward": [
        ({"prompt": "a", **PAIR, "id": 1}, "reward of `chosen` above `rejected`, after `prompt`; id"),
        (
            [{"query": "a", "document": d, "relevance": x, "docid": "7"} for d, x in (("b", 1), ("c", 0))],
            "each `document` scored with its `query`, beside `relevance`; docid",
        ),
    ],
    "embedding": [
        (
            {"anchor": "a", "positive": "b", "negative_1": "c", "negative_2": "d", "negative_id": "n1"},
            "is `positive` nearer than the negatives to `anchor`; negative_id",
        ),
        (
            {"query": "a", "positive": "b", "doc_id": "d1", "label": 1},
            "each query's `positive` among all rows', for `query`; doc_id",
        ),
        (
            [{"sentence1": "a", "sentence2": s, "score": x, "genre": "g"} for s, x in (("b", 1), ("c", 2.5))],
            "similarity of `sentence1` and `sentence2`, beside `score`; genre",
        ),
    ],
    "tokens": [
        (
            {"tokens": ["a", "b"], "ner_tags": ["O", "B-X"], "pos_tags": [3, 4], "id": "1"},
            "one of `ner_tags` for each of `tokens`; pos_tags; id",
        ),
    ],
}
ANSWERS = (
    "response output answer target gold solution reference generation gold_answer expectedOutput "
    "response_text label summary"
)
REFUSED: dict[str, list[tuple[Any, ...]]] = {
    "causal": [
        *(({"prompt": "a", name: "b"}, f"texts; {name}; completion; --generate") for name in ANSWERS.split()),
        # GRPO
        ({"prompt": TALK[:1], "answer": "ab"}, "prompt; --generate; completion"),
        ({"prompt": "a", "label": 1}, "label; the answer"),
        ({"prompt": "a", "completions": ["b"]}, "completions"),
        ({"prompt": "a", **CHOICE, "answer": 0}, "choices; context; gold"),
        ({"prompt": "a", "system": "b"}, "system; prompt"),
        *(
            ({"text": "a", name: "b"}, f"texts; {name}; prompt; completion")
            for name in ["target", "output", "translation", "label", "question"]
        ),
        *(
            ({name: "a", **PAIR}, f"preferences; {name}; --columns prompt={name},chosen,rejected")
            for name in ["question", "instruction", "input", "query", "system_prompt"]
        ),
        # Intel/orca_dpo_pairs
        ({"system": "s", "question": "a", **PAIR}, "system; prompt"),
        ({"prompt": "a", "history": [["b", "c"]], **PAIR}, "history"),
        ({"prompt": "a", **PAIR, "ref_chosen_logps": -3.0}, "ref_rejected_logps"),
        # TRL's older names of the reference
        (
            {"prompt": "a", **PAIR, "reference_chosen_logps": -3.0, "reference_rejected_logps": -2.0},
            "reference_chosen_logps; name both ref_chosen_logps",
        ),
        ({"prompt": "c?", "chosen": TALK, "rejected": OTHER}, "prompt; answers begin"),
        ({**TWO[0], "input": "x"}, "input; part of the prompt"),
        ({**TWO[0], "context": "x"}, "context"),
        ({**TWO[0], "suffix": "x"}, "suffix"),
        # KTO
        ([{**TWO[0], "label": True}, {**TWO[1], "label": False}], "label; chosen"),
        ({**TWO[0], "answer": "b"}, "answer"),
        *(
            ({"question": "a", **CHOICE, "answer": 0, name: "xy"}, f"{name}; question")
            for name in ["passage", "hint", "article", "image"]
        ),
        ({"context": "a", **CHOICE, "gold": 0, "question": "xy"}, "question; context"),
        ({"messages": TALK, "system": "xy"}, "system; messages"),
        ({"messages": TALK, "prompt": "c?"}, "prompt"),
        (
            {"prompt": "Say x.", "chosen": "Say x. ab", "rejected": "Say x. c"},
            "prompt; twice; --columns chosen,rejected",
        ),
        (
            [{"prompt": "Say x.", "completion": "Say x. ab"}, {"prompt": "b", "completion": "b c"}],
            "completion; twice",
        ),
        ({"prompt": "a", **PAIR, "winner": "rejected"}, "winner"),
        ([{**row, "split": s} for row, s in zip(TWO, ("train", "test"))], "split"),
    ],
    "reward": [
        *(
            ({name: "a", **PAIR}, f"{name}; --columns prompt={name},chosen,rejected")
            for name in ("question", "instruction", "input")
        ),
        (
            [
                {"query": "a", "document": d, "relevance": x, "score": y}
                for d, x, y in (("b", 1, 0), ("c", 1, 1))
            ],
            "relevance; score",
        ),
    ],
    "writing": [
        ({"prompt": "a", **CHOICE, "answer": 1}, "choices; without --generate"),
        ({"prompt": "a", "answer": "b", "answers": ["c"]}, "which may be what is right; answers"),
        ({"question": "a", "answer": "b"}, "--columns prompt=question"),
        ({"prompt": "a", "answer": "  "}, "answer; a text or a number"),
        ({"prompt": "a", "answer": "b", "context": "c"}, "context"),
    ],
    "classification": [
        ([CLASSES[0], {**CLASSES[1], "text_b": "x"}], "text; text_b"),
        ([{**row, "gold_label": g} for row, g in zip(CLASSES, (1, 1, 0))], "gold_label; label"),
        (
            [{"text": text, "label": n % 2, "labels": 1 - n % 2} for n, text in enumerate("abcd")],
            "label; labels",
        ),
        ([{**row, "score": g} for row, g in zip(CLASSES, (0.9, 0.2, 0.7))], "score; differ"),
        (
            [
                {"sentence1": "a", "sentence2": "b", "premise": "c", "hypothesis": "d", "label": n}
                for n in (0, 1)
            ],
            "premise; sentence1",
        ),
        ([{**row, "aspect": "food"} for row in CLASSES], "aspect"),
        ([{**row, "split": s} for row, s in zip(CLASSES, ("train", "test", "test"))], "split; train; test"),
        ([{**row, "subset": s} for row, s in zip(CLASSES, ("train", "dev", "test"))], "subset; train; test"),
    ],
    "embedding": [
        ({"anchor": "a", "positive": "b", "hard_negative": "c"}, "negative"),
        ({"anchor": "a", "positive": "b", "negative1": "c"}, "negative_1"),
        ({"query": "a", "positive": "b", "neg": ["c"]}, "neg; negative"),
        (
            [{"anchor": "a", "positive": "b"}, {"anchor": "c", "positive": "d", "negative": "e"}],
            "line 1; no negative",
        ),
        (
            [{"anchor": "a", "positive": "b", "label": 0}, {"anchor": "c", "positive": "d", "label": 1}],
            "label; sentence1",
        ),
        ({"query": "a", "anchor": "c", "positive": "b"}, "anchor; query"),
        ({"query": "a", "positive": "b", "instruction": "c"}, "instruction; a prompt of the query"),
    ],
    "extractive": [
        (
            [
                {
                    "question": "Who?",
                    "context": "a b",
                    "answers": {"text": ["b"], "answer_start": [2]},
                    "split": s,
                }
                for s in ("train", "dev")
            ],
            "split; train; dev",
        ),
    ],
    "tokens": [
        ({"tokens": ["a", "b"], "tags": ["O", "B-X"], "ner_tags": ["O", "O"]}, "ner_tags; tags"),
    ],
}


def flat(table: dict[str, list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
    """The kind of head, the rows, and the words of every case; a single row stands alone."""
    cases = [(kind, *case) for kind, own in table.items() for case in own]
    return [(kind, row if isinstance(row, list) else [row], words.split("; ")) for kind, row, words in cases]


@pytest.mark.parametrize(("kind", "rows", "words"), flat(NAMED))
def test_what_is_read_is_said_and_what_is_not_is_named(tmp_path, kind, rows, words):
    asks, *unread = words
    question = examples_of(tmp_path, kind, rows).question
    said = question.lines("the metric")
    assert said[0].startswith(f"{len({*map(str, rows)}):,} row") or "queries" in said[0] or "query" in said[0]
    assert asks in said[0]
    assert set(unread) <= set(question.unread)
    columns = {k for row in rows for k, v in row.items() if v != ""}
    assert {one.partition(".")[0] for one in (*question.read, *question.unread)} == columns
    assert [line for line in said if line.startswith("not read: ")] == (
        [f"not read: {', '.join(question.unread)}"] if question.unread else []
    )


@pytest.mark.parametrize(("kind", "rows", "words"), flat(REFUSED))
def test_what_may_be_a_part_of_the_question_is_refused_with_the_right_names(tmp_path, kind, rows, words):
    with pytest.raises(DataError, match=naming(*words)):
        examples_of(tmp_path, kind, rows)


# Of layouts that are refused, the kind of head and the `--columns` that the line ends with.
RIGHT: dict[str, tuple[str, dict[str, Any], str]] = {
    "Alpaca": ("causal", {"instruction": "a", "input": "c", "output": "c"},
               "prompt=instruction,completion=output"),
    "Dolly": ("causal", {"instruction": "a", "context": "c", "response": "c", "category": "x"},
              "prompt=instruction,completion=response"),
    "GSM8K": ("causal", {"question": "a", "answer": "c"}, "prompt=question,completion=answer"),
    "FLAN": ("causal", {"inputs": "a", "targets": "c"}, "prompt=inputs,completion=targets"),
    "MetaMath": ("causal", {"type": "x", "query": "a", "original_question": "c", "response": "c"},
                 "prompt=query,completion=response"),
    "MATH": ("causal", {"problem": "a", "level": "1", "solution": "c"}, "prompt=problem,completion=solution"),
    "XSum": ("causal", {"document": "a", "summary": "c", "id": "1"}, "prompt=document,completion=summary"),
    "HumanEval": ("causal", {"task_id": "x", "prompt": "a", "canonical_solution": "c"},
                  "prompt,completion=canonical_solution"),
    "MBPP": ("causal", {"text": "a", "code": "c"}, "prompt=text,completion=code"),
    "prompts and responses": ("causal", {"prompt": "a", "response": "c"}, "prompt,completion=response"),
    "conversations": ("causal", {"conversations": TALK}, "messages=conversations"),
    "questions by an index": ("causal", {"question": "a", **CHOICE, "label": 1},
                              "question,choices,answer=label"),
    "HellaSwag by an index": ("causal", {"ctx": "a", "endings": ["a", "b"], "label": 1},
                              "context=ctx,choices=endings,gold=label"),
    "prompts with choices": ("causal", {"prompt": "a", **CHOICE, "answer": 0},
                             "context=prompt,choices,gold=answer"),
    "Orca's pairs": ("causal", {"system": "s", "question": "a", **PAIR}, "prompt=question,chosen,rejected"),
    "questions with two answers": ("reward", {"question": "a", **PAIR}, "prompt=question,chosen,rejected"),
    "answers by their names": ("causal", {"prompt": "a", "chosen_response": "c", "rejected_response": "c"},
                               "prompt,chosen=chosen_response,rejected=rejected_response"),
    "SQuAD to write": ("writing", {"context": "a", "question": "c", "answers": {"text": ["c"]}},
                       "prompt=question,answers"),
    "GSM8K to write": ("writing", {"question": "a", "answer": "b #### 1"}, "prompt=question,answer"),
    "Alpaca to write": ("writing", {"instruction": "a", "input": "c", "output": "c"},
                        "prompt=instruction,answer=output"),
    "completions to write": ("writing", {"prompt": "a", "completion": "c"}, "prompt,answer=completion"),
    "Natural Questions": ("embedding", {"query": "a", "answer": "c"}, "query,positive=answer"),
    "GooAQ": ("embedding", {"question": "a", "answer": "c"}, "query=question,positive=answer"),
    "a hard negative": ("embedding", {"anchor": "a", "positive": "b", "hard_negative": "c"},
                        "anchor,positive,negative=hard_negative"),
    "pos and neg": ("embedding", {"query": "a", "pos": "b", "neg": "c"}, "query,positive=pos,negative=neg"),
    "an aspect": ("three classes", {"sentence": "a", "aspect": "c", "label": 1}, "sentence,label"),
    "FEVER": ("three classes", {"claim": "a", "evidence": "c", "label": 1},
              "text_a=claim,text_b=evidence,label"),
    "a similarity by another name": (
        "embedding", {"sentence1": "a", "sentence2": "c", "similarity_score": 1.0},
        "sentence1,sentence2,score=similarity_score",
    ),
    "conversations with a system": ("causal", {"system_prompt": "s", "question": "a", "response": "c"},
                                    "prompt=question,completion=response"),
    "MMLU-Pro": ("causal", {"question": "a", "options": ["a", "b"], "answer": "A", "answer_index": 1},
                 "context=question,choices=options,gold=answer_index"),
    "a comment": ("three classes", {"comment_text": "a", "intent": 1}, "text=comment_text,label=intent"),
    "fine and coarse": ("three classes", {"text": "a", "fine_label": 1}, "text,label=fine_label"),
}  # fmt: skip


@pytest.mark.parametrize(
    "row",
    [
        {"context": "a", "question": "c", "answerA": "a", "answerB": "b", "answerC": "c", "label": "1"},
        {"goal": "a", "sol1": "b", "sol2": "c", "label": 0},
        {"sentence": "a _ c", "option1": "a", "option2": "b", "answer": "1"},
        {"question": "a", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "A"},
    ],
)
def test_no_choice_is_taken_for_the_answer(tmp_path, row):
    with pytest.raises(DataError, match=naming("choices", "gold")) as refused:
        examples_of(tmp_path, "causal", [row])
    assert "--columns" not in str(refused.value)


@pytest.mark.parametrize("case", RIGHT)
def test_a_refusal_ends_with_columns_that_are_read(tmp_path, case):
    kind, row, right = RIGHT[case]
    scored = kind == "three classes" or "score" in right
    rows = [row, {**row, list(row)[-1]: 2}] if scored else [row]
    with pytest.raises(DataError) as refused:
        examples_of(tmp_path, kind, rows)
    assert str(refused.value).endswith(f"--columns {right}") or f"--columns {right}, or" in str(refused.value)
    for one in re.findall(r"--columns ([\w=,]*\w)", str(refused.value)):
        sources = {name.rpartition("=")[2] for name in one.split(",")}
        unread = examples_of(tmp_path, kind, rows, reads=tuple(one.split(","))).question.unread
        assert sources <= {*row}
        assert unread == ()


@pytest.mark.parametrize(
    ("labels", "said"), [((1, 2), "first label, 0: the labels are 1 to 2"), ((0, 2), "")]
)
def test_labels_that_count_from_1_are_named(tmp_path, labels, said):
    rows = [{"text": "a", "label": label} for label in labels]
    changes = examples_of(tmp_path, "three classes", rows).question.changes
    assert any(said in one for one in changes) if said else not any("first label" in one for one in changes)


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        ([{"prompt": "a", "completion": "b", "context": "c"}], "context"),
        ([{"gold_label": 1, "label": n, "text": text} for n, text in enumerate("ab")], "gold_label"),
    ],
)
def test_the_rule_holds_for_training(write, rows, word):
    files = {split: write(f"{split}.jsonl", *rows) for split in ("train", "validation")}
    with pytest.raises(DataError, match=naming(word)):
        Reading(TOKENIZER, find_task(**files), "validation", 256).examples()


def test_columns_of_conll_between_words_and_tags_are_named(tmp_path, write):
    file = write("test.conll", "a NN O\nb VB B-X\n\nc NN O\n")
    assert examples_of(tmp_path, "tokens", file).question.unread == ("column 2",)


def test_a_table_is_read_by_the_same_rule(tmp_path, write):
    file = write("rows.csv", "text,label,stars\na,0,1\nb,1,1\nc,1,5\n")
    with pytest.raises(DataError, match=naming("stars", "label", "--columns text,label")):
        examples_of(tmp_path, "classification", file)


GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "language-models.md").read_text(encoding="utf-8")
LOGPS = {"ref_chosen_logps": -1.0, "ref_rejected_logps": -2.0}
QUERY = {"query": "a", "document": "b"}
# By the beginning of a row of the guide's table, rows that are read so; the first is given further columns.
FORMS_OF_GUIDE: dict[str, tuple[str, list[list[dict[str, Any]]]]] = {
    "choices": ("causal", [
        [{"question": "a", **CHOICE, "answer": 1}], [{"context": "a", **CHOICE, "gold": 1}],
    ]),
    "minimal pairs": ("causal", [[{"sentence_good": "a", "sentence_bad": "b", "field": "x", "UID": "y"}]]),
    "preferences": ("causal", [[{"prompt": "a", **PAIR}], [{"prompt": "a", **PAIR, **LOGPS}]]),
    "completions": ("causal", [[*TWO]]),
    "conversations": ("causal", [
        [{"messages": TALK}], [{"messages": TALK, "tools": TOOLS, "chat_template_kwargs": {"x": 1}}],
    ]),
    "texts": ("causal", [[{"text": "a"}], [{"prompt": "a"}]]),
    "prompts whose": ("writing", [
        [{"prompt": "a", "answer": "b"}], [{"messages": TALK[:1], "answers": ["b", "c"]}],
    ]),
    "labelled texts": ("classification", [[*CLASSES]]),
    "sentences": ("tokens", [
        [{"tokens": ["a"], name: ["O"]}, {"tokens": ["b"], name: ["B-X"]}] for name in
        ("tags", "ner_tags", "labels")
    ]),
    "questions on": (
        "extractive",
        [[{"question": "Who?", "context": "a b", "answers": {"text": ["b"], "answer_start": [2]}}]],
    ),
    "triplets": ("embedding", [
        [{"anchor": "a", "positive": "b", "negative": "c"}],
        [{"query": "a", "positive": "b", "negative_1": "c"}],
        [{"query": "a", "positive": "b", "negatives": ["c", "d"]}],
    ]),
    "queries with a": ("embedding", [[{"anchor": "a", "positive": "b"}], [{"query": "a", "positive": "b"}]]),
    "queries with d": ("reward", [
        [{**QUERY, name: n, "document": d} for n, d in enumerate("cb")] for name in
        ("relevance", "label", "score")
    ]),
}  # fmt: skip


def test_the_guide_says_what_every_form_reads_and_refuses(tmp_path):
    """Its table against what becomes of rows with these columns."""
    table = re.findall(r"^\| ([^`|]+?)(?: \(`.*?`\))? \| (.+?) \| (.+) \|$", GUIDE, re.MULTILINE)
    table = [row for row in table if any(row[0].startswith(begin) for begin in FORMS_OF_GUIDE)]
    assert len(table) == len(FORMS_OF_GUIDE)
    forms = {form.about.name for form in FORMS.values()} | {
        form.name for form in (WRITTEN, TRIPLETS, RETRIEVED, RERANKED)
    }
    assert forms <= {name for row in table for name in row[0].split("; ")}
    for name, read, refused in table:
        (begin,) = (one for one in FORMS_OF_GUIDE if name.startswith(one))
        kind, cases = FORMS_OF_GUIDE[begin]
        questions = [
            examples_of(tmp_path, kind, [{**r, "id": n} for n, r in enumerate(case)]).question
            for case in cases
        ]
        assert all("id" in question.unread for question in questions), name
        said = set(re.findall(r"`(\w+)`", read))
        found = {column for question in questions for column in question.read}
        known = {
            *_TEXTS,
            *LABEL_COLUMNS,
            *(column for pair in _PAIRS for column in pair if "#" not in column),
        }
        assert said == (known if begin == "labelled texts" else found), name
        for column in re.findall(r"`(\w+)`", refused):
            rows = [{**row, column: f"xyz {n}"} for n, row in enumerate(cases[0])]
            if column not in said and (begin, column) != ("queries with a", "label"):
                with pytest.raises(DataError, match=naming(column)):
                    examples_of(tmp_path, kind, rows)
