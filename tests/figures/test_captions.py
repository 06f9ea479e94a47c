"""What captions say of numbers, tests and marks, and that they explain nothing that is not drawn."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from ablation_facts import record_of

from adapter_probe.figures import aggregate, attribution, heatmap, init_sweep, size_robustness, tradeoff
from adapter_probe.figures.curves import ScoreSeries
from adapter_probe.figures.span_grid import Grid

SQUAD = {"task": "squad", "split": "test", "metric": "squad_f1", "kind": "extractive", "n_examples": 1}
CROSSES = (
    "Crosses at the bottom: points with diverged trials, which are excluded from the mean (1 trial in total)."
)


@pytest.fixture
def spans(make_frame, with_statistics) -> pd.DataFrame:
    """Three layers; the drop of the middle one is not significant."""
    return with_statistics(make_frame(3, [3.0, 2.5, 1.2, 0.2, 4.0, 5.0]))[0]


def heatmap_caption(*records, tolerance: float = 1.0, published: pd.DataFrame | None = None) -> str:
    grids = [Grid(record.spans, [], record) for record in records]
    grids += [] if published is None else [Grid(published, ["CoLA"])]
    return heatmap._caption(records, grids, tolerance, with_shares=False)


def points(kind: dict[str, object], **columns: object) -> pd.DataFrame:
    shared = {
        "task": "t", "metric": "accuracy", "mean": [0.8, 0.7], "sem": [0.01, 0.02], "min": 0.6, "max": 0.9,
        "majority_score": 0.5, "k": None, "size": [8, None],
    }  # fmt: skip
    return pd.DataFrame({**shared, **kind, **columns}).astype({"size": "Int64", "k": "Int64"})


def sweep_points(**columns: object) -> pd.DataFrame:
    kind = {"init_std": [1e-3, 1e-2], "n": [3, 2], "diverged": [0, 1], "learning_rate": 3e-4, "epochs": 3,
            "method": "adapters", "init": ""}  # fmt: skip
    return points(kind, **columns)


def tradeoff_points(**columns: object) -> pd.DataFrame:
    kind = {"method": ["adapters", "full"], "n": 2, "diverged": 0, "trained_parameters": [1000, 10**6],
            "trained_parameters_without_head": [900, 10**6], "percent_of_base": [0.1, 100.0],
            "learning_rate": 3e-4, "epochs": 3}  # fmt: skip
    return points(kind, **columns)


def aggregate_points(**columns: object) -> pd.DataFrame:
    kind = {
        "method": ["adapters", "full"], "n_tasks": [2, 3], "p50_points": [-0.5, 0.0], "on_frontier": True,
        "iqm_points": [-0.4, 0.0], "iqm_low_points": [-0.9, 0.0],
        "trained_parameters_without_head": [1000, 10**6],
    }  # fmt: skip
    return points(kind, **columns)


def test_frames_mark_what_was_switched_alone(spans):
    assert "frames mark single layers." in heatmap_caption(record_of(spans))
    by_two = spans.assign(
        first=2 * spans["first"], last=2 * spans["last"] + 1, n_layers=2 * spans["n_layers"]
    )
    assert "frames mark single groups of layers." in heatmap_caption(record_of(by_two, n_layers=6))


def test_a_heatmap_says_n_the_test_and_the_correction(spans):
    caption = heatmap_caption(record_of(spans))
    assert caption.startswith("Drop in validation accuracy (percentage points) when the adapters")
    assert (
        "CoLA: one trained checkpoint, 1,043 examples, intact accuracy 74.4%, majority class 68.9%."
    ) in caption
    assert "with a drop of at most 1 point from the others" in caption
    assert "an exact two-sided McNemar test of its predictions against the intact model's" in caption
    assert "Holm-corrected over 6 spans" in caption
    assert "undefined" not in caption


def test_the_test_is_that_of_the_metric(spans):
    caption = heatmap_caption(record_of(spans, metric="mcc", intact_score=0.5812), tolerance=0.5)
    assert "(score × 100)" in caption
    assert "intact Matthews correlation 0.581" in caption
    assert "a two-sided paired bootstrap test over examples, Holm-corrected" in caption
    assert "McNemar" not in caption
    assert "over paragraphs" in heatmap_caption(record_of(spans, **SQUAD))


def test_what_is_not_drawn_is_not_explained(spans, make_frame):
    bare = make_frame(3, [3.0, 2.5, 1.2, 0.2, 4.0, 5.0])
    caption = heatmap_caption(record_of(bare, majority_score=None))
    for word in ("ring", "triangle", "Blue", "majority", "bootstrap", "McNemar", "Houlsby"):
        assert word not in caption
    marked = bare.assign(non_monotone=[False] * 5 + [True], delta_points=-np.arange(6.0) + 0.5)
    caption = heatmap_caption(record_of(marked), published=bare)
    assert "Blue cells, with a minus sign: the accuracy improves." in caption
    assert "simultaneous 95% paired bootstrap bound over the spans inside it; not corrected" in caption
    assert "Houlsby et al. (2019) show the published values" in caption


def test_undefined_spans_are_counted(spans):
    frame = spans.assign(delta_points=[np.nan, np.nan, *spans["delta_points"][2:]])
    caption = heatmap_caption(record_of(frame, intact_score=None))
    assert caption.endswith("Crossed-out spans are undefined (2).")
    assert "intact accuracy undefined" in caption


def test_tests_over_several_checkpoints(spans):
    fewer = spans.assign(p_holm=[np.nan, *spans["p_holm"][1:]])
    caption = heatmap_caption(record_of(spans), record_of(fewer, **{**SQUAD, "split": "validation"}))
    assert caption.startswith("Drop in validation score (score × 100)")
    assert "model's or a two-sided paired bootstrap test over paragraphs" in caption
    assert "Holm-corrected over 5 or 6 spans" in caption
    assert "SQuAD: one trained checkpoint, 1 example," in caption


def test_a_model_that_learned_nothing_is_named_first(spans, make_frame, with_statistics):
    warned = record_of(spans, warning="The intact model is not better than the majority class: ...")
    first = "CoLA: the intact model is no better than the majority class, so its spans are not informative. "
    assert heatmap_caption(warned).startswith(first)
    assert "no better" not in heatmap_caption(record_of(spans))
    layers = with_statistics(make_frame(3, [3.0, 2.5, 1.2, 0.2, 4.0, 5.0]))[1]
    said = warned.summary.warning
    assert attribution._caption([record_of(spans, layers, warning=said)]).startswith(first)
    choices = record_of(spans, kind="causal", warning="The intact model is not better than chance: ...")
    assert "no better than a random choice" in heatmap_caption(choices)


def test_kept_spans(spans):
    caption = heatmap_caption(record_of(spans, study="kept"))
    assert "only the adapters in a contiguous span of layers are kept on" in caption
    assert "Rows: the first layer kept on, columns: the last" in caption


def test_attribution_names_what_is_resampled(make_frame, with_statistics):
    spans, layers = with_statistics(make_frame(3, [3.0, 2.5, 1.2, 0.2, 4.0, 5.0]))
    caption = attribution._caption([record_of(spans, layers, **SQUAD)])
    assert "95% paired bootstrap intervals over paragraphs" in caption
    assert "Holm-corrected over all spans" in caption
    assert "m(a,b) = d(a,b) − d(a+1,b) − d(a,b−1) + d(a+1,b−1)" in caption
    lost = spans.assign(interaction_points=[np.nan, *spans["interaction_points"][1:]])
    assert attribution._caption([record_of(lost, layers, **SQUAD)]).endswith("left out are undefined (1).")


def test_a_sweep_counts_its_seeds_and_what_diverged():
    caption = init_sweep._caption([ScoreSeries("CoLA", sweep_points(), pd.DataFrame({"seed": [2, 0, 1]}))])
    words = "CoLA: 3 seeds per point (0, 1, 2), learning rate 0.0003, 3 epochs, majority class 50.0%."
    assert words in caption
    assert CROSSES in caption
    assert "bars their standard errors" in caption


def test_a_sweep_without_trials_or_majority():
    chosen = sweep_points(diverged=[0, 0], majority_score=np.nan, learning_rate=[1e-3, 3e-4])
    caption = init_sweep._caption([ScoreSeries("CoLA", chosen)])
    assert (
        "CoLA: 2–3 seeds per point, learning rate and number of epochs chosen per point (largest share of"
        " seeds that did not diverge, then best mean)."
    ) in caption
    for word in ("majority", "dots", "diverged trials", "Houlsby"):
        assert word not in caption
    lost = chosen.assign(mean=[np.nan, 0.7])
    assert init_sweep._caption([ScoreSeries("CoLA", lost)]).endswith("Means left out are undefined (1).")


def test_a_tradeoff_of_several_metrics_names_them():
    curves = [
        ScoreSeries("CoLA", tradeoff_points(metric="mcc")),
        ScoreSeries("RTE", tradeoff_points(diverged=[1, 0])),
    ]
    caption = tradeoff._caption(curves)
    assert "Validation score against the number of parameters trained per task, including the head" in caption
    assert "Scores: CoLA: Matthews correlation; RTE: accuracy." in caption
    assert "2–3 seeds per point" in caption
    assert CROSSES in caption
    alone = tradeoff._caption(curves[1:])
    assert "Validation accuracy" in alone
    assert "Scores:" not in alone


def test_marks_below_the_axis_are_explained_where_there_are_some():
    bare = tradeoff_points(method=["adapters", "head_only"], mean=[0.8, 0.1])
    more = pd.concat([bare, tradeoff_points(mean=[0.8, 0.85])], ignore_index=True)
    assert "Hollow marks with an arrow" in tradeoff._caption([ScoreSeries("CoLA", more)])
    assert "Hollow marks" not in tradeoff._caption([ScoreSeries("CoLA", tradeoff_points())])


def test_an_aggregate_names_its_tasks_and_the_papers():
    caption = aggregate._caption(aggregate_points(), ["cola", "rte", "my_task"], None)
    assert "for 2–3 tasks: CoLA, RTE, my task." in caption
    assert "95% bootstrap interval over seeds, trials resampled within each task" in caption
    assert "At 0: only" not in caption
    assert "Houlsby" not in caption
    single = aggregate._caption(aggregate_points(iqm_low_points=np.nan), ["cola"], None)
    assert "over all tasks' trials (one seed per task, so no interval)." in single
    none = aggregate_points(trained_parameters_without_head=[0, 10**6], on_frontier=False)
    caption = aggregate._caption(none, ["a"], "additional")
    assert "At 0: only the head is trained." in caption
    assert "17 additional tasks, BERT-base" in caption
    assert "Pareto" not in caption


def test_sizes_count_what_is_missing():
    frame = pd.DataFrame({"size": [8, 64], "n_tasks": [2, 1], "mean_score": [0.8, np.nan], "sem": 0.01,
                          "cola": [0.8, 0.7], "rte": [0.8, np.nan]})  # fmt: skip
    caption = size_robustness._caption(frame, paper=True)
    assert "their mean over 2 tasks at the sizes that all of them have" in caption
    assert "mean over eight GLUE tasks, BERT-large" in caption
    assert caption.endswith("Values left out are undefined (1).")
