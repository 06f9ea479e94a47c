from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from adapter_probe.errors import ResultsError
from adapter_probe.figures.report.sweeps import read_sweep, sweep_content


def content_of(folder: Path) -> dict:
    return json.loads(json.dumps(sweep_content(read_sweep(folder)), allow_nan=False))


def test_an_init_sweep_is_one_line_a_task_with_its_trials(make_sweep: Callable[..., Path]):
    folder = make_sweep("init", tasks=("a", "b"))
    content = content_of(folder)
    assert [(chart["kind"], chart["task"], chart["majority"]) for chart in content["charts"]] == [
        ("init", "a", 0.5), ("init", "b", 0.5),
    ]  # fmt: skip
    (series,) = content["charts"][0]["series"]
    assert [point["x"] for point in series["points"]] == [1e-4, 1e-3, 1e-2, 1.0]
    trials = pd.read_csv(folder / "trials.csv")
    for point in series["points"]:
        own = trials[(trials["task"] == "a") & (trials["init_std"] == point["x"])]
        assert {trial["trial"] for trial in point["trials"]} == set(own["trial"])
        assert len(point["trials"]) == 6
        chosen = [trial["score"] for trial in point["trials"] if trial["chosen"] and not trial["diverged"]]
        assert point["mean"] == pytest.approx(np.mean(chosen), abs=1e-6)
        assert point["n"] == len(chosen)
    lost = [trial for trial in series["points"][3]["trials"] if trial["diverged"]]
    assert [(trial["score"], trial["seed"], trial["chosen"]) for trial in lost] == [(None, 2, True)]
    assert series["points"][3]["diverged"] == 1


def test_a_trade_off_has_a_series_a_method(make_sweep: Callable[..., Path]):
    (chart,) = content_of(make_sweep("tradeoff"))["charts"]
    points = {
        one["method"]: [(p["x"], p["label"], len(p["trials"])) for p in one["points"]]
        for one in chart["series"]
    }
    assert points == {
        "adapters": [(2000, "adapters 1", 6), (16_000, "adapters 8", 6), (128_000, "adapters 64", 6)],
        "top_layers": [
            (90_000, "top 1 layers", 6),
            (180_000, "top 2 layers", 6),
            (360_000, "top 4 layers", 6),
        ],
        "layernorm_only": [(800, "LayerNorm only", 6)],
        "full": [(1_000_000, "full fine-tuning", 6)],
    }
    assert chart["percent"] is True


@pytest.mark.parametrize("kind", ["init", "tradeoff"])
def test_trials_alone_are_drawn_without_means(make_sweep: Callable[..., Path], kind: str):
    (chart,) = content_of(make_sweep(kind, summarised=False))["charts"]
    assert chart["kind"] == kind
    points = [point for series in chart["series"] for point in series["points"]]
    assert len(points) == (4 if kind == "init" else 8)
    assert all(point["mean"] is None and len(point["trials"]) == 6 for point in points)
    assert all(trial["chosen"] for point in points for trial in point["trials"])


def test_the_aggregate_keeps_its_percentiles(tmp_path: Path):
    (tmp_path / "aggregate.csv").write_text(
        "method,size,k,label,n_tasks,trained_parameters_without_head,percent_of_base,p20_points,p50_points,"
        "p80_points,iqm_points,iqm_low_points,iqm_high_points,on_frontier\n"
        "adapters,8,,adapters 8,3,2000,0.5,-2,-1,0.5,-0.9,-1.5,0.2,True\n"
        "top_layers,,1,top 1 layers,3,9000,2,-5,-4,-3,-4.1,,,False\n"
    )
    (chart,) = content_of(tmp_path)["charts"]
    assert chart["kind"] == "aggregate"
    first, second = (series["points"][0] for series in chart["series"])
    assert (first["p20_points"], first["p50_points"], first["p80_points"], first["frontier"]) == (
        -2,
        -1,
        0.5,
        True,
    )
    assert (second["iqm_low_points"], second["frontier"], second["percentOfBase"]) == (None, False, 2)


def test_sizes_and_settings(tmp_path: Path):
    (tmp_path / "sizes.csv").write_text("size,n_tasks,mean_score,sem,CoLA\n8,1,0.74,0.01,0.74\n")
    (tmp_path / "study.json").write_text(
        '{"study": "tradeoff", "base": {"name": "x"}, "tasks": {"a": {"b": 1}}}'
    )
    content = content_of(tmp_path)
    assert content["charts"] == []
    assert content["sizes"] == {
        "columns": ["size", "n_tasks", "mean_score", "sem", "CoLA"],
        "rows": [[8, 1, 0.74, 0.01, 0.74]],
    }
    assert content["settings"] == [["study", "tradeoff"], ["base.name", "x"]]


def test_a_table_without_a_needed_column_is_refused(tmp_path: Path):
    (tmp_path / "sweep.csv").write_text("task,mean\na,1\n")
    with pytest.raises(ResultsError, match=r"sweep\.csv: no column 'init_std' \(found: task, mean\)"):
        read_sweep(tmp_path)
