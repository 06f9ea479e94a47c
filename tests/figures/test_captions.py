from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from adapter_probe.analysis.studies import AblationOverview, AblationRecord
from adapter_probe.figures.captions import attribution_caption, heatmap_caption
from adapter_probe.figures.curves import ScoreSeries
from adapter_probe.figures.heatmap import Grid
from adapter_probe.figures.sweep_captions import (
    aggregate_caption,
    init_sweep_caption,
    size_robustness_caption,
    tradeoff_caption,
)

FACTS = AblationOverview("cola", "validation", "ablated", "accuracy", 1043, 0.742, -5.5, majority=0.691)
SQUAD = AblationOverview("squad", "test", "ablated", "squad_f1", 1, 0.9, -1.0)


def record(spans: pd.DataFrame, layers: pd.DataFrame, overview: AblationOverview) -> AblationRecord:
    return AblationRecord(Path("results"), spans, layers, None, overview, {}, {})


@pytest.fixture
def spans(make_frame, with_statistics) -> pd.DataFrame:
    """Three layers; the drop of the middle one is not significant."""
    return with_statistics(make_frame(3, [3.0, 2.5, 1.2, 0.2, 4.0, 5.0]))[0]


def sweep_points(**columns: object) -> pd.DataFrame:
    points = {
        "task": "t", "metric": "accuracy", "init_std": [1e-3, 1e-2], "n": [3, 2], "mean": [0.8, 0.7],
        "sem": [0.01, 0.02], "min": 0.6, "max": 0.9, "diverged": [0, 1], "majority_score": 0.5,
        "learning_rate": 3e-4, "epochs": 3,
    }  # fmt: skip
    return pd.DataFrame({**points, **columns})


def tradeoff_points(**columns: object) -> pd.DataFrame:
    points = {
        "task": "t", "metric": "accuracy", "method": ["adapters", "full"], "size": [8, None], "k": None,
        "n": 2, "mean": [0.8, 0.85], "sem": 0.01, "diverged": 0, "trained_parameters": [1000, 10**6],
        "majority_score": 0.5,
    }  # fmt: skip
    return pd.DataFrame({**points, **columns}).astype({"size": "Int64", "k": "Int64"})


def aggregate_points(**columns: object) -> pd.DataFrame:
    points = {
        "method": ["adapters", "full"], "k": None, "n_tasks": [2, 3], "p50_points": [-0.5, 0.0],
        "iqm_points": [-0.4, 0.0], "iqm_low_points": [-0.9, 0.0],
        "trained_parameters_without_head": [1000, 10**6], "on_frontier": True,
    }  # fmt: skip
    return pd.DataFrame({**points, **columns}).astype({"k": "Int64"})


def test_a_heatmap_says_n_the_test_and_the_correction(spans):
    caption = heatmap_caption([Grid(spans, [], FACTS)], 1.0)
    assert "Drop in validation accuracy (percentage points)" in caption
    assert (
        "CoLA: one trained checkpoint, 1,043 examples, intact accuracy 74.2 %, majority class 69.1 %."
        in caption
    )
    assert "at most 1 point from" in caption
    assert "an exact two-sided McNemar test of its predictions against the intact model's" in caption
    assert "Holm-corrected over 6 spans" in caption
    assert caption.endswith("No value is undefined.")


def test_the_test_is_that_of_the_metric(spans):
    facts = replace(FACTS, metric="mcc", intact=0.5812)
    caption = heatmap_caption([Grid(spans, [], facts)], 0.5)
    assert "points of 0.01" in caption
    assert "intact Matthews correlation 0.581" in caption
    assert "a two-sided paired bootstrap test over examples, Holm-corrected" in caption
    assert "McNemar" not in caption
    assert "over paragraphs" in heatmap_caption([Grid(spans, [], SQUAD)], 1.0)


def test_what_is_not_drawn_is_not_explained(spans, make_frame):
    bare = make_frame(3, [3.0, 2.5, 1.2, 0.2, 4.0, 5.0])
    caption = heatmap_caption([Grid(bare, [], replace(FACTS, metric=None, majority=None))], 1.0)
    for word in ("ring", "triangle", "Blue", "majority", "bootstrap", "McNemar", "Houlsby"):
        assert word not in caption
    marked = bare.assign(non_monotone=[False] * 5 + [True], delta_points=-np.arange(6.0) + 0.5)
    caption = heatmap_caption([Grid(marked, [], FACTS), Grid(bare, ["CoLA"], None)], 1.0)
    assert "Blue cells, with a minus sign: the score improves." in caption
    assert "simultaneous 95 % paired bootstrap bound over the spans inside it; not corrected" in caption
    assert "Houlsby et al. (2019) show the published values" in caption


def test_undefined_spans_are_counted(spans):
    frame = spans.assign(delta_points=[np.nan, np.nan, *spans["delta_points"][2:]])
    caption = heatmap_caption([Grid(frame, [], replace(FACTS, intact=None))], 1.0)
    assert caption.endswith("Crossed-out spans are undefined (2).")
    assert "intact accuracy undefined" in caption


def test_tests_over_several_checkpoints(spans):
    fewer = spans.assign(p_holm=[np.nan, *spans["p_holm"][1:]])
    caption = heatmap_caption(
        [Grid(spans, [], FACTS), Grid(fewer, [], replace(SQUAD, split="validation"))], 1.0
    )
    assert "Drop in validation score (points of 0.01)" in caption
    assert "model's or a two-sided paired bootstrap test over paragraphs" in caption
    assert "Holm-corrected over 5 or 6 spans" in caption
    assert "SQuAD: one trained checkpoint, 1 example," in caption


