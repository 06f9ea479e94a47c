"""Examples in memory: a DataFrame, rows, or texts and labels in place of a file."""

from __future__ import annotations

import errno
import importlib
import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from refusals import naming, refuses

import adapter_probe as ap
from adapter_probe.data.in_memory import categories_of
from adapter_probe.studies.example_files import as_files

CIRCULAR: list = []
CIRCULAR.append({"again": CIRCULAR})
NESTED: list = []
for _ in range(2000):
    NESTED = [NESTED]


@pytest.fixture(scope="module")
def frame(tiny_task: Path) -> pd.DataFrame:
    return pd.read_json(tiny_task / "validation.jsonl", lines=True).head(24)


def written(data: object, folder: Path, checkpoint: Path) -> list[dict]:
    (path,) = as_files(data, folder, checkpoint)
    return [json.loads(line) for line in Path(path).read_text("utf-8").splitlines()]


@pytest.mark.slow
def test_a_frame_is_ablated_as_its_file_is(checkpoint, frame, tmp_path):
    file = tmp_path / "some.jsonl"
    frame.to_json(file, orient="records", lines=True)
    by_file = ap.ablate(checkpoint, data=file, out=tmp_path / "file", progress=False)
    by_frame = ap.ablate(checkpoint, data=frame, out=tmp_path / "frame", progress=False)
    pd.testing.assert_frame_equal(by_file.spans, by_frame.spans)
    assert by_frame.results.identity["data"] == by_file.results.identity["data"]
    again = ap.ablate(checkpoint, data=frame.to_dict("records"), out=tmp_path / "frame", progress=False)
    assert len(list((tmp_path / "frame" / "data").iterdir())) == 1
    np.testing.assert_array_equal(again.predictions, by_frame.predictions)
    with pytest.raises(ap.ResultsError, match="data"):
        ap.ablate(checkpoint, data=frame.head(20), out=tmp_path / "frame", progress=False)


def test_every_form_is_the_same_file(checkpoint, frame, tmp_path):
    texts, labels = frame["text"], frame["label"]
    forms = [
        frame,
        frame.set_index(np.arange(len(frame)) + 7),
        frame.to_dict("records"),
        (list(texts), list(labels)),
        [texts, labels.to_numpy()],
    ]
    assert len({as_files(form, tmp_path, checkpoint) for form in forms}) == 1
    assert written(frame, tmp_path, checkpoint) == frame.to_dict("records")
    assert as_files(frame.tail(5), tmp_path, checkpoint) != as_files(frame, tmp_path, checkpoint)


def test_tables_of_other_libraries(checkpoint, frame, tmp_path):
    """Polars has `columns` and `to_dicts`, pyarrow and datasets have `to_pandas`."""
    polars = SimpleNamespace(columns=["text", "label"], to_dicts=lambda: frame.to_dict("records"))
    arrow = SimpleNamespace(column_names=["text", "label"], to_pandas=lambda: frame)
    right = as_files(frame, tmp_path, checkpoint)
    assert as_files(polars, tmp_path, checkpoint) == as_files(arrow, tmp_path, checkpoint) == right

    def lacks():
        raise ModuleNotFoundError("No module named 'pyarrow'")

    refuses(ap.DataError, ("pyarrow",), as_files, SimpleNamespace(to_pandas=lacks), tmp_path, checkpoint)


def test_real_tables_of_other_libraries(checkpoint, frame, tmp_path):
    right = as_files(frame, tmp_path, checkpoint)
    columns = frame.to_dict("list")
    for name, make in (("polars", "DataFrame"), ("pyarrow", "table")):
        try:
            table = getattr(importlib.import_module(name), make)(columns)
        except ImportError:
            continue
        assert as_files(table, tmp_path, checkpoint) == right


def test_categories_are_the_names_of_the_labels(frame):
    order = ["positive", "negative"]
    labels = pd.Categorical(frame["label"], categories=order)
    assert categories_of(frame.assign(label=labels)) == ("positive", "negative")
    assert categories_of((list(frame["text"]), pd.Series(labels))) == ("positive", "negative")
    assert categories_of(frame) == categories_of("file.csv") == categories_of(frame.to_dict("records")) == ()
    assert categories_of(frame.assign(label=pd.Categorical([0, 1] * 12))) == ()
    assert categories_of(frame.assign(label="a", note=labels)) == ()


