"""The sentences of the demo: what the grammar writes, balanced, with held-out words, no giveaways."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from refusals import naming

from adapter_probe.data.demo import SENTENCES, write_demo
from adapter_probe.errors import DataError

SCRIPTS = Path(__file__).parents[2] / "benchmarks" / "preparing"
# Written out by hand, independently of the grammar: the words that both splits may use.
CLOSED_CLASS = re.findall(
    r"\w+",
    """the that which whose who what no few and in of near behind beside front before after while without
    ever never often always sometimes usually rarely has have did""",
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
    assert len(seen["validation"] - set(CLOSED_CLASS)) > 100


def test_only_the_order_of_words_tells(task):
    for rows in task.values():
        words = {
            label: Counter(
                (row["phenomenon"], *sorted(re.findall(r"\w+|[.?]", row["sentence"].lower())))
                for row in rows
                if row["label"] == label
            )
            for label in ("acceptable", "unacceptable")
        }
        assert words["acceptable"] == words["unacceptable"]


def test_fewer_sentences_are_the_first_ones(task, tmp_path):
    write_demo(tmp_path, 40, 20)
    for split, n in (("train", 40), ("validation", 20)):
        rows = [json.loads(line) for line in (tmp_path / f"{split}.jsonl").read_text().splitlines()]
        assert rows == task[split][:n]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=naming("file")):
        write_demo(tmp_path / "file")
