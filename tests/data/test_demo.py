"""The sentences of the demo: what the grammar writes, balanced, with held-out words, no giveaways."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import OneHotEncoder

from adapter_probe.data.demo import SENTENCES, write_demo
from adapter_probe.errors import DataError

SCRIPTS = Path(__file__).parents[2] / "benchmarks" / "preparing"
# Written out by hand, independently of the grammar: the words that both splits may use.
CLOSED_CLASS = re.findall(
    r"\w+",
    """the a an some every all this these that those which whose who what no few than as and to from in
    of near behind beside front before after while without there almost ever never often always
    sometimes usually rarely is are was were has have had did will must can should he him she her
    they them we us i me himself herself thought yesterday tomorrow last next week night month year
    ago two days now""",
)


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> dict[str, list[dict]]:
    folder = tmp_path_factory.mktemp("demo")
    write_demo(folder)
    return {
        split: [json.loads(line) for line in (folder / f"{split}.jsonl").read_text().splitlines()]
        for split in ("train", "validation")
    }


def is_acceptable(rows: list[dict]) -> np.ndarray:
    return np.array([row["label"] == "acceptable" for row in rows])


def test_the_file_is_what_the_script_writes(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    from demo_sentences import content

    assert SENTENCES.read_bytes() == content()


@pytest.mark.parametrize("split", ["train", "validation"])
def test_each_phenomenon_has_as_many_of_both_labels(task, split):
    counts = Counter((row["phenomenon"], row["label"]) for row in task[split])
    names = {name for name, _ in counts}
    assert set(counts) == {(name, label) for name in names for label in ("acceptable", "unacceptable")}
    assert max(counts.values()) - min(counts.values()) <= 1
    assert is_acceptable(task[split]).mean() == 0.5


def test_nothing_of_the_validation_set_is_seen_in_training(task):
    sentences = [row["sentence"].lower() for rows in task.values() for row in rows]
    assert len(set(sentences)) == len(sentences)
    seen = {
        split: {word for row in rows for word in re.findall(r"[a-z]+", row["sentence"].lower())}
        for split, rows in task.items()
    }
    assert seen["train"] & seen["validation"] <= set(CLOSED_CLASS)
    assert len(seen["validation"] - set(CLOSED_CLASS)) > 200


def test_words_lengths_and_punctuation_stay_near_chance(task):
    train, validation = task["train"], task["validation"]
    words = CountVectorizer(token_pattern=r"\w+|[.?]")
    table = words.fit_transform(row["sentence"] for row in train)
    model = LogisticRegression(C=0.01, max_iter=2000).fit(table, is_acceptable(train))
    held_out = words.transform(row["sentence"] for row in validation)
    assert model.score(held_out, is_acceptable(validation)) < 0.6

    def shape(rows: list[dict]) -> list[tuple]:
        return [
            (len(row["sentence"]), len(row["sentence"].split()), row["sentence"][-1], row["phenomenon"])
            for row in rows
        ]

    encoder = OneHotEncoder(handle_unknown="ignore")
    model = LogisticRegression(max_iter=2000).fit(encoder.fit_transform(shape(train)), is_acceptable(train))
    assert model.score(encoder.transform(shape(validation)), is_acceptable(validation)) < 0.55


def test_fewer_sentences_are_the_first_ones(task, tmp_path):
    write_demo(tmp_path, 40, 20)
    for split, n in (("train", 40), ("validation", 20)):
        rows = [json.loads(line) for line in (tmp_path / f"{split}.jsonl").read_text().splitlines()]
        assert rows == task[split][:n]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot write .*file"):
        write_demo(tmp_path / "file")
