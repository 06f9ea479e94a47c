"""What captions say of numbers, tests and marks, and that they explain nothing that is not drawn."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from ablation_facts import record_of
from refusals import names, says

from adapter_probe.analysis.comparing import AverageRecord, DataComparisonRecord
from adapter_probe.figures import aggregate, attribution, curves, heatmap, init_sweep, joint, tradeoff
from adapter_probe.figures.ablation_words import Words, alike_ablations
from adapter_probe.figures.curves import ScoreSeries
from adapter_probe.figures.span_grid import Grid
from adapter_probe.figures.venues import PAPER, FigureOptions
from adapter_probe.results.manifests import read_study
from adapter_probe.results.trial_files import claim_study

SQUAD = {"task": "squad", "split": "test", "metric": "squad_f1", "kind": "extractive", "n_examples": 1}
CROSSES = "Crosses", "diverged", "1 trial"


@pytest.fixture
def spans(make_frame, with_statistics) -> pd.DataFrame:
    """Three layers; the drop of the middle one is not significant."""
    return with_statistics(make_frame(3, [3.0, 2.5, 1.2, 0.2, 4.0, 5.0]))[0]


def heatmap_caption(*records, tolerance: float = 1.0, published: pd.DataFrame | None = None) -> str:
    grids = [Grid(record.spans, [], record) for record in records]
    grids += [] if published is None else [Grid(published, ["CoLA"])]
    return heatmap._caption(records, grids, tolerance, with_shares=False)


def first_sentence(caption: str) -> str:
    return caption.partition(". ")[0]


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
    assert says(heatmap_caption(record_of(spans)), "frames", "single layers")
    by_two = spans.assign(
        first=2 * spans["first"], last=2 * spans["last"] + 1, n_layers=2 * spans["n_layers"]
    )
    assert says(heatmap_caption(record_of(by_two, n_layers=6)), "frames", "single groups")


def test_a_heatmap_says_n_the_test_and_the_correction(spans):
    caption = heatmap_caption(record_of(spans))
    assert names(first_sentence(caption), "Drop", "validation accuracy", "percentage points")
    assert says(caption, "CoLA", "1,043 examples", "accuracy 74.4%", "majority class 68.9%")
    assert says(caption, "drop", "1 point")
    assert says(caption, "exact", "two-sided", "McNemar", "Holm-corrected", "6 spans")
    assert "undefined" not in caption
    alone = heatmap_caption(record_of(spans[:1]))
    assert "McNemar" in alone
    assert "Holm" not in alone  # which corrects over nothing


def test_the_test_is_that_of_the_metric(spans):
    caption = heatmap_caption(record_of(spans, metric="mcc", intact_score=0.5812), tolerance=0.5)
    assert "(score × 100)" in caption
    assert says(caption, "Matthews correlation 0.581")
    assert says(caption, "two-sided", "paired", "bootstrap", "examples", "Holm-corrected")
    assert "McNemar" not in caption
    assert says(heatmap_caption(record_of(spans, **SQUAD)), "bootstrap", "paragraphs")


def test_what_is_not_drawn_is_not_explained(spans, make_frame):
    bare = make_frame(3, [3.0, 2.5, 1.2, 0.2, 4.0, 5.0])
    caption = heatmap_caption(record_of(bare, majority_score=None))
    for word in ("ring", "triangle", "Blue", "majority", "bootstrap", "McNemar", "Houlsby"):
        assert word not in caption
    marked = bare.assign(non_monotone=[False] * 5 + [True], delta_points=-np.arange(6.0) + 0.5)
    caption = heatmap_caption(record_of(marked), published=bare)
    assert says(caption, "Blue", "minus", "accuracy")
    assert says(caption, "5% level", "corrected over all such pairs")
    assert says(caption, "Houlsby", "2019", "published")


def test_undefined_spans_are_counted(spans):
    frame = spans.assign(delta_points=[np.nan, np.nan, *spans["delta_points"][2:]])
    caption = heatmap_caption(record_of(frame, intact_score=None))
    assert says(caption, "Crossed-out", "undefined (2)")
    assert says(caption, "accuracy undefined")


def test_tests_over_several_checkpoints(spans):
    fewer = spans.assign(p_holm=[np.nan, *spans["p_holm"][1:]])
    caption = heatmap_caption(record_of(spans), record_of(fewer, **{**SQUAD, "split": "validation"}))
    assert names(first_sentence(caption), "Drop", "validation score", "score × 100")
    assert says(caption, "McNemar", "bootstrap", "paragraphs", "Holm-corrected", "5 or 6 spans")
    assert says(caption, "SQuAD", "1 example")


def test_a_model_that_learned_nothing_is_named_first(spans, make_frame, with_statistics):
    warned = record_of(spans, warning="The intact model is not better than the majority class: ...")
    first = "CoLA", "no better", "majority class", "at the 5% level"
    assert names(first_sentence(heatmap_caption(warned)), *first)
    assert "no better" not in heatmap_caption(record_of(spans))
    layers = with_statistics(make_frame(3, [3.0, 2.5, 1.2, 0.2, 4.0, 5.0]))[1]
    said = warned.summary.warning
    assert names(first_sentence(attribution._caption([record_of(spans, layers, warning=said)])), *first)
    choices = record_of(spans, kind="causal", warning="The intact model is not better than chance: ...")
    assert names(first_sentence(heatmap_caption(choices)), "no better", "random")


def test_kept_spans(spans):
    caption = heatmap_caption(record_of(spans, study="kept"))
    assert names(first_sentence(caption), "only", "kept on")
    assert says(caption, "Rows", "first layer", "kept on", "columns", "last")
    assert "switched off" not in caption
    assert "stay on" not in caption
    partly = heatmap_caption(record_of(spans, study="kept", switched="layers 2-5"))
    assert says(partly, "layers 2-5 only", "the other adapters stay on")


def test_studies_of_other_ranks_are_in_other_figures(spans):
    off, cut, scaled = record_of(spans), record_of(spans, rank=2), record_of(spans, strength=0.5)
    found = [(suffix, own) for suffix, own in alike_ablations([off, cut, scaled]) if own]
    assert found == [("", [off]), ("-rank2", [cut]), ("-strength0.5", [scaled])]
    assert [suffix for suffix, own in alike_ablations([cut]) if own] == [""]


def test_marks_that_nothing_can_have_are_not_explained(spans):
    undefined = spans.assign(delta_points=np.nan, p_holm=np.nan, significant=False)
    assert "ring" not in heatmap_caption(record_of(undefined))


def test_changes_in_another_unit_are_in_another_figure(spans):
    """On one scale the colours of nats would be those of points; scores in points stay together."""
    shares, rises, mcc = (record_of(spans, metric=name) for name in ("accuracy", "nll", "mcc"))
    found = list(alike_ablations([shares, rises, mcc]))
    assert found[:2] == [("", [shares, mcc]), ("-nll", [rises])]
    assert next(alike_ablations([rises])) == ("", [rises])


def test_cells_of_a_map_on_two_data_sets_are_named():
    """By module: without it, points of two modules in one layer would have one name."""
    cells = pd.DataFrame({"module": ["q", "v"], "first": 0, "last": 0, "n_layers": 1, "on_frontier": True})
    drops = {"task": [1.0, -2.0], "other": [-2.0, 1.0]}
    for side, points in drops.items():
        cells = cells.assign(**{f"{side}_{end}points": points for end in ("", "low_", "high_")})
    record = DataComparisonRecord(("a", "b"), ("accuracy",) * 2, cells, (0.5, 0.5), (9, 9), {})
    (drawing,) = joint.drawings([record], FigureOptions(PAPER))
    assert names(first_sentence(drawing.caption), "module", "a layer", "its adapters are switched off")
    assert {"q 0", "v 0"} <= {text.get_text() for text in drawing.figure.axes[0].texts}


def test_what_is_switched_is_named(spans):
    """Also of a fine-tuned model, which has no adapters, and of adapters that keep some directions."""
    finetuned = replace(record_of(spans), identity={"checkpoint": {"method": {"name": "full"}}})
    caption = heatmap_caption(finetuned)
    assert names(first_sentence(caption), "the changes in a contiguous span", "switched off")
    assert says(caption, "changes of a fine-tuned model", "differences", "base")
    assert "adapters" not in caption
    cut = record_of(spans, rank=2)
    assert names(first_sentence(heatmap_caption(cut)), "the adapters", "cut to rank 2")
    assert (Words.of(cut).best_span, Words.of(cut).removed) == ("longest span cut to rank 2", "cut to rank 2")
    identity = {"a": {"settings": {"rank": 2}}, "b": {"settings": {"rank": 2}}}
    mean = AverageRecord(("a", "b"), spans.assign(sd_points=0.1), "accuracy", 9, (0.7, 0.8), identity)
    assert Words.of(mean).done == "cut to rank 2"


def test_attribution_names_what_is_resampled(make_frame, with_statistics):
    spans, layers = with_statistics(make_frame(3, [3.0, 2.5, 1.2, 0.2, 4.0, 5.0]))
    caption = attribution._caption([record_of(spans, layers, **SQUAD)])
    assert says(caption, "95% intervals by the Bayesian bootstrap", "paragraphs")
    assert says(caption, "Holm-corrected", "all spans")
    assert "m(a,b) = d(a,b) − d(a+1,b) − d(a,b−1) + d(a+1,b−1)" in caption
    lost = spans.assign(interaction_points=[np.nan, *spans["interaction_points"][1:]])
    assert says(attribution._caption([record_of(lost, layers, **SQUAD)]), "undefined (1)")


def test_a_sweep_counts_its_seeds_and_what_diverged():
    caption = init_sweep._caption([ScoreSeries("CoLA", sweep_points(), pd.DataFrame({"seed": [2, 0, 1]}))])
    rates = "learning rate 0.0003", "3 epochs"
    assert says(caption, "CoLA", "3 seeds", "0, 1, 2", *rates, "majority class 50.0%")
    assert says(caption, *CROSSES)
    assert says(caption, "bars", "standard errors")
    assert says(caption, "truncated at two")
    assert says(caption, "single trials")


def test_a_sweep_without_trials_or_majority():
    chosen = sweep_points(diverged=[0, 0], majority_score=np.nan, learning_rate=[1e-3, 3e-4])
    caption = init_sweep._caption([ScoreSeries("CoLA", chosen)])
    assert says(caption, "CoLA", "2–3 seeds", "learning rate", "epochs", "chosen", "diverge", "best mean")
    for word in ("majority", "dots", "diverged trials", "Houlsby"):
        assert word not in caption
    lost = chosen.assign(mean=[np.nan, 0.7])
    assert says(init_sweep._caption([ScoreSeries("CoLA", lost)]), "Means", "undefined (1)")


def test_a_tradeoff_of_several_metrics_names_them():
    series = [
        ScoreSeries("CoLA", tradeoff_points(metric="mcc")),
        ScoreSeries("RTE", tradeoff_points(diverged=[1, 0])),
    ]
    caption = tradeoff._caption(series)
    assert says(caption, "Validation score", "parameters", "without the head")
    assert says(caption, "CoLA: Matthews correlation; RTE: accuracy")
    assert says(caption, "2–3 seeds")
    assert says(caption, "standard errors")
    assert says(caption, "full fine-tuning")
    assert says(caption, *CROSSES)
    alone = tradeoff._caption(series[1:])
    assert "Validation accuracy" in alone
    assert "Scores:" not in alone


def test_captions_of_sweeps_name_base_and_examples(tmp_path):
    """From `study.json`, which keeps what is told of earlier tasks and is another study by none of it."""
    shared, told = {"base": {"weights_sha256": "a"}}, {"base": "gte-small"}
    cola, rte = {"cola": {"train": 8551, "validation": 1043}}, {"rte": {"train": 2490, "validation": 277}}
    claim_study(tmp_path, "tradeoff", shared, {"cola": {}}, {**told, "examples": cola})
    claim_study(tmp_path, "tradeoff", shared, {"rte": {}}, {**told, "examples": rte})
    claim_study(tmp_path, "tradeoff", shared, {"rte": {}})
    record = SimpleNamespace(identity={"study": read_study(tmp_path / "study.json")})
    base, examples = curves.told_sentences([record, record])
    assert "gte-small" in base
    assert "CoLA 8,551 and 1,043" in examples
    assert "RTE 2,490 and 277" in examples
    assert curves.told_sentences([SimpleNamespace(identity={"folder": "older"})]) == []


def test_marks_below_the_axis_are_explained_where_there_are_some():
    bare = tradeoff_points(method=["adapters", "head_only"], mean=[0.8, 0.1])
    more = pd.concat([bare, tradeoff_points(mean=[0.8, 0.85])], ignore_index=True)
    assert says(tradeoff._caption([ScoreSeries("CoLA", more)]), "Hollow marks", "arrow")
    assert "Hollow marks" not in tradeoff._caption([ScoreSeries("CoLA", tradeoff_points())])


def test_an_aggregate_names_its_tasks_and_the_papers():
    caption = aggregate._caption(aggregate_points(), ["cola", "rte", "my_task"], None)
    assert says(caption, "2–3 tasks", "CoLA, RTE, my task")
    assert says(caption, "95% interval", "seeds", "generalised interval")
    assert says(caption, "20th to 80th")
    assert says(caption, "Pareto")
    assert "At 0: only" not in caption
    assert "Houlsby" not in caption
    assert "not at 0" not in caption
    moved = aggregate._caption(aggregate_points(iqm_points=[-0.4, 0.2]), ["cola"], None)
    assert says(moved, "Full fine-tuning", "not at 0")
    assert "loss" not in caption
    assert says(aggregate._caption(aggregate_points(), ["sft"], None, losses=True), "loss", "lower")
    single = aggregate._caption(aggregate_points(iqm_low_points=np.nan), ["cola"], None)
    assert says(single, "one seed", "no interval")
    assert "95%" not in single
    none = aggregate_points(trained_parameters_without_head=[0, 10**6], on_frontier=False)
    caption = aggregate._caption(none, ["a"], published_glue=False)
    assert says(caption, "At 0", "head")
    assert "17 additional tasks, BERT-base" in caption
    assert "Pareto" not in caption


def test_sizes_count_what_is_missing():
    frame = pd.DataFrame({"size": [8, 64], "n_tasks": [2, 1], "mean_score": [0.8, np.nan], "sem": 0.01,
                          "cola": [0.8, 0.7], "rte": [0.8, np.nan]})  # fmt: skip
    caption = aggregate._sizes_caption(frame, paper=True)
    assert says(caption, "mean", "2 tasks")
    assert says(caption, "standard error")
    assert says(caption, "mean", "eight", "GLUE", "BERT-large")
    assert says(caption, "undefined (1)")
