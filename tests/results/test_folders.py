"""Folders of results: which there are, their manifests, their tables and the notes on them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from changed_files import edit
from refusals import refuses

import adapter_probe as ap
from adapter_probe.analysis.study_records import SweepRecord, write_record
from adapter_probe.errors import ResultsError
from adapter_probe.results.manifests import FIGURES, MADE_FROM, NOTES, read_manifest, read_note, write_note
from adapter_probe.results.rundir import RunDirectory
from adapter_probe.results.schema import LAYERS_COLUMNS, LAYERS_CSV, SWEEP_CSV, TRIALS_CSV, read_columns
from adapter_probe.results.trial_files import write_trials
from adapter_probe.studies.load import find_results

LAYERS = {"layer": "count", "delta_points": "number"}


def test_notes_stay_beside_each_other(tmp_path: Path):
    assert read_note(tmp_path, MADE_FROM) == {}
    write_note(tmp_path, MADE_FROM, None)
    assert not (tmp_path / NOTES).exists()
    for name, note in ((MADE_FROM, {"a": 1}), (FIGURES, {"b": [2]})):
        write_note(tmp_path, name, note)
        assert read_note(tmp_path, name) == note
    write_note(tmp_path, MADE_FROM, None)
    assert (read_note(tmp_path, FIGURES), read_note(tmp_path, MADE_FROM)) == ({"b": [2]}, {})
    (tmp_path / NOTES).write_text("{")
    assert read_note(tmp_path, FIGURES) == {}
    write_note(tmp_path, FIGURES, {"c": 3})
    assert read_note(tmp_path, FIGURES) == {"c": 3}


def test_what_is_interrupted_is_no_finished_study(tmp_path: Path):
    """The table that a folder is known by comes last, and that of an earlier run is gone before."""
    write_note(tmp_path, MADE_FROM, {"a": 1})
    (tmp_path / SWEEP_CSV).write_text("task,mean\na,0.5\n")

    def interrupted() -> None:
        raise KeyboardInterrupt

    record = SweepRecord(tmp_path, pd.DataFrame({"task": ["a"]}), None, {})
    with pytest.raises(KeyboardInterrupt):
        write_record(record, [interrupted])
    assert read_note(tmp_path, MADE_FROM) == {}
    refuses(ResultsError, (str(tmp_path),), ap.load, tmp_path)
    write_record(record)
    assert (tmp_path / SWEEP_CSV).read_text() == "task\na\n"


def test_a_table_of_fewer_trials_goes(tmp_path: Path):
    one, more = pd.DataFrame({"score": [0.5]}), pd.DataFrame({"score": [0.5, 0.25]})
    write_trials(tmp_path, one)
    (tmp_path / SWEEP_CSV).write_text("task,mean\na,0.5\n")
    write_trials(tmp_path, one)
    assert (tmp_path / SWEEP_CSV).exists()
    write_trials(tmp_path, more)
    assert [path.name for path in tmp_path.iterdir()] == [TRIALS_CSV]


def test_a_row_that_is_cut_short_is_named(tmp_path: Path):
    path = tmp_path / LAYERS_CSV
    path.write_text("layer,delta_points\n0,-1.0\n1\n")
    refuses(ResultsError, (path, "data row 2", "1 fields", "header 2"), read_columns, path, LAYERS)


@pytest.mark.parametrize(
    ("change", "facts"), [({"created_with": {}}, ("edited", "checksum")), ({"schema": 2}, ("newer", "2"))]
)
def test_a_manifest_that_was_edited_or_is_newer_is_refused(change, facts, tmp_path):
    folder = tmp_path / "one"
    with RunDirectory(folder, {}, {}):
        pass
    edit(folder / "manifest.json", change)
    refuses(ResultsError, (folder / "manifest.json", *facts), read_manifest, folder / "manifest.json")


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
    refuses(ResultsError, ("spans.csv", "trials.csv"), find_results, [tmp_path])
    refuses(ResultsError, (str(tmp_path / "missing"),), find_results, [tmp_path / "missing"])


def test_only_what_other_readers_take_for_a_number_is_one(tmp_path: Path):
    """Python's own notation of digits in groups is text to pandas and to spreadsheets."""
    path = tmp_path / "layers.csv"
    path.write_text("layer,delta_points,share_points,note\n0,1_0,0.5,1_0\n")
    refuses(ResultsError, ("delta_points", "'1_0'"), read_columns, path, LAYERS_COLUMNS)
    assert read_columns(path, {"layer": "count"})["note"].tolist() == ["1_0"]
