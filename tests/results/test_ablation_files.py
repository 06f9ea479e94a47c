from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pytest
from ablation_facts import ablation_of, changed, small_ablation
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from refusals import refuses

from adapter_probe.ablation_results import AblationResults
from adapter_probe.errors import ResultsError
from adapter_probe.results import ablation_files
from adapter_probe.results.ablation_files import (
    load_ablation,
    read_generations,
    read_spans,
    save_predictions,
    write_generations,
    write_spans,
)
from adapter_probe.results.atomic import read_arrays, write_arrays
from adapter_probe.results.schema import SPANS_COLUMNS

TEXTS = st.text(max_size=8)


@st.composite
def ablations(draw: st.DrawFn) -> AblationResults:
    variants, sites, examples = (draw(st.integers(0, 4)) for _ in range(3))
    kind = draw(st.sampled_from(["classification", "regression"]))
    label_names = tuple(draw(st.lists(TEXTS, min_size=1, max_size=3))) if kind == "classification" else ()
    outputs = len(label_names) or 1
    labels = (
        hnp.arrays(np.int64, examples, elements=st.integers(0, outputs - 1))
        if kind == "classification"
        else hnp.arrays(np.float64, examples)
    )
    return ablation_of(
        masks=draw(hnp.arrays(bool, (variants, sites))),
        spans=draw(hnp.arrays(np.int64, (variants, 2))),
        row_names=tuple(draw(st.lists(TEXTS, min_size=variants, max_size=variants))),
        outputs=draw(hnp.arrays(np.float32, (variants, examples, outputs))),
        scored_with=draw(labels),
        metric=draw(TEXTS),
        kind=kind,
        label_names=label_names,
        identity=draw(st.dictionaries(TEXTS, TEXTS | st.lists(st.integers()))),
        settings=draw(st.dictionaries(TEXTS, st.none() | st.booleans() | st.integers())),
    )


@given(ablations())
def test_ablations_round_trip(tmp_path_factory: pytest.TempPathFactory, results: AblationResults):
    folder = tmp_path_factory.mktemp("ablation")
    save_predictions(folder, results)
    first = (folder / "predictions.npz").read_bytes()
    loaded = load_ablation(folder)
    assert type(loaded.scored) is type(results.scored)
    assert loaded.arrays().keys() == results.arrays().keys()
    for name, before in results.arrays().items():
        after = loaded.arrays()[name]
        assert (before.dtype, before.shape) == (after.dtype, after.shape)
        assert before.tobytes() == after.tobytes()
    for name in ("row_names", "metric", "kind", "label_names", "identity", "settings"):
        assert getattr(loaded, name) == getattr(results, name)
    save_predictions(folder, loaded)
    assert (folder / "predictions.npz").read_bytes() == first


