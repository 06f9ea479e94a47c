"""Scores of written texts."""

from __future__ import annotations

import numpy as np
import pytest

from adapter_probe.data.written_scores import last_number, refuse_without_number, scores_by, scores_of
from adapter_probe.errors import DataError


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### 1,234", 1234), ("3 + 4 = 7.", 7), ("-2.50 $", -2.5), ("none", None), ("7 and .5", 0.5),
        ("1,2", 2), ("12,345,678.9!", 12345678.9), ("a-3", -3),
        ("10-5", 5), ("2024-01-05", 5), ("\u22125", -5),
        ("1e5", 1e5), ("so -1.5e-3.", -1.5e-3), ("1e5x", 5), ("1/2", 0.5), ("= -3/4.", -0.75),
        ("01/05/2024", 2024),
        ("1/0", 0), ("(2)-1", 1), ("-$3", -3), ("v1.2.3", 0.3),
    ],
)  # fmt: skip
def test_the_last_number_of_a_text(text, number):
    assert last_number(text) == number


@pytest.mark.parametrize(
    ("metric", "text", "answers", "score"),
    [
        ("text_match", " Paris \n", ["paris", "Paris"], 1), ("text_match", "Paris.", ["Paris"], 0),
        ("contains", "It is Paris.", ["Rome", "Paris"], 1), ("contains", "paris", ["Paris"], 0),
        ("number", "so 1,000.0 dollars", ["#### 1000"], 1), ("number", "no number", ["no number"], 0),
        ("token_f1", "the red fox", ["a fox that is red", "cat"], 2 * 2 / (2 + 4)),
        ("token_f1", "", ["x"], 0),
    ],
)  # fmt: skip
def test_metrics_of_one_text(metric, text, answers, score):
    found = scores_of(metric, [[text, None]], [answers, answers])
    assert found.tolist() == [[pytest.approx(score), 0]]


def test_answers_without_a_number_are_refused_where_numbers_are_compared():
    refuse_without_number([["twelve", "12"], ["1/2"]], "validation")
    with pytest.raises(
        DataError, match=r"validation row 2: --metric number, .* no answer has a number: 'none'"
    ):
        refuse_without_number([["12"], ["none", "no"]], "validation")


def test_rouge_l_is_that_of_its_package():
    rouge = pytest.importorskip("rouge_score.rouge_scorer").RougeScorer(["rougeL"])
    text, answers = "the cat sat on a mat", ["a cat sat on the mat today", "dogs run"]
    expected = max(rouge.score(answer, text)["rougeL"].fmeasure for answer in answers)
    assert scores_of("rouge_l", [[text]], [answers]) == np.float32(expected)


def test_a_function_scores_every_text_and_may_not_return_one_number_for_all():
    def length(answers, texts):
        return [len(text) - len(own[0]) for own, text in zip(answers, texts)]

    assert scores_by(length, "length", [["abc", None], ["", "d"]], [["a"], ["b"]]).tolist() == [
        [2, -1],
        [-1, 0],
    ]
    with pytest.raises(DataError, match=r"the metric one returned 1.0 for 2 texts"):
        scores_by(lambda answers, texts: 1.0, "one", [["a", "b"]], [["a"], ["b"]])
