"""What is read from disk: damaged and foreign tables are refused in one line that names file and value."""

from __future__ import annotations

import pandas as pd
import pytest
from changed_files import LACKS, edit
from refusals import names, refused

from adapter_probe.analysis.study_records import AblationRecord, SweepRecord, TradeoffRecord
from adapter_probe.errors import ResultsError
from adapter_probe.studies.load import load


def test_each_kind_is_told_by_its_tables(tmp_path, ablation_folder, sweep_folder, tradeoff_folder):
    assert isinstance(load(ablation_folder(tmp_path / "a")).record, AblationRecord)
    assert isinstance(load(sweep_folder(tmp_path / "b")).record, SweepRecord)
    assert isinstance(load(tradeoff_folder(tmp_path / "c")).record, TradeoffRecord)
    (tmp_path / "d").mkdir()
    assert names(refused(load, tmp_path / "d", error=ResultsError), str(tmp_path / "d"), "no results")
    (tmp_path / "d" / "sizes.csv").touch()
    assert names(refused(load, tmp_path / "d", error=ResultsError), str(tmp_path / "d"), "nothing")


@pytest.mark.parametrize(
    ("table", "column", "value", "words"),
    [
        ("sweep", "mean", "high", ("data row 3", "mean", "'high'", "number")),
        ("sweep", "n", "1.5", ("data row 3", "n", "'1.5'", "whole number")),
        ("sweep", "init_std", "inf", ("data row 3", "init_std", "'inf'", "number")),
        ("aggregate", "on_frontier", "maybe", ("on_frontier", "'maybe'", "true", "false")),
        ("sweep", "task", None, ("no column task", "found: ")),
    ],
)
def test_a_damaged_table(tmp_path, sweep_folder, tradeoff_folder, table, column, value, words):
    folder = (sweep_folder if table == "sweep" else tradeoff_folder)(tmp_path / "s")
    frame = pd.read_csv(folder / f"{table}.csv", dtype=str, keep_default_na=False)
    if value is None:
        del frame[column]
    else:
        frame.loc[2, column] = value
    frame.to_csv(folder / f"{table}.csv", index=False)
    assert names(refused(load, folder, error=ResultsError), str(folder / f"{table}.csv"), *words)


def test_empty_and_unreadable_tables(tmp_path, sweep_folder):
    path = sweep_folder(tmp_path / "s") / "sweep.csv"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    assert names(refused(load, path.parent, error=ResultsError), str(path), "no rows")
    path.write_bytes(b"\xff\xfe\x00")
    assert str(path) in refused(load, path.parent, error=ResultsError)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metric": "magic"}, ("magic",)),
        ({"study": "dropped"}, ("study", '"dropped"', "ablated, kept")),
        ({"intact_score": "good"}, ("intact_score", '"good"')),
        ({"n_examples": None}, ("damaged", "n_examples")),
        ({"split": LACKS}, ("damaged", "'split'")),
        (None, ("is missing",)),
    ],
)
def test_a_damaged_summary(tmp_path, ablation_folder, change, words):
    path = ablation_folder(tmp_path / "a") / "summary.json"
    edit(path, change) if change else path.unlink()
    assert names(refused(load, path.parent, error=ResultsError), str(path), *words)