def test_predictions_are_plain_numpy(tmp_path: Path):
    save_predictions(tmp_path, small_ablation())
    with np.load(tmp_path / "predictions.npz", allow_pickle=False) as archive:
        assert set(archive.files) == {"masks", "spans", "logits", "labels", "about"}
        assert np.array_equal(archive["logits"], small_ablation().outputs)
        assert json.loads(str(archive["about"]))["label_names"] == ["unacceptable", "acceptable"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"masks": np.ones((3, 2), dtype=bool)}, ("masks", "[2, 2]", "bool [3, 2]")),
        ({"masks": np.ones((2, 2))}, ("masks", "bool", "float64")),
        ({"spans": np.zeros((2, 3), dtype=np.int64)}, ("spans", "int64 [2, 2]", "[2, 3]")),
        ({"spans": np.zeros((2, 2))}, ("spans", "int64", "float64")),
        ({"outputs": np.zeros((2, 3, 2))}, ("outputs", "float32 [2, 3, 2]", "float64")),
        ({"outputs": np.zeros((2, 3, 4), np.float32)}, ("outputs", "[2, 3, 2]", "float32 [2, 3, 4]")),
        ({"outputs": np.zeros((2, 3), np.float32)}, ("outputs", "float32 [2, 3]")),
        ({"outputs": np.float32(0)}, ("outputs", "float32 []")),
        ({"masks": np.bool_(1)}, ("masks", "bool []")),
        ({"groups": np.array([1, 2, 3])}, ("groups", "int64 [3]")),
        ({"scored_with": np.array([0, 1])}, ("scored_with", "int64 [3]", "[2]")),
        ({"scored_with": np.array([0.0, 1.0, 1.0])}, ("scored_with", "int64", "float64")),
        ({"scored_with": np.array([0, 2, 1])}, ("scored_with", "0..1")),
        ({"scored_with": np.array([0, -1, 1])}, ("scored_with", "0..1")),
        ({"row_names": ("intact",)}, ("2 variants", "1 row names")),
        (
            {"kind": "sorting"},
            ("kind", "classification, regression, extractive, causal, tokens, multilabel", "'sorting'"),
        ),
        ({"kind": "regression"}, ("outputs", "float32 [2, 3, 1]", "[2, 3, 2]")),
        (
            {"kind": "regression", "outputs": np.zeros((2, 3, 1), np.float32)},
            ("scored_with", "float64", "int64"),
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(change: dict, words: tuple[str, ...]):
    refuses(ValueError, words, changed, small_ablation(), **change)


def test_no_ablation_here(tmp_path: Path):
    refuses(ResultsError, (tmp_path, "predictions.npz"), load_ablation, tmp_path)
    refuses(ResultsError, (tmp_path / "nowhere", "predictions.npz"), load_ablation, tmp_path / "nowhere")
    refuses(ResultsError, (tmp_path, "spans.csv"), read_spans, tmp_path)


def test_damaged_predictions_are_one_line(tmp_path: Path):
    save_predictions(tmp_path, small_ablation())
    path = tmp_path / "predictions.npz"
    path.write_bytes(path.read_bytes()[:-1])
    refuses(ResultsError, (path, "damaged", f"{path.stat().st_size} bytes"), load_ablation, tmp_path)


@pytest.mark.parametrize(
    "about", ["not JSON", "[]", "{}", '{"schema": 1}', '{"schema": "1"}', '{"schema": null}', "3"]
)
def test_arrays_of_something_else_are_one_line(tmp_path: Path, about: str):
    save_predictions(tmp_path, small_ablation())
    path = tmp_path / "predictions.npz"
    arrays = read_arrays(path)
    write_arrays(path, {**arrays, "about": np.array(about)})
    refuses(ResultsError, (path, "ablation"), load_ablation, tmp_path)
    del arrays["logits"]
    write_arrays(path, arrays)
    refuses(ResultsError, (path, "ablation", "'logits'"), load_ablation, tmp_path)


def test_newer_predictions_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr(ablation_files, "SCHEMA", 2)
        save_predictions(tmp_path, small_ablation())
    refuses(ResultsError, (tmp_path / "predictions.npz", "newer", "2", "1"), load_ablation, tmp_path)


# ------------------------------------------------------------------ spans.csv

SCORES = st.floats(allow_infinity=False)


@st.composite
def span_frames(draw: st.DrawFn) -> pd.DataFrame:
    pairs = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted)
    spans = draw(st.lists(pairs, min_size=1, unique_by=tuple))
    rows = [(a, b, b - a + 1, draw(SCORES), draw(SCORES), draw(st.integers(0, 10**6))) for a, b in spans]
    frame = pd.DataFrame(rows, columns=list(SPANS_COLUMNS))
    types = dict.fromkeys(SPANS_COLUMNS, "int64") | {"score": "float64", "delta_points": "float64"}
    return frame.astype(types)


@given(span_frames())
def test_spans_round_trip_to_the_last_bit(tmp_path_factory: pytest.TempPathFactory, frame: pd.DataFrame):
    folder = tmp_path_factory.mktemp("spans")
    write_spans(folder, frame)
    written = (folder / "spans.csv").read_bytes()
    assert written.startswith(b"first,last,n_layers,score,delta_points,n_examples\n")
    read = read_spans(folder)
    pd.testing.assert_frame_equal(read, frame, check_exact=True)
    write_spans(folder, read)
    assert (folder / "spans.csv").read_bytes() == written


