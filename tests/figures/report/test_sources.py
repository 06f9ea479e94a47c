from __future__ import annotations

from pathlib import Path

import pytest

from adapter_probe.errors import ResultsError
from adapter_probe.figures.report.sources import short_name
from adapter_probe.results.schema import find_results, is_ablation, is_sweep


def test_a_folder_of_results_stands_for_itself_and_another_for_those_inside(
    make_ablation, make_sweep, tmp_path
):
    ablation, sweep = make_ablation(), make_sweep("init")
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "spans.csv").write_text("")
    (tmp_path / "other").mkdir()
    found = find_results([sweep, tmp_path, ablation.parent])
    assert found == [sweep, tmp_path / "a", tmp_path / "b", ablation]
    assert [is_ablation(folder) for folder in found] == [False, True, True, True]
    assert [is_sweep(folder) for folder in found] == [True, False, False, False]


def test_a_folder_given_twice_comes_once(make_ablation):
    folder = make_ablation()
    assert find_results([folder, folder.parent, folder / ".." / folder.name]) == [folder]


def test_what_holds_nothing_is_refused(tmp_path: Path):
    with pytest.raises(ResultsError, match=r"holds no results.*spans\.csv.*trials\.csv"):
        find_results([tmp_path])
    with pytest.raises(ResultsError, match="no such folder"):
        find_results([tmp_path / "missing"])


def test_a_name_tells_no_more_than_two_parts_of_the_path(tmp_path: Path):
    folder = tmp_path / "checkpoint" / "ablation"
    folder.mkdir(parents=True)
    assert short_name(folder) == short_name(folder / ".." / "ablation") == "checkpoint/ablation"