def test_a_model_that_learned_nothing_is_named_first(spans):
    facts = replace(FACTS, warning="The intact model is not better than the majority class: ...")
    caption = heatmap_caption([Grid(spans, [], facts)], 1.0)
    assert caption.startswith(
        "CoLA: the intact model is no better than the majority class, so its spans are not informative. "
    )
    layers = pd.DataFrame({"layer": range(3), "share_points": 1.0})
    assert attribution_caption([record(spans, layers, facts)]).startswith(
        "CoLA: the intact model is no better"
    )
    assert "no better" not in heatmap_caption([Grid(spans, [], FACTS)], 1.0)
    tested = replace(
        FACTS, baseline="random choice", warning="The intact model is not better than chance: ..."
    )
    assert "no better than a random choice" in heatmap_caption([Grid(spans, [], tested)], 1.0)


def test_kept_spans(spans):
    caption = heatmap_caption([Grid(spans, [], replace(FACTS, study="kept"))], 1.0)
    assert "only the adapters in a contiguous span of layers are kept on" in caption
    assert "columns the last kept layer" in caption


def test_attribution_names_what_is_resampled(make_frame, with_statistics):
    spans, layers = with_statistics(make_frame(3, [3.0, 2.5, 1.2, 0.2, 4.0, 5.0]))
    caption = attribution_caption([record(spans, layers, SQUAD)])
    assert "95 % paired bootstrap intervals over paragraphs" in caption
    assert "Holm-corrected over all spans" in caption
    assert "m(a,b) = d(a,b) − d(a+1,b) − d(a,b−1) + d(a+1,b−1)" in caption
    lost = spans.assign(interaction_points=[np.nan, *spans["interaction_points"][1:]])
    assert attribution_caption([record(lost, layers, SQUAD)]).endswith("left out are undefined (1).")


def test_a_sweep_counts_its_seeds_and_what_diverged():
    trials = pd.DataFrame({"seed": [2, 0, 1]})
    caption = init_sweep_caption([ScoreSeries("CoLA", sweep_points(), trials)])
    words = "CoLA: 3 seeds per point (0, 1, 2), learning rate 0.0003, 3 epochs, majority class 50.0 %."
    assert words in caption
    crosses = "Crosses at the bottom: points with diverged trials, which are excluded from the mean"
    assert f"{crosses} (1 trial in total)." in caption
    assert "bars their standard errors" in caption


def test_a_sweep_without_trials_or_majority():
    points = sweep_points(diverged=[0, 0], majority_score=np.nan, learning_rate=[1e-3, 3e-4])
    caption = init_sweep_caption([ScoreSeries("CoLA", points)])
    assert (
        "CoLA: 2–3 seeds per point, learning rate and number of epochs chosen per point (largest share of"
        " seeds that did not diverge, then best mean)."
    ) in caption
    for word in ("majority", "dots", "diverged", "Houlsby"):
        assert word not in caption
    lost = points.assign(mean=[np.nan, 0.7])
    assert init_sweep_caption([ScoreSeries("CoLA", lost)]).endswith("Means left out are undefined (1).")


def test_a_tradeoff_of_several_metrics_names_them():
    curves = [
        ScoreSeries("CoLA", tradeoff_points(metric="mcc")),
        ScoreSeries("RTE", tradeoff_points(diverged=[1, 0])),
    ]
    caption = tradeoff_caption(curves)
    assert "Validation score against the number of parameters trained per task, including the head" in caption
    assert "Scores: CoLA: Matthews correlation; RTE: accuracy." in caption
    assert "2–3 seeds per point" in caption
    crosses = "Crosses at the bottom: points with diverged trials, which are excluded from the mean"
    assert f"{crosses} (1 trial in total)." in caption
    alone = tradeoff_caption(curves[1:])
    assert "Validation accuracy" in alone
    assert "Scores:" not in alone


def test_marks_below_the_axis_are_explained_where_there_are_some():
    points = tradeoff_points(method=["adapters", "head_only"], mean=[0.8, 0.1])
    more = pd.concat([points, tradeoff_points()], ignore_index=True)
    assert "Hollow marks with an arrow" in tradeoff_caption([ScoreSeries("CoLA", more)])
    assert "Hollow marks" not in tradeoff_caption([ScoreSeries("CoLA", tradeoff_points())])


def test_an_aggregate_names_its_tasks_and_the_papers():
    caption = aggregate_caption(aggregate_points(), ["cola", "rte", "my_task"], None)
    assert "for 2–3 tasks: CoLA, RTE, my_task." in caption
    assert "95 % bootstrap interval over seeds, trials resampled within each task" in caption
    assert "At 0:" not in caption
    assert "Houlsby" not in caption
    single = aggregate_caption(aggregate_points(iqm_low_points=np.nan), ["cola"], None)
    assert "over all tasks' trials (one seed per task, so no interval)." in single
    none = aggregate_points(trained_parameters_without_head=[0, 10**6], on_frontier=False)
    caption = aggregate_caption(none, ["a"], "additional")
    assert "At 0: only the head is trained." in caption
    assert "17 additional tasks, BERT-base" in caption
    assert "Pareto" not in caption


def test_sizes_count_what_is_missing():
    frame = pd.DataFrame({"size": [8, 64], "n_tasks": [2, 1], "mean_score": [0.8, np.nan], "sem": 0.01,
                          "cola": [0.8, 0.7], "rte": [0.8, np.nan]})  # fmt: skip
    caption = size_robustness_caption(frame, ["cola", "rte"], published=True)
    assert "their mean over 2 tasks at the sizes that all of them have" in caption
    assert "mean over eight GLUE tasks, BERT-large" in caption
    assert caption.endswith("Values left out are undefined (1).")