def test_files_stay_files(checkpoint, tmp_path):
    assert as_files("a.csv", tmp_path, checkpoint) == ("a.csv",)
    assert as_files([Path("a.csv"), "b.csv"], tmp_path, checkpoint) == ("a.csv", "b.csv")
    assert as_files((), tmp_path, checkpoint) == ()
    assert list(tmp_path.iterdir()) == []


def test_numbers_of_numpy_and_pairs_of_texts(tmp_path):
    texts = [("one", "two"), ("three", "four")]
    rows = written((texts, np.array([0, 1])), tmp_path, tmp_path)  # a folder without a task of its own
    assert rows == [
        {"text_a": "one", "text_b": "two", "label": 0},
        {"text_a": "three", "text_b": "four", "label": 1},
    ]
    rows = written(pd.DataFrame({"text": ["a", None], "label": [0.5, np.nan]}), tmp_path, tmp_path)
    assert rows == [{"text": "a", "label": 0.5}, {"text": None, "label": None}]


ALLOWED = "file", "DataFrame", "list of rows", "pair (texts, labels)"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], ("data", "no rows", "two examples")),
        (pd.DataFrame({"text": []}), ("data", "no rows", "two examples")),
        ((["a", "b"], [1]), ("2 texts", "1 labels", "one label")),
        ((["a", ("b", "c")], [1, 0]), ("texts", "data", "strings", "pairs")),
        (([1.5, 2.5], [1, 0]), ("texts", "data", "strings", "pairs")),
        (([("a", "b")], [1]), ("data", "pairs", "single texts")),
        ([{"text": "a"}, 3], ("row 1", "int", "mappings", "pair (texts, labels)")),
        ([{"text": object()}], ("row 0", "'text'", "object", "numbers", "lists")),
        ([{"text": "a", "label": 0}, {"text": CIRCULAR}], ("row 1", "'text'", "itself", "20 levels")),
        ([{"text": NESTED}], ("row 0", "'text'", "nested", "20 levels")),
        ({"text": "a"}, ("dict", *ALLOWED)),
        ({"a", "b"}, ("set", *ALLOWED)),
        (pd.DataFrame([["a", "b"]], columns=["text", "text"]), ("text, text", "unique")),
        (7, ("int", *ALLOWED)),
    ],
)
def test_what_are_no_rows_is_refused_in_one_line(data, words, checkpoint, tmp_path):
    refuses(ap.DataError, words, ap.ablate, checkpoint, data=data, out=tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


def test_labels_that_the_head_lacks_are_refused(checkpoint, frame, tmp_path):
    with pytest.raises(ap.DataError, match=naming("'neutral'", "'negative', 'positive'")):
        ap.ablate(checkpoint, data=(["good", "bad"], ["neutral", "negative"]), out=tmp_path, progress=False)


def test_nothing_is_written_where_there_is_no_checkpoint(frame, tmp_path):
    with pytest.raises(ap.CheckpointError):
        ap.ablate(tmp_path / "missing", data=frame, progress=False)
    assert list(tmp_path.iterdir()) == []


def test_labels_that_a_language_model_would_not_read_are_refused(tmp_path):
    """Prompts and answers as a pair: the prompts alone would be scored."""
    folder = tmp_path / "lora"
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "task_type": "CAUSAL_LM"}')
    with pytest.raises(ap.DataError, match=naming("prompt", "completion")):
        as_files((["Two and two is", "Three and one is"], [" four", " four"]), tmp_path, folder)
    rows = [{"prompt": "Two and two is", "completion": " four"}]
    assert written(rows, tmp_path, folder) == rows
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "task_type": "SEQ_CLS"}')
    assert len(written((["a", "b"], [0, 1]), tmp_path, folder)) == 2


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        ((), ap.CheckpointError, ("adapter", "labelled examples", "data=FILE")),
        ("missing.csv", ap.DataError, ("missing.csv", os.strerror(errno.ENOENT))),
        (["there.csv", "folder"], ap.DataError, ("folder:", "file")),
    ],
)
def test_files_are_checked_before_the_model_is_opened(data, error, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("there.csv").write_text("text,label\ngood,1\nbad,0\n")
    Path("folder").mkdir()
    Path("adapter").mkdir()
    Path("adapter/adapter_config.json").write_text('{"peft_type": "LORA"}')  # without weights
    refuses(error, words, ap.ablate, "adapter", data=data)
    refuses(error, words, ap.prune, "adapter", "out", span=1, data=data)