def table(**changes: object) -> pd.DataFrame:
    columns = {
        "first": [0, 0, 1],
        "last": [0, 1, 1],
        "n_layers": [1, 2, 1],
        "score": [0.75, 0.5, 0.7],
        "delta_points": [0.0, -25.0, -5.0],
        "n_examples": [8, 8, 8],
    }
    return pd.DataFrame(columns | changes)


def test_further_columns_come_last(tmp_path: Path):
    frame = table()
    frame.insert(0, "p_value", [1.0, 0.5, 0.25])
    write_spans(tmp_path, frame)
    assert list(read_spans(tmp_path)) == [*SPANS_COLUMNS, "p_value"]


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (table().drop(columns=["last", "score"]), ("last, score", "first, n_layers, delta_points")),
        (table().rename(columns=str.upper), ("FIRST, LAST",)),
        (table(first=[0.0, 0.0, 1.0]), ("first", "integers", "float64")),
        (table(score=[1, 0, 1]), ("score", "floats", "int64")),
        (table(score=["a", "b", "c"]), ("score", "floats")),
        (table(first=[0, 0, 2]), ("data row 3", "first 2", "last 1", "n_layers 1")),
        (table(n_layers=[1, 3, 1]), ("data row 2", "first 0", "last 1", "n_layers 3")),
        (table(first=[0, -1, 1], n_layers=[1, 3, 1]), ("data row 2", "first -1", "last 1", "n_layers 3")),
        (table(first=[0, 0, 1000], last=[0, 1, 1000]), ("data row 3", "first 1000", "last 1000")),
        (
            table(first=[0, 0, 0], last=[0, 1, 1], n_layers=[1, 2, 2]),
            ("data row 3", "first 0", "last 1", "n_layers 2", "repeated"),
        ),
    ],
)
def test_wrong_tables_are_not_written(tmp_path: Path, frame: pd.DataFrame, words: tuple):
    refuses(ResultsError, (tmp_path / "spans.csv", *words), write_spans, tmp_path, frame)
    assert os.listdir(tmp_path) == []


HEADER = ",".join(SPANS_COLUMNS)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "first,last\n0,0\n",
        f"{HEADER}\n0,0,1,0.5\n",
        f"{HEADER}\n0,0,1,half,0.0,8\n",
        f"{HEADER}\n0.5,0,1,0.5,0.0,8\n",
        f"{HEADER}\n0,0,1,0.5,0.0,99999999999999999999\n",
        f"{HEADER}\n0,0,1,0.5,0.0,8\n0,0,1,0.5,0.0,8,9,10\n",
        f"{HEADER}\n1,0,1,0.5,0.0,8\n",
        f'{HEADER}\n0,0,1,0.5,0.0,"8\n',
        f"{HEADER}\n0,0,1,0.5,0.0,\xff\n",
        f"{HEADER}\n0,1000000,1000001,0.5,0.0,8\n",  # a matrix of 7 TiB
        f"{HEADER}\n0,,1,0.5,0.0,8\n",
    ],
)
def test_wrong_files_are_one_line(tmp_path: Path, text: str):
    (tmp_path / "spans.csv").write_bytes(text.encode("latin-1"))
    refuses(ResultsError, (tmp_path / "spans.csv",), read_spans, tmp_path)


def test_a_folder_in_the_files_place(tmp_path: Path):
    (tmp_path / "spans.csv").mkdir()
    refuses(ResultsError, (tmp_path / "spans.csv", os.strerror(errno.EISDIR)), read_spans, tmp_path)


@given(st.lists(st.text(max_size=6) | st.none(), min_size=1, max_size=4))
@example(["a\u2028b", "\x85", "c\x0bd"])
def test_written_texts_are_read_back_whatever_characters_they_have(texts):
    made = ablation_of(
        masks=np.ones((1, 2), bool), spans=np.full((1, 2), -1), row_names=("intact",),
        outputs=np.zeros((1, len(texts), 1), np.float32), scored_with=np.zeros(len(texts), np.int64),
        metric="accuracy", kind="classification", label_names=("a",), identity={}, settings={},
    )  # fmt: skip
    with TemporaryDirectory() as folder:
        write_generations(folder, made, [texts])
        frame = read_generations(folder)
    assert [None if one != one else one for one in frame["text"].tolist()] == texts
