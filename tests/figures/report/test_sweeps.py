"""A sweep's part of the page: every figure of the gallery, every number behind them, nothing of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from page_reader import PageReader
from rounding import printed

from adapter_probe.analysis.study_records import TradeoffRecord
from adapter_probe.analysis.sweeps import init_sweep_table
from adapter_probe.figures.gallery import write_gallery
from adapter_probe.figures.report import curve_sections
from adapter_probe.figures.report.curve_sections import _sweep_tables, curves_section
from adapter_probe.figures.venues import PAPER, FigureOptions
from adapter_probe.results.atomic import write_csv
from adapter_probe.results.manifests import write_study
from adapter_probe.studies.load import load


def read(folder: Path) -> PageReader:
    return PageReader(curves_section(load(folder).record, 0, "a heading"))


def runs_of(found: PageReader) -> list[dict]:
    """The points of runs."""
    return [point for point in found.all("circle") if point.get("class", "").startswith("run")]


@pytest.fixture(scope="module")
def tradeoff_of_two(tradeoff_folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tradeoff_folder(tmp_path_factory.mktemp("t") / "t", tasks=("cola", "mrpc"))


@pytest.fixture(scope="module")
def tradeoff(tradeoff_of_two: Path) -> tuple[PageReader, TradeoffRecord]:
    """What the page says of a trade-off of two tasks, and its tables."""
    return read(tradeoff_of_two), load(tradeoff_of_two).record


@pytest.fixture(scope="module")
def undrawn(tradeoff_of_two: Path) -> tuple[PageReader, TradeoffRecord]:
    """The same without the figures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(curve_sections, "drawn", lambda *_: [])
        return read(tradeoff_of_two), load(tradeoff_of_two).record


@pytest.mark.slow
def test_every_run_has_its_point_and_its_values(tradeoff):
    """Points in the panel of their task lie to scale: equal counts above each other, scores on a line."""
    found, record = tradeoff
    trials = record.trials
    assert len(runs_of(found)) == len(trials)
    assert (
        sum("chosen" in run["class"].split() for run in runs_of(found))
        == (found.table(-1)["in the mean"] == "yes").sum()
    )
    for task in ("cola", "mrpc"):
        rows = trials[trials["task"] == task]
        own = [run for run in runs_of(found) if run["data-task"] == task]
        heights = np.array([float(run["cy"]) for run in own])
        scores = rows["score"].to_numpy(float)
        best = scores > np.median(scores)
        slope, start = np.polyfit(scores[best], heights[best], 1)
        off = abs(slope * scores + start - heights) > 0.3
        assert slope < 0
        assert off.sum() < 20, "only heads on unadapted features are below the axis"
        assert len(set(heights[off])) <= 1, "and stand at its foot"
        places = pd.Series([float(run["cx"]) for run in own]).groupby(rows["trained_parameters"].to_numpy())
        assert (places.nunique() == 1).all()
        np.testing.assert_array_equal([run["data-seed"] for run in own], rows["seed"].astype(str))
    assert set(found.options("seed")) == {"", *map(str, trials["seed"].unique())}
    assert set(found.options("learning-rate")) == {
        "",
        *(f"{rate:.3g}" for rate in trials["learning_rate"].unique()),
    }


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "n"), [("sweep", 1), ("tradeoff", 3)])
def test_the_figures_are_those_of_the_gallery(kind, n, sweep_folder, tradeoff_folder, tmp_path):
    folder = {"sweep": sweep_folder, "tradeoff": tradeoff_folder}[kind](tmp_path / kind)
    made = write_gallery([load(folder).record], tmp_path / "drawn", FigureOptions(PAPER, formats=("svg",)))
    assert len(read(folder).all("figure")) == n == sum(one.kind == "figure" for one in made)


@pytest.mark.slow
def test_two_adapter_sizes_are_two_lines(sweep_trials, tmp_path: Path):
    trials = pd.concat([sweep_trials().assign(size=size) for size in (8, 64)], ignore_index=True)
    write_csv(tmp_path / "trials.csv", trials)
    write_csv(tmp_path / "sweep.csv", init_sweep_table(trials))
    found = read(tmp_path)
    assert found.table(0)["size"].value_counts().to_dict() == {"8": 8, "64": 8}
    assert found.options("size") == ["", "8", "64"]


def test_methods_without_parameters_are_in_the_tables_and_on_the_frontier(undrawn):
    found, whole = undrawn
    points, aggregate = found.table(0), found.table(1)
    assert points[points["parameters without the head"] == "0"]["method"].tolist() == ["head only"] * 2
    record = whole.aggregate
    (index,) = np.flatnonzero(record["method"] == "head_only")
    assert aggregate["on the frontier"][index] == {True: "yes", False: "no"}[record["on_frontier"][index]]


@pytest.mark.slow
def test_every_run_is_listed_and_says_whether_it_counts(tradeoff_folder, sweep_folder, tmp_path: Path):
    runs = read(tradeoff_folder(tmp_path / "t", tasks=("cola",))).table(-1)
    trials = pd.read_csv(tmp_path / "t" / "trials.csv")
    assert len(runs) == len(trials)
    assert runs["in the mean"].tolist() == [
        "yes" if rate == 3e-4 else "no" for rate in trials["learning_rate"]
    ]
    assert set(runs["method"]) >= {"adapters 64", "top 2 layers", "full fine-tuning", "head only"}
    assert runs["score"].str.rstrip(" %").tolist() == [printed(100 * score) for score in trials["score"]]
    lost = read(sweep_folder(tmp_path / "s")).table(-1)
    assert (lost["diverged"] == "yes").sum() == 2
    assert lost[lost["diverged"] == "yes"]["score"].tolist() == ["—"] * 2


def test_numbers_are_told_by_their_kind(undrawn):
    found, record = undrawn
    sizes, points = found.table(2), found.table(0)
    assert sizes["mean score"].tolist() == [printed(100 * score) for score in record.sizes["mean_score"]]
    perfect = replace(record, sizes=record.sizes.assign(mean_score=1.0))
    (*_, table) = _sweep_tables(perfect, None)
    assert {row[2] for row in table.rows} == {"100.0"}
    assert sizes["sem"].tolist() == [printed(100 * sem) for sem in record.sizes["sem"]]
    assert sizes["size"].tolist() == [str(size) for size in record.sizes["size"]]
    counts = record.tradeoff["trained_parameters_without_head"]
    assert points["parameters without the head"].tolist() == [f"{count:,}" for count in counts]
    shares = record.tradeoff["percent_of_base"].to_numpy()
    np.testing.assert_allclose(points["% of the base"].astype(float), shares, rtol=0.05, atol=0.05)
    assert points["learning rate"].unique().tolist() == ["0.0003"]
    assert points["lowest"].str.rstrip(" %").tolist() == [
        printed(100 * low) for low in record.tradeoff["min"]
    ]


@pytest.mark.slow
def test_settings_are_those_of_the_study(sweep_folder, tmp_path: Path):
    folder = sweep_folder(tmp_path / "s")
    write_study(
        folder / "study.json", {"study": "init-sweep", "base": {"name": "/home/x/y"}, "tasks": {"a": 1}}
    )
    made = curves_section(load(folder).record, 0, "a heading")
    assert "<dt>study</dt><dd>init-sweep</dd>" in made
    assert "<dt>base.name</dt><dd>y</dd>" in made
    assert f"{tmp_path.name}/s" in made
