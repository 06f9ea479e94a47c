"""What is read from disk: damaged and foreign tables are refused in one line that names file and value."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import names

from adapter_probe.analysis.study_records import AblationRecord, SweepRecord, TradeoffRecord
from adapter_probe.errors import ResultsError
from adapter_probe.results import schema
from adapter_probe.studies.load import load, studies_of


def edit(path, column: str, row: int, value: object) -> None:
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    frame.loc[row, column] = value
    frame.to_csv(path, index=False)


def refusal(folder) -> str:
    with pytest.raises(ResultsError) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_each_kind_is_told_by_its_tables(tmp_path, ablation_folder, sweep_folder, tradeoff_folder):
    assert isinstance(load(ablation_folder(tmp_path / "a")).record, AblationRecord)
    assert isinstance(load(sweep_folder(tmp_path / "b")).record, SweepRecord)
    assert isinstance(load(tradeoff_folder(tmp_path / "c")).record, TradeoffRecord)
    (tmp_path / "d").mkdir()
    assert names(refusal(tmp_path / "d"), str(tmp_path / "d"), "no results")
    (tmp_path / "d" / "sizes.csv").touch()
    assert names(refusal(tmp_path / "d"), str(tmp_path / "d"), "nothing")


def test_a_checkpoint_stands_for_its_ablations(tmp_path, ablation_folder):
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "adapter_probe.json").write_text("{}")
    for name in ("ablation", "ablation-attention"):
        ablation_folder(tmp_path / "ckpt" / name)
    found = studies_of([tmp_path / "ckpt"])
    assert [study.folder.name for study in found] == ["ablation", "ablation-attention"]


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("mean", "high", ("data row 3", "mean", "'high'", "number")),
        ("n", "1.5", ("data row 3", "n", "'1.5'", "whole number")),
        ("init_std", "inf", ("data row 3", "init_std", "'inf'", "number")),
    ],
)
def test_a_damaged_sweep(tmp_path, sweep_folder, column, value, words):
    folder = sweep_folder(tmp_path / "s")
    edit(folder / "sweep.csv", column, 2, value)
    assert names(refusal(folder), str(folder / "sweep.csv"), *words)


def test_a_damaged_flag(tmp_path, tradeoff_folder):
    folder = tradeoff_folder(tmp_path / "s")
    edit(folder / "aggregate.csv", "on_frontier", 0, "maybe")
    assert names(refusal(folder), str(folder / "aggregate.csv"), "on_frontier", "'maybe'", "true", "false")


@pytest.mark.parametrize("column", ["task", "mean", "init_std"])
def test_a_missing_column(tmp_path, sweep_folder, column):
    folder = sweep_folder(tmp_path / "s")
    pd.read_csv(folder / "sweep.csv").drop(columns=column).to_csv(folder / "sweep.csv", index=False)
    said = refusal(folder)
    assert f"no column {column}" in said
    assert "found: " in said


def test_empty_and_unreadable_tables(tmp_path, sweep_folder):
    folder = sweep_folder(tmp_path / "s")
    lines = (folder / "sweep.csv").read_text().splitlines()
    (folder / "sweep.csv").write_text(lines[0] + "\n")
    assert names(refusal(folder), str(folder / "sweep.csv"), "no rows")
    (folder / "sweep.csv").write_bytes(b"\xff\xfe\x00")
    assert str(folder / "sweep.csv") in refusal(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metric": "magic"}, ("magic",)),
        ({"study": "dropped"}, ("study", '"dropped"', "ablated, kept")),
        ({"intact_score": "good"}, ("intact_score", '"good"')),
        ({"n_examples": None}, ("damaged", "n_examples")),
    ],
)
def test_a_damaged_summary(tmp_path, ablation_folder, change, words):
    folder = ablation_folder(tmp_path / "a")
    path = folder / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert names(refusal(folder), str(path), *words)


def test_a_summary_that_lacks_a_field(tmp_path, ablation_folder):
    folder = ablation_folder(tmp_path / "a")
    path = folder / "summary.json"
    document = json.loads(path.read_text())
    del document["split"]
    path.write_text(json.dumps(document))
    assert names(refusal(folder), str(path), "damaged", "'split'")


def test_an_ablation_without_its_summary_is_refused(tmp_path, ablation_folder):
    folder = ablation_folder(tmp_path / "a")
    (folder / "summary.json").unlink()
    assert f"{folder / 'summary.json'} is missing" in refusal(folder)


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=False), min_size=1, max_size=8))
def test_numbers_come_back_as_they_were_written(values):
    """Every digit, whatever the version of pandas."""
    import tempfile
    from pathlib import Path

    from adapter_probe.results.atomic import write_csv

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        frame = pd.DataFrame({"task": "a", "x": values})
        write_csv(path, frame)
        read = schema.read_table(path, {"task": "text", "x": "number"})
    pd.testing.assert_series_equal(read["x"], frame["x"].astype(float), check_exact=True)
