"""Tables that are not the ones that the folder's run wrote."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pandas as pd
import pytest
from refusals import naming

from adapter_probe.analysis.study_records import AblationRecord
from adapter_probe.errors import ResultsError
from adapter_probe.results.ablation_files import read_spans, write_spans
from adapter_probe.results.rundir import RunDirectory
from adapter_probe.results.schema import (
    LAYERS_COLUMNS,
    LAYERS_CSV,
    PREDICTIONS,
    SPANS_CSV,
    SUMMARY,
    SWEEP_CSV,
    TRIALS_CSV,
    read_summary,
    read_table,
)
from adapter_probe.results.sealing import (
    CHECKSUMS,
    FIGURES,
    add_note,
    check_complete,
    read_note,
    sealed,
    sealed_tables,
    write_study,
)
from adapter_probe.studies.load import find_results

FILES = [*(about["file"] for about in AblationRecord.files().values()), PREDICTIONS]
LAYERS = {"layer": "count", "delta_points": "number"}

NOT_OF_THE_RUN = "was not written by the last run, which may have been interrupted"


def make(folder: Path, score: float) -> Path:
    """An ablation's folder with two sealed tables."""
    with RunDirectory(folder, {"score": score}, {}), sealed(folder, FILES):
        row = {"first": 0, "last": 0, "n_layers": 1, "score": score, "delta_points": -1.0, "n_examples": 9}
        write_spans(folder, pd.DataFrame([row]))
        (folder / LAYERS_CSV).write_text("layer,delta_points\n0,-1.0\n")
    return folder


def edit(ours: Path, theirs: Path) -> None:
    (ours / SPANS_CSV).write_text((ours / SPANS_CSV).read_text().replace("0.5", "0.9"))


def cut(ours: Path, theirs: Path) -> None:
    (ours / SPANS_CSV).write_bytes((ours / SPANS_CSV).read_bytes()[:-3])


def copy_table(ours: Path, theirs: Path) -> None:
    shutil.copy(theirs / SPANS_CSV, ours)


def copy_table_and_seal(ours: Path, theirs: Path) -> None:
    shutil.copy(theirs / SPANS_CSV, ours)
    shutil.copy(theirs / CHECKSUMS, ours)


@pytest.mark.parametrize("harm", [edit, cut, copy_table, copy_table_and_seal])
def test_what_does_not_fit_is_refused(tmp_path: Path, refused: Callable, harm: Callable):
    ours, theirs = make(tmp_path / "ours", 0.5), make(tmp_path / "theirs", 0.75)
    harm(ours, theirs)
    with refused(ours / SPANS_CSV, CHECKSUMS, "again"):
        read_spans(ours)
    make(ours, 0.5)  # the same command writes it again
    assert read_spans(ours)["score"].tolist() == [0.5]


def test_a_summary_that_was_edited_is_refused(tmp_path: Path, refused: Callable):
    folder = tmp_path / "one"
    with RunDirectory(folder, {}, {}), sealed(folder, FILES):
        (folder / SUMMARY).write_text('{"warning": "no better than guessing"}')
    assert read_summary(folder) == {"warning": "no better than guessing"}
    (folder / SUMMARY).write_text("{}")
    with refused(folder / SUMMARY, "changed"):
        read_summary(folder)


def test_without_a_seal_tables_are_read_as_they_are(tmp_path: Path):
    folder = make(tmp_path / "one", 0.5)
    edit(folder, folder)
    (folder / CHECKSUMS).unlink()
    (folder / "manifest.json").unlink()
    assert read_spans(folder)["score"].tolist() == [0.9]


def test_tables_are_sealed_while_none_of_them_changes(tmp_path: Path):
    folder, other = make(tmp_path / "one", 0.5), make(tmp_path / "two", 0.75)
    whole = {name: sha256((folder / name).read_bytes()).hexdigest() for name in (SPANS_CSV, LAYERS_CSV)}
    assert sealed_tables(folder) == whole
    assert sealed_tables(tmp_path) is None
    for harm in (edit, cut, copy_table, copy_table_and_seal, lambda ours, _: (ours / LAYERS_CSV).unlink()):
        harm(make(folder, 0.5), other)
        assert sealed_tables(folder) is None
    with sealed(make(folder, 0.5), ()):
        pass
    assert sealed_tables(folder) is None  # nothing was written
    (make(folder, 0.5) / "manifest.json").unlink()
    assert sealed_tables(folder) is None  # it is not known of which run


