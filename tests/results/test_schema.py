"""Which folders hold results."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusals import naming

from adapter_probe.errors import ResultsError
from adapter_probe.results.schema import LAYERS_COLUMNS, read_table
from adapter_probe.studies.load import find_results


def folder(path: Path, table: str) -> Path:
    path.mkdir(parents=True)
    (path / table).write_text("")
    return path


def test_a_folder_of_results_stands_for_itself_and_another_for_those_inside(tmp_path: Path):
    sweep = folder(tmp_path / "sweep", "trials.csv")
    ablations = [folder(tmp_path / "checkpoint" / name, "spans.csv") for name in ("b", "a")]
    (tmp_path / "checkpoint" / "other").mkdir()
    found = find_results([sweep, tmp_path / "checkpoint"])
    assert found == [sweep, *reversed(ablations)]


def test_a_folder_given_twice_comes_once(tmp_path: Path):
    one = folder(tmp_path / "c" / "ablation", "spans.csv")
    assert find_results([one, one.parent, one / ".." / one.name]) == [one]


def test_what_holds_nothing_is_refused(tmp_path: Path):
    with pytest.raises(ResultsError, match=naming("spans.csv", "trials.csv")):
        find_results([tmp_path])
    with pytest.raises(ResultsError, match=naming(str(tmp_path / "missing"))):
        find_results([tmp_path / "missing"])


def test_only_what_other_readers_take_for_a_number_is_one(tmp_path: Path):
    """Python's own notation of digits in groups is text to pandas and to spreadsheets."""
    path = tmp_path / "layers.csv"
    path.write_text("layer,delta_points,share_points,note\n0,1_0,0.5,1_0\n")
    with pytest.raises(ResultsError, match=naming("delta_points", "'1_0'")):
        read_table(path, LAYERS_COLUMNS)
    assert read_table(path, {"layer": "count"})["note"].tolist() == ["1_0"]
