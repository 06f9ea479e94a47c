"""Spans in a line are a curve: its numbers, its marks, and words that stand clear of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from ablation_facts import summary_of
from matplotlib.colors import to_hex
from refusals import names, says

from adapter_probe.analysis.comparing import AverageRecord, ComparisonRecord
from adapter_probe.analysis.published import published_ablation
from adapter_probe.analysis.score_changes import span_order
from adapter_probe.analysis.study_records import AblationRecord
from adapter_probe.errors import ResultsError
from adapter_probe.figures import joint
from adapter_probe.figures.drawing import Drawing
from adapter_probe.figures.gallery import figures_of
from adapter_probe.figures.span_curve import curve, drawings, plot
from adapter_probe.figures.venues import VENUES, FigureOptions
from adapter_probe.spans import choose_spans

SUMMARY = summary_of(n_examples=500, intact_score=0.8, removed_delta_points=-12.0, majority_score=0.69)
SHAPES = [("suffix", 30, 1), ("prefix", 12, 1), ("single", 30, 3), ("suffix", 80, 1), ("single", 80, 1)]


def frame_of(spans: str, n_layers: int, group: int = 1, seed: int = 0) -> pd.DataFrame:
    """A loss that grows with the span, noise, and intervals that are not symmetric."""
    chosen, draw = choose_spans(n_layers, spans, group)[1], np.random.default_rng(seed)
    sizes = np.array([span.n_layers for span in chosen])
    delta = -12 * sizes / n_layers + draw.normal(0, 0.5, len(sizes))
    sure = delta < -2
    return pd.DataFrame(
        {
            "first": [span.first for span in chosen], "last": [span.last for span in chosen],
            "n_layers": sizes, "score": 0.8 + delta / 100, "delta_points": delta, "n_examples": 500,
            "ci_low_points": delta - 2, "ci_high_points": delta + 1, "p_holm": np.where(sure, 0.01, 0.5),
            "significant": sure,
        }
    )  # fmt: skip


def record_of(frame: pd.DataFrame, folder: str = "a") -> AblationRecord:
    return AblationRecord(Path(folder), frame, None, None, SUMMARY, {})


def curve_drawing(records, options: FigureOptions) -> Drawing:
    (drawing,) = drawings(records, options)
    return drawing


def marks(ax, label: str) -> np.ndarray:
    """x and y of the dots of a kind."""
    return next(dots for dots in ax.collections if dots.get_label() == label).get_offsets().data


@pytest.mark.parametrize(
    ("spans", "n_layers", "group", "order"),
    [
        ("prefix", 4, 1, "prefix"),
        ("suffix", 5, 2, "suffix"),
        ("single", 4, 1, "apart"),
        ("single", 2, 1, "apart"),
        ("2..2", 4, 1, "apart"),
        ("all", 4, 1, None),
        ("1..2", 4, 1, None),
        ("all", 2, 1, None),
        ("suffix", 4, 4, None),
    ],
)
def test_which_spans_are_a_line(spans, n_layers, group, order):
    assert span_order(frame_of(spans, n_layers, group)) == order


@pytest.mark.parametrize(("spans", "n_layers", "group"), SHAPES)
def test_marks_stand_at_the_drops_and_are_filled_where_significant(spans, n_layers, group):
    frame = frame_of(spans, n_layers, group)
    ax = curve(record_of(frame.sample(frac=1, random_state=1)))
    drops, sure = -frame["delta_points"].to_numpy(), frame["significant"].to_numpy()
    for label, chosen in (("significant", sure), ("not significant", ~sure)):
        found = marks(ax, label)
        np.testing.assert_allclose(found, np.column_stack([np.flatnonzero(chosen), drops[chosen]]))
    filled, hollow = (
        next(dots for dots in ax.collections if dots.get_label() == name).get_facecolor()
        for name in ("significant", "not significant")
    )
    assert (to_hex(filled[0]), to_hex(hollow[0])) == ("#0072b2", to_hex(ax.get_facecolor()))
    (band,) = [one for one in ax.collections if one.get_label() == "interval"]
    corners = np.concatenate([path.vertices for path in band.get_paths()])
    np.testing.assert_allclose([corners[:, 1].min(), corners[:, 1].max()], [drops.min() - 1, drops.max() + 2])
    (dashed,) = [one for one in ax.lines if one.get_label() == "tolerance"]
    assert set(dashed.get_ydata()) == {1.0}


def test_the_axis_names_the_layers_and_what_they_are():
    for spans, group, label, first in (
        ("prefix", 1, ("last layer", "off", "first: 0"), "0"),
        ("suffix", 3, ("first layer", "off", "last: 8"), "0"),
        ("single", 3, ("layers", "off"), "0–2"),
        ("single", 1, ("layer", "off"), "0"),
    ):
        figure, ax = plt.subplots(figsize=(6, 3))
        curve(record_of(frame_of(spans, 9, group)), ax)
        figure.draw_without_rendering()
        assert names(ax.get_xlabel(), *label)
        assert ax.get_xticklabels()[0].get_text() == first


def test_the_words_above_say_why_spans_mean_nothing():
    record = replace(record_of(frame_of("suffix", 5)), summary=replace(SUMMARY, warning="?"))
    (ax,) = curve_drawing([record], FigureOptions(VENUES["paper"])).figure.axes
    said = ax.get_title(loc="left").replace("\n", " ")
    assert said.endswith("no better than the majority class: spans not informative")


@pytest.mark.parametrize(("spans", "n_layers", "group"), SHAPES)
@pytest.mark.parametrize("inches", [2.6, pytest.param(6.0, marks=pytest.mark.slow)])
def test_words_are_clear_of_the_curve(spans, n_layers, group, inches):
    figure, ax = plt.subplots(figsize=(inches, 0.8 * inches), layout="constrained")
    with plt.rc_context({"axes.labelsize": 8, "xtick.labelsize": 7}):
        curve(record_of(frame_of(spans, n_layers, group)), ax)
        figure.draw_without_rendering()
    frame = frame_of(spans, n_layers, group)
    tops = np.column_stack([np.arange(len(frame)), -frame["ci_low_points"]])
    box = ax.get_legend().get_window_extent()
    assert not box.count_contains(ax.transData.transform(tops))
    assert box.y0 > ax.transData.transform((0, 1.0))[1] - 2  # the tolerance's line


@pytest.mark.parametrize("inches", [2.5, 4.0])
def test_words_in_large_letters_stay_within_the_axes(inches: float):
    with plt.rc_context({"font.size": 13}):
        figure, ax = plt.subplots(figsize=(inches, inches), layout="constrained")
        plot(record_of(frame_of("suffix", 30)), ax=ax)
        figure.canvas.draw()
        legend, within = ax.get_legend().get_window_extent(), ax.get_window_extent()
    assert ax.get_legend().get_visible() == (inches > 3)  # letters below the smallest size are not printed
    if inches < 3:
        return
    assert within.x0 <= legend.x0 < legend.x1 <= within.x1
    assert within.y0 <= legend.y0 < legend.y1 <= within.y1


def test_an_undefined_drop_is_a_cross_and_a_gap():
    frame = frame_of("suffix", 6)
    frame.loc[2, ["delta_points", "ci_low_points", "ci_high_points"]] = np.nan
    ax = curve(record_of(frame))
    (crosses,) = [line for line in ax.lines if line.get_label() == "undefined"]
    assert list(crosses.get_xdata()) == [2]
    assert len(marks(ax, "significant")) + len(marks(ax, "not significant")) == 5
    caption = curve_drawing([record_of(frame)], FigureOptions(VENUES["paper"])).caption
    assert says(caption, "Crosses", "undefined (1)")


def test_a_grid_is_no_curve_and_plot_takes_either():
    grid, line = (record_of(frame_of(spans, 5)) for spans in ("all", "suffix"))
    with pytest.raises(ResultsError):
        curve(grid)
    assert names(plot(grid, plt.figure().add_subplot()).get_ylabel(), "first layer")
    assert names(plot(line, plt.figure().add_subplot()).get_xlabel(), "first layer", "last: 4")


@pytest.mark.parametrize("name", ["icml", pytest.param("talk", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("spans", "n_layers", "group"),
    [SHAPES[0], *(pytest.param(*s, marks=pytest.mark.slow) for s in SHAPES[1:])],
)
def test_the_papers_figure_is_tidy(assert_tidy, name, spans, n_layers, group):
    for column in ("half", "full"):
        drawing = curve_drawing(
            [record_of(frame_of(spans, n_layers, group))], FigureOptions(VENUES[name], column)
        )
        drawing.figure.draw_without_rendering()
        assert_tidy(drawing.figure)
        assert drawing.figure.get_figwidth() == getattr(VENUES[name], column)
    assert says(drawing.caption, "Filled marks", "0.05", "exact", "two-sided", "McNemar")
    interval = "95% interval" + ("s" if spans == "single" else "") + " by the exact method of Fay and Lumbard"
    assert says(drawing.caption, interval)
    assert "bootstrap" not in drawing.caption


def test_studies_of_one_order_share_a_range_and_other_orders_are_other_figures():
    records = [record_of(frame_of("suffix", 6, seed=seed), f"f{seed}") for seed in (0, 1)]
    records += [record_of(frame_of("prefix", 6), "p"), record_of(frame_of("all", 6), "g")]
    drawings = {drawing.stem: drawing for drawing in figures_of(records, FigureOptions(VENUES["paper"]))}
    assert set(drawings) == {"heatmap", "curve-suffix", "curve-prefix"}
    axes = drawings["curve-suffix"].figure.axes
    assert len({ax.get_ylim() for ax in axes}) == 1
    assert list(drawings["curve-suffix"].frame["grid"].unique()) == [f"CoLA, f{seed}" for seed in (0, 1)]
    assert [d.stem for d in figures_of(records[:1], FigureOptions(VENUES["paper"]))] == ["curve"]


def test_the_papers_drops_stand_beside_those_of_the_same_spans():
    options = FigureOptions(VENUES["paper"], paper=True)
    drawing = curve_drawing([record_of(frame_of("suffix", 12))], options)
    own = published_ablation("cola").query("last == 11").sort_values("first")
    (theirs,) = [line for line in drawing.figure.axes[0].lines if line.get_marker() == "s"]
    np.testing.assert_allclose(theirs.get_ydata(), -own["delta_points"])
    assert "Houlsby et al. (2019)" in drawing.caption
    assert "Houlsby" not in curve_drawing([record_of(frame_of("suffix", 8))], options).caption


def test_the_papers_drops_name_their_task_and_stand_once():
    options = FigureOptions(VENUES["paper"], paper=True)
    cola = [record_of(frame_of("suffix", 12, seed=seed), f"f{seed}") for seed in (0, 1)]
    cola = [replace(one, label=one.folder.name) for one in cola]
    mnli = replace(cola[0], summary=replace(SUMMARY, task="mnli"), label="")
    drawn = curve_drawing([*cola, mnli], options).frame
    theirs = ["CoLA (Houlsby et al. 2019)", "MNLI-m (Houlsby et al. 2019)"]
    names = ["f0", "f1", "MNLI-m", *theirs]
    assert drawn["grid"].value_counts(sort=False).to_dict() == dict.fromkeys(names, 12)
    for name, task in zip(theirs, ("cola", "mnli")):
        own = published_ablation(task).query("last == 11").sort_values("first")
        np.testing.assert_allclose(drawn.loc[drawn["grid"] == name, "delta_points"], own["delta_points"])
    alone = curve_drawing(cola[:1], options).frame
    assert list(alone["grid"].unique()) == ["f0", theirs[0]]


@pytest.mark.parametrize(
    ("spans", "alike", "differing"),
    [
        ("suffix", "layer 5", "last layer"),
        pytest.param("prefix", "layer 0", "layer 0", marks=pytest.mark.slow),
    ],
)
def test_a_caption_names_a_layer_only_if_all_studies_share_it(spans, alike, differing):
    six, twelve = (record_of(frame_of(spans, n), f"f{n}") for n in (6, 12))
    options = FigureOptions(VENUES["paper"])
    assert says(curve_drawing([six, six], options).caption, "layer on the axis", alike)
    both = curve_drawing([six, twelve], options).caption
    assert says(both, "layer on the axis", differing)
    assert ("layer 5" in both, "layer 11" in both) == (False, False)


def test_a_caption_names_a_first_layer_only_if_all_studies_share_it():
    low = frame_of("prefix", 6)
    high = low.assign(first=low["first"] + 2, last=low["last"] + 2)
    both = curve_drawing([record_of(low), record_of(high)], FigureOptions(VENUES["paper"])).caption
    assert says(both, "first layer", "layer on the axis", "switched off")
    assert not says(both, "layer 0")


def test_titles_say_what_is_drawn():
    options, lower = FigureOptions(VENUES["paper"]), replace(SUMMARY, metric="nll")
    for spans in ("suffix", "all"):
        one = record_of(frame_of(spans, 6))
        (drawing,) = figures_of([one], options)
        assert names(drawing.title, "CoLA", "drop", "switched off")
        (drawing,) = figures_of([replace(one, summary=lower)], options)
        assert names(drawing.title, "CoLA", "rise", "switched off")


@pytest.mark.parametrize(("spans", "mark"), [("suffix", "band"), ("single", "Blue bars")])
def test_a_joint_caption_names_the_interval_if_there_is_one(spans, mark):
    frame = frame_of(spans, 6).assign(sd_points=0.5)
    without = frame.drop(columns=["ci_low_points", "ci_high_points"])
    for shown, expected in ((frame, True), (without, False)):
        record = AverageRecord(("s0", "s1"), shown, "accuracy", 500, (0.8, 0.7), {})
        caption = next(joint.drawings([record], FigureOptions(VENUES["paper"]))).caption
        assert says(caption, mark, "95% interval over studies and examples") == expected
        assert ("95%" in caption) == expected
        assert says(caption, "switched off", "without retraining")
        assert says(caption, "dashed line", "mean", "1 point")


def test_means_and_differences_are_curves_as_well():
    frame = frame_of("suffix", 8)
    mean = AverageRecord(("s0", "s1"), frame.assign(sd_points=0.5), "accuracy", 500, (0.8, 0.7), {})
    difference = frame.assign(
        difference_points=-frame["delta_points"], ci_low_points=-frame["ci_high_points"],
        ci_high_points=-frame["ci_low_points"],
    )  # fmt: skip
    other = ComparisonRecord(("a", "b"), difference, "accuracy", 500, (0.8, 0.7), {})
    drawn = {}
    for record, stem, words in (
        (mean, "average", ("Grey bars", "one standard deviation")),
        (other, "comparison", ("b minus a",)),
    ):
        drawing = next(joint.drawings([record], FigureOptions(VENUES["paper"])))
        assert (drawing.stem, says(drawing.caption, *words)) == (stem, True)
        legend = [text.get_text() for text in drawing.figure.legends[0].get_texts()]
        assert "significant (paired test, Holm)" in legend  # the caption's test, and not that of one study
        ax = drawn[stem] = drawing.figure.axes[0]
        assert len(marks(ax, "significant")) == frame["significant"].sum()
        (band,) = [one for one in ax.collections if one.get_label() == "interval"]
        np.testing.assert_allclose(band.get_paths()[0].vertices[:, 1].max(), -frame["ci_low_points"].min())
    assert [line.get_label() for line in drawn["comparison"].lines].count("tolerance") == 0


def test_what_was_kept_is_said(assert_tidy):
    kept = replace(record_of(frame_of("prefix", 6)), summary=replace(SUMMARY, study="kept"))
    drawing = curve_drawing([kept], FigureOptions(VENUES["paper"]))
    assert names(drawing.figure.axes[0].get_xlabel(), "last layer", "kept on", "first: 0")
    assert says(drawing.caption, "layer 0", "layer on the axis", "only", "kept on")