def test_notes_stay_while_the_folder_is_written_again(tmp_path: Path):
    folder = make(tmp_path / "one", 0.5)
    assert read_note(folder, "inputs") == read_note(tmp_path, "inputs") == {}
    for name, note in (("inputs", {"a": 1}), (FIGURES, {"b": [2]})):
        add_note(folder, name, note)
        add_note(tmp_path, name, note)
        assert (read_note(folder, name), read_note(tmp_path, name)) == (note, {})
    assert sealed_tables(folder)
    make(folder, 0.5)
    assert (read_note(folder, FIGURES), read_note(folder, "inputs")) == ({"b": [2]}, {})
    (folder / CHECKSUMS).write_text("{")
    assert read_note(folder, FIGURES) == {}
    assert not (tmp_path / CHECKSUMS).exists()


def test_a_failed_writing_leaves_no_seal(tmp_path: Path):
    folder = make(tmp_path / "one", 0.5)
    with pytest.raises(KeyError), sealed(folder, FILES):
        raise KeyError
    assert not (folder / CHECKSUMS).exists()


def test_a_row_that_is_cut_short_is_named(tmp_path: Path, refused: Callable):
    path = tmp_path / LAYERS_CSV
    path.write_text("layer,delta_points\n0,-1.0\n1\n")
    with refused(path, "data row 2", "1 fields", "header 2"):
        read_table(path, LAYERS)


@pytest.mark.parametrize(
    ("change", "facts"), [({"created_with": {}}, ("edited", "checksum")), ({"schema": 2}, ("newer", "2"))]
)
def test_a_manifest_that_was_edited_or_is_newer_is_refused_where_tables_are_read(
    change: dict, facts: tuple[str, ...], tmp_path: Path, refused: Callable
):
    folder = make(tmp_path / "one", 0.5)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, **change}))
    with refused(folder / "manifest.json", *facts):
        read_spans(folder)


def test_tables_that_their_run_never_sealed_are_refused(tmp_path: Path, refused: Callable):
    folder = make(tmp_path / "one", 0.5)
    with pytest.raises(KeyboardInterrupt), sealed(folder, FILES):  # noqa: PT012
        edit(folder, folder)  # of a run with another metric, say
        raise KeyboardInterrupt
    with refused(folder / SPANS_CSV, "unfinished", "again"):
        read_spans(folder)


def test_a_table_that_no_seal_names_is_refused(tmp_path: Path, refused: Callable):
    """Such as the table of a sweep whose trials were more when the seal was written."""
    ours, theirs = make(tmp_path / "ours", 0.5), make(tmp_path / "theirs", 0.75)
    seal = json.loads((ours / CHECKSUMS).read_text())
    del seal["sha256"][SPANS_CSV]
    (ours / CHECKSUMS).write_text(json.dumps(seal))
    shutil.copy(theirs / SPANS_CSV, ours)
    with refused(ours / SPANS_CSV, NOT_OF_THE_RUN, "again"):
        read_spans(ours)


def test_a_sealed_table_that_is_gone_is_named(tmp_path: Path, refused: Callable):
    folder = make(tmp_path / "one", 0.5)
    (folder / LAYERS_CSV).unlink()
    with refused(folder, "lacks", LAYERS_CSV, "again"):
        check_complete(folder)
    check_complete(folder, dispensable=(LAYERS_CSV,))
    (folder / CHECKSUMS).unlink()
    check_complete(folder)


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A sweep's folder, whose run sealed both tables and then, with more trials, only the first."""
    write_study(tmp_path / "study.json", {"study": "init-sweep", "tasks": {}})
    (tmp_path / SWEEP_CSV).write_text("task,mean\na,0.5\n")
    (tmp_path / TRIALS_CSV).write_text("task,score\na,0.5\n")
    with sealed(tmp_path, (SWEEP_CSV, TRIALS_CSV)):
        pass
    return tmp_path


def test_a_sweeps_table_of_fewer_trials_is_refused(sweep: Path, refused: Callable):
    assert read_table(sweep / SWEEP_CSV, {"task": "text"})["mean"].tolist() == [0.5]
    with sealed(sweep, (TRIALS_CSV,)):
        (sweep / TRIALS_CSV).write_text("task,score\na,0.5\na,0.9\n")
    assert len(read_table(sweep / TRIALS_CSV, {"task": "text"})) == 2
    with refused(sweep / SWEEP_CSV, NOT_OF_THE_RUN, "study.json"):
        read_table(sweep / SWEEP_CSV, {"task": "text"})


def test_a_sweep_without_a_seal_is_refused(sweep: Path, refused: Callable):
    (sweep / CHECKSUMS).unlink()
    with refused(sweep / SWEEP_CSV, "unfinished", "study.json"):
        read_table(sweep / SWEEP_CSV, {"task": "text"})
    (sweep / "study.json").unlink()
    assert read_table(sweep / SWEEP_CSV, {"task": "text"})["mean"].tolist() == [0.5]


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
