from __future__ import annotations

import pandas as pd
import pytest

from adapter_probe.figures.gallery import figures_of, tables_of, write_gallery
from adapter_probe.figures.studies import open_studies
from adapter_probe.figures.venues import PAPER, Look

LOOK = Look(PAPER, formats=("png",))


def drawn(folders, look=LOOK):
    return list(figures_of(open_studies(folders), look))


def stems(made) -> list[str]:
    return [one.stem for one in made]


def test_one_folder_of_each_kind(tmp_path, ablation_folder, sweep_folder, tradeoff_folder):
    folders = [
        ablation_folder(tmp_path / "a"), sweep_folder(tmp_path / "b"), tradeoff_folder(tmp_path / "c"),
    ]  # fmt: skip
    made = write_gallery(open_studies(folders), tmp_path / "out", LOOK)
    assert [one.stem for one in made if one.kind == "figure"] == [
        "heatmap", "attribution", "init-sweep", "tradeoff-tasks", "tradeoff-aggregate", "size-robustness",
    ]  # fmt: skip
    assert [one.stem for one in made if one.kind == "table"] == [
        "table-removable", "table-tradeoff", "table-tasks", "table-glue", "table-sizes",
    ]  # fmt: skip
    for one in made:
        endings = {"figure": ["png", "csv", "txt"], "table": ["tex", "md", "csv"]}[one.kind]
        assert [path.name for path in one.files] == [f"{one.stem}.{ending}" for ending in endings]
        assert all(path.stat().st_size > 20 for path in one.files)


def test_ablations_stand_side_by_side(tmp_path, ablation_folder):
    folders = [ablation_folder(tmp_path / t, t, seed=i) for i, t in enumerate(["cola", "mnli", "cola2"])]
    heatmap, attribution = drawn(folders)
    assert len([ax for ax in heatmap.figure.axes if "last" in ax.get_xlabel()]) == 3
    assert list(heatmap.frame["grid"].unique()) == ["CoLA", "MNLI-m", "cola2"]
    for name, folder in zip(["CoLA", "MNLI-m"], folders):
        own = heatmap.frame[heatmap.frame["grid"] == name]["delta_points"]
        assert own.tolist() == pytest.approx(pd.read_csv(folder / "spans.csv")["delta_points"].tolist())
    assert set(attribution.frame["task"]) == {"CoLA", "MNLI-m", "cola2"}


def test_one_task_twice_is_told_apart_by_folder(tmp_path, ablation_folder):
    folders = [ablation_folder(tmp_path / name, "cola") for name in ("small", "large")]
    heatmap, _ = drawn(folders)
    assert list(heatmap.frame["grid"].unique()) == ["CoLA, small", "CoLA, large"]
    names = stems(tables_of(open_studies(folders), False))
    assert names == ["table-removable-cola-small", "table-removable-cola-large"]


def test_ablations_of_two_tasks_name_their_tables_by_task(tmp_path, ablation_folder):
    folders = [ablation_folder(tmp_path / t / "ablation", t) for t in ("cola", "mnli")]
    assert stems(tables_of(open_studies(folders), False)) == [
        "table-removable-cola",
        "table-removable-mnli-m",
    ]


def test_two_tradeoffs_are_two_sets_of_figures(tmp_path, tradeoff_folder):
    folders = [tradeoff_folder(tmp_path / name) for name in ("one", "two")]
    names = stems(drawn(folders))
    assert len(names) == len(set(names)) == 6
    assert {name.rsplit("-", 1)[1] for name in names} == {"one", "two"}


def test_two_sweeps_share_one_figure(tmp_path, sweep_folder):
    folders = [sweep_folder(tmp_path / "one"), sweep_folder(tmp_path / "two", tasks=("mnli",))]
    (figure,) = drawn(folders)
    assert len(figure.figure.axes[0].containers) == 2
    same = [sweep_folder(tmp_path / "x"), sweep_folder(tmp_path / "y")]
    (figure,) = drawn(same)
    words = [text.get_text() for text in figure.figure.legends[0].get_texts()]
    assert {"CoLA, x, mean ± s.e.m.", "CoLA, y, mean ± s.e.m."} <= set(words)


def test_the_papers_grid_stands_beside_its_own_task_alone(tmp_path, ablation_folder):
    folders = [ablation_folder(tmp_path / t, t, n_layers=12) for t in ("cola", "rte")]
    heatmap, _ = drawn(folders, Look(PAPER, formats=("png",), paper=True))
    assert list(heatmap.frame["grid"].unique()) == ["CoLA", "CoLA (Houlsby et al. 2019)", "RTE"]
    theirs = heatmap.frame[heatmap.frame["grid"] == "CoLA (Houlsby et al. 2019)"]
    assert theirs["delta_points"].min() == pytest.approx(-13.5, abs=0.1)
    assert "Houlsby et al. (2019)" in heatmap.caption


def test_one_task_has_no_aggregate(tmp_path, tradeoff_folder):
    assert stems(drawn([tradeoff_folder(tmp_path / "one", tasks=("cola",))])) == [
        "tradeoff-tasks", "size-robustness",
    ]  # fmt: skip


def test_a_plain_table_of_spans_is_enough(tmp_path, ablation_folder):
    """Without statistics: no rings, no test in the caption, shares without intervals."""
    heatmap, attribution = drawn([ablation_folder(tmp_path / "plain", plain=True)])
    assert "McNemar" not in heatmap.caption
    assert "bootstrap" not in attribution.caption
    assert len(attribution.frame) == 6 + 6 + 21


def test_the_tolerance_moves_the_line_and_is_said(tmp_path, ablation_folder):
    folder = ablation_folder(tmp_path / "a")
    heatmap, _ = drawn([folder], Look(PAPER, formats=("png",), tolerance=2.5))
    assert "at most 2.5 points" in heatmap.caption
