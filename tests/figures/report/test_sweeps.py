"""A sweep's part of the page: every figure of the gallery, every number behind them, nothing of its own."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from adapter_probe.analysis.studies import TradeoffRecord
from adapter_probe.analysis.sweeps import init_sweep_table
from adapter_probe.figures.gallery import write_gallery
from adapter_probe.figures.report.sweep_section import sweep_content
from adapter_probe.figures.venues import PAPER, FigureOptions
from adapter_probe.results.atomic import write_csv
from adapter_probe.results.schema import SWEEP_TABLES
from adapter_probe.results.sealing import sealed, write_study
from adapter_probe.studies.loading import load


def content_of(folder: Path) -> dict:
    return json.loads(json.dumps(sweep_content(load(folder).record), allow_nan=False))


@pytest.fixture(scope="module")
def tradeoff(tradeoff_folder, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, TradeoffRecord]:
    """What the page says of a trade-off, and its tables."""
    folder = tradeoff_folder(tmp_path_factory.mktemp("t") / "t")
    return content_of(folder), load(folder).record


def table_of(content: dict, number: int) -> pd.DataFrame:
    return pd.DataFrame(content["tables"][number]["rows"], columns=content["tables"][number]["columns"])


@pytest.mark.parametrize("kind", ["sweep", pytest.param("tradeoff", marks=pytest.mark.slow)])
def test_the_figures_are_those_of_the_gallery(kind: str, sweep_folder, tradeoff_folder, tmp_path: Path):
    folder = {"sweep": sweep_folder, "tradeoff": tradeoff_folder}[kind](tmp_path / kind)
    shown = content_of(folder)["figures"]
    made = write_gallery([load(folder).record], tmp_path / "drawn", FigureOptions(PAPER, formats=("svg",)))
    figures = [one for one in made if one.kind == "figure"]
    assert len(shown) == len(figures) == {"sweep": 1, "tradeoff": 3}[kind]
    for one, figure in zip(shown, figures):
        svg = base64.b64decode(one["source"].removeprefix("data:image/svg+xml;base64,")).decode()
        whole = figure.files[0].read_text("utf-8")
        begin, end = whole.index("<metadata>"), whole.index("</metadata>") + len("</metadata>")
        assert svg == whole[:begin] + whole[end:]
        assert one["title"] == ElementTree.fromstring(svg).findtext("{http://www.w3.org/2000/svg}title")
        assert one["caption"] == figure.caption
        assert one["width"] > 300


def test_two_adapter_sizes_are_two_lines(sweep_trials, tmp_path: Path):
    trials = pd.concat([sweep_trials().assign(size=size) for size in (8, 64)], ignore_index=True)
    write_csv(tmp_path / "trials.csv", trials)
    write_csv(tmp_path / "sweep.csv", init_sweep_table(trials))
    content = content_of(tmp_path)
    points = table_of(content, 0)
    assert points["adapter size"].value_counts().to_dict() == {"8": 8, "64": 8}
    assert "size 8" in content["figures"][0]["title"]
    assert "size 64" in content["figures"][0]["title"]


def test_methods_without_parameters_are_in_the_tables_and_on_the_frontier(tradeoff):
    content, whole = tradeoff
    points, aggregate = table_of(content, 0), table_of(content, 1)
    assert points[points["parameters without the head"] == "0"]["method"].tolist() == ["head only"] * 2
    record = whole.aggregate
    (index,) = np.flatnonzero(record["method"] == "head_only")
    assert aggregate["on the frontier"][index] == {True: "yes", False: "no"}[record["on_frontier"][index]]


def test_every_run_is_listed_and_says_whether_it_counts(tradeoff_folder, sweep_folder, tmp_path: Path):
    runs = table_of(content_of(tradeoff_folder(tmp_path / "t", tasks=("cola",))), -1)
    trials = pd.read_csv(tmp_path / "t" / "trials.csv")
    assert len(runs) == len(trials)
    assert runs["in the mean"].tolist() == [
        "yes" if rate == 3e-4 else "no" for rate in trials["learning_rate"]
    ]
    assert set(runs["method"]) >= {"adapters 64", "top 2 layers", "full fine-tuning", "head only"}
    assert runs["score"].tolist() == [f"{100 * score:.1f}%" for score in trials["score"]]
    lost = table_of(content_of(sweep_folder(tmp_path / "s")), -1)
    assert (lost["diverged"] == "yes").sum() == 2
    assert lost[lost["diverged"] == "yes"]["score"].tolist() == ["—"] * 2


def test_numbers_are_told_by_their_kind(tradeoff):
    content, record = tradeoff
    sizes, points = table_of(content, 2), table_of(content, 0)
    assert sizes["mean score"].tolist() == [f"{100 * score:.1f}" for score in record.sizes["mean_score"]]
    assert sizes["sem"].tolist() == [f"{100 * sem:.2f}" for sem in record.sizes["sem"]]
    assert sizes["size"].tolist() == [str(size) for size in record.sizes["size"]]
    counts = record.tradeoff["trained_parameters_without_head"]
    assert points["parameters without the head"].tolist() == [f"{count:,}" for count in counts]
    assert points["learning rate"].unique().tolist() == ["0.0003"]
    assert points["lowest"].tolist() == [f"{100 * low:.1f}%" for low in record.tradeoff["min"]]


def test_settings_are_those_of_the_study(sweep_folder, tmp_path: Path):
    folder = sweep_folder(tmp_path / "s")
    said = {"study": "init-sweep", "base": {"name": "/home/x/y"}, "tasks": {"a": 1}}
    write_study(folder / "study.json", said)
    with sealed(folder, SWEEP_TABLES):
        pass
    content = content_of(folder)
    assert content["settings"] == [["study", "init-sweep"], ["base.name", "y"]]
    assert (content["kind"], content["tasks"], content["name"]) == ("init", ["cola"], f"{tmp_path.name}/s")
