"""Questions out of SQuAD's JSON and out of rows, and every way in which an answer may be wrong."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import names, refused
from row_files import answer, jsonl, squad

from adapter_probe.data.squad import Answer
from adapter_probe.data.tasks import Columns, find_task, load_split

CAT = "The cat sat on the mat. The cat slept."


def test_questions_and_their_paragraphs(folder):
    where, who = [answer("on the mat", 12), answer("the mat", 15)], [answer("cat", 28)]
    here = folder(
        squad(
            (CAT, {"Where?": where, "Who slept?": who}),
            ("Ein Hündchen 🐕 bellt.", {"Wer?": [answer("🐕", 13)]}),
        )
    )
    task = find_task(here)
    found = load_split(task, "train", expect_fingerprint=True)
    assert (task.kind, task.metric, task.columns) == (
        "extractive",
        "squad_f1",
        Columns("question", "context", "answers"),
    )
    assert found.questions == ("Where?", "Who slept?", "Wer?")
    assert found.contexts == (CAT, "Ein Hündchen 🐕 bellt.")
    assert found.paragraph.tolist() == [0, 0, 1]
    assert found.answers == (
        (Answer("on the mat", 12), Answer("the mat", 15)),
        (Answer("cat", 28),),
        (Answer("🐕", 13),),
    )
    assert (len(found), found.name, found.fingerprint) == (3, "train", task.fingerprints["train"])


def test_rows_of_questions_equal_squads_json(folder, tmp_path_factory):
    task = find_task(folder(squad((CAT, {"Who?": [answer("cat", 4)], "Where?": [answer("mat", 19)]}))))
    other = tmp_path_factory.mktemp("rows")
    asked = ("Who?", "cat", 4), ("Where?", "mat", 19)
    rows = [
        {"context": CAT, "question": question, "answers": {"text": [text], "answer_start": [at]}}
        for question, text, at in asked
    ]
    (other / "train.jsonl").write_text(jsonl(*rows))
    assert find_task(other).fingerprints == task.fingerprints


def test_other_columns_can_be_named(folder):
    row = {"q": "Who?", "passage": CAT, "gold": [answer("cat", 4)]}
    here = folder(train_jsonl=jsonl(row))
    found = load_split(find_task(here, reads=("question=q", "context=passage", "answers=gold")), "train")
    assert (found.questions, found.contexts) == (("Who?",), (CAT,))


def test_several_files_make_one_split(folder):
    here = folder(squad((CAT, {"Who?": [answer("cat", 4)]}), file="a.json"))
    two = ("Two.", {"What?": [answer("Two", 0)]})
    folder(squad((CAT, {"Where?": [answer("mat", 19)]}), two, file="b.json"))
    found = load_split(find_task(train=[here / "b.json", here / "a.json"]), "train")
    assert found.questions == ("Where?", "What?", "Who?")
    assert found.paragraph.tolist() == [0, 1, 0]


def test_a_subset_is_nested_and_keeps_only_its_paragraphs(folder):
    paragraphs = [
        (f"Number {i} is here.", {f"What is {i}{j}?": [answer(str(i), 7)] for j in range(2)})
        for i in range(10)
    ]
    task = find_task(folder(squad(*paragraphs)))
    whole = load_split(task, "train")
    small, large = (load_split(task, "train", n, expect_fingerprint=True) for n in (4, 12))
    assert set(small.questions) < set(large.questions) < set(whole.questions)
    assert len(small) == 4
    for found in (small, large):
        for number, question in enumerate(found.questions):
            before = whole.questions.index(question)
            assert found.contexts[found.paragraph[number]] == whole.contexts[whole.paragraph[before]]
            assert found.answers[number] == whole.answers[before]
        assert set(found.paragraph) == set(range(len(found.contexts)))
    assert load_split(task, "train", 20).fingerprint == whole.fingerprint != small.fingerprint


def test_changed_questions_are_noticed(folder):
    here = folder(squad((CAT, {"Who?": [answer("cat", 4)]})))
    task = find_task(here)
    folder(squad((CAT, {"Who?": [answer("cat", 28)]})))
    load_split(task, "train")
    said = refused(load_split, task, "train", expect_fingerprint=True)
    assert names(said, str(here / "train.json"), "train", repr(task.name))


@given(shift=st.integers(-6, 6))
def test_an_answer_a_character_or_two_off_is_put_right(shift, tmp_path_factory):
    here = tmp_path_factory.mktemp("shifted")
    (content,) = squad((CAT, {"Who?": [answer("cat sat", 4 + shift)]})).values()
    (here / "train.json").write_text(content)
    if abs(shift) <= 2:
        assert load_split(find_task(here), "train").answers == ((Answer("cat sat", 4),),)
    else:
        message = refused(find_task, here)
        assert names(message, "'cat sat'", f"character {4 + shift}")


def test_an_answer_where_it_is_said_to_be_is_not_moved(folder):
    task = find_task(folder(squad(("aaaaa", {"Which?": [answer("a", 2)]}))))
    assert load_split(task, "train").answers == ((Answer("a", 2),),)


@pytest.mark.parametrize(
    ("answers", "facts"),
    [
        ([], ("no answers", "SQuAD 2.0")),
        ([answer("dog", 4)], ("'dog'", "character 4", "'cat'")),
        ([answer("cat", 400)], ("'cat'", "character 400", "''")),
        ([answer("", 4)], ("''", "character 4", "'c'")),
        ([answer(" ", 3)], ("' '", "character 3")),
        ([answer("cat", "4")], ("'cat'", "'4'", "string", "whole number")),
        ([answer("cat", True)], ("'cat'", "True", "string", "whole number")),
        ([{"text": "cat"}], ("'cat'", "None", "string", "whole number")),
        ([{"answer_start": 4}], ("None", "4", "string", "whole number")),
        (["cat"], ("['cat']", "list", "text", "answer_start")),
        ({"text": ["cat"]}, ("{'text': ['cat']}", "list", "text", "answer_start")),
        ({"text": ["cat"], "answer_start": []}, ("{'text': ['cat'], 'answer_start': []}", "list")),
    ],
)
def test_wrong_answers_are_told_by_their_place(folder, answers, facts):
    here = folder(
        squad(("One.", {"A?": [answer("One", 0)]}), (CAT, {"B?": [answer("cat", 4)], "C?": answers}))
    )
    place = f"{here}/train.json article 2, paragraph 1, question 2"
    assert names(refused(find_task, here), place, *facts)


def test_unfit_texts_are_told_by_their_place(folder):
    question = {"question": "?", "answers": []}
    here = folder(train_json=json.dumps({"data": [{"paragraphs": [{"context": 7, "qas": [question]}]}]}))
    place = f"{here}/train.json article 1, paragraph 1, question 1"
    assert names(refused(find_task, here), place, "'context'", "7", "string", "Unicode")
    folder(train_json=json.dumps({"data": [{"paragraphs": [{"context": "c", "qas": [{"id": "x"}]}]}]}))
    assert names(refused(find_task, here), place, "'answers'", "'id'")


def test_a_test_split_without_answers_is_left_out(folder):
    here = folder(squad((CAT, {"Who?": [answer("cat", 4)]})))
    folder(squad((CAT, {"Who?": []}), file="test.json"))
    assert list(find_task(here).files) == ["train"]
    assert "no answers" in refused(find_task, here, test=here / "test.json")


def test_a_split_that_is_not_there_and_a_metric_of_classes_are_refused(folder):
    here = folder(squad((CAT, {"Who?": [answer("cat", 4)]})))
    assert names(refused(load_split, find_task(here), "test"), "split 'test'")
    said = refused(find_task, here, metric="accuracy")
    assert names(said, "'accuracy'", "extractive", "squad_f1, exact_match")


@pytest.mark.real_data
def test_real_questions(shared_dir):
    folder = shared_dir / "data" / "squad"
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}")
    task = find_task(folder, preset="squad")
    for split, n_questions, n_paragraphs in (("train", 8309, 1582), ("validation", 2261, 485)):
        found = load_split(task, split, expect_fingerprint=True)
        assert (len(found), len(found.contexts)) == (n_questions, n_paragraphs)
        for number, answers in enumerate(found.answers):
            context = found.contexts[found.paragraph[number]]
            assert all(context[a.start : a.start + len(a.text)] == a.text for a in answers)
