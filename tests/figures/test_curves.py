from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from tiers import slow_unless

from adapter_probe.figures import style
from adapter_probe.figures.curves import (
    METHODS,
    SERIES,
    decade_ticks,
    far_below,
    few_ticks,
    line_props,
    mark_far_below,
    marks_of,
)
from adapter_probe.figures.layout import fit_height, legend_below, new_figure
from adapter_probe.figures.legends import PointLabel, add_legend, label_points
from adapter_probe.figures.venues import VENUES
from adapter_probe.wording import METHOD_LABELS


def points(rows: list[tuple[str, int | None, float]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["method", "k", "mean"]).astype({"k": "Int64"})


@pytest.mark.parametrize("marks", [list(METHODS.values()), list(SERIES)])
def test_no_two_series_need_their_colour(marks):
    assert len({mark.marker for mark in marks}) == len(marks)
    joined = [mark.line for mark in marks if mark.line]
    assert len(set(joined)) == len(joined)


def test_every_method_has_a_name_and_a_visible_colour():
    assert METHOD_LABELS.keys() == METHODS.keys()
    for mark in (*METHODS.values(), *SERIES):
        assert style.contrast(mark.colour, style.WHITE) >= 3  # WCAG 2 for graphical objects


def test_published_marks_are_hollow_and_thinner():
    for mark in METHODS.values():
        with style.paper_style():
            ours, theirs = line_props(mark), line_props(mark, published=True)
            assert theirs["linewidth"] < matplotlib.rcParams["lines.linewidth"]
        assert theirs["markerfacecolor"] == style.WHITE
        assert (ours["marker"], ours["color"]) == (theirs["marker"], theirs["color"])


def test_only_bare_heads_can_lie_below_the_axis():
    rows = [("adapters", None, 0.8), ("adapters", None, 0.7), ("adapters", None, 0.1), ("full", None, 0.85)]
    assert not far_below(points(rows), "mean").any()
    heads = [("head_only", None, 0.1), ("top_layers", 0, 0.2), ("top_layers", 1, 0.78)]
    rest = [("adapters", None, 0.8), ("full", None, 0.85)]
    assert far_below(points(heads + rest), "mean").tolist() == [True, True, False, False, False]
    near = [("head_only", None, 0.76), *rest, ("adapters", None, 0.7)]
    assert not far_below(points(near), "mean").any()
    wide = points(heads + rest).assign(min=[0.1, 0.2, 0.78, 0.8, 0.15])  # a seed of full fine-tuning failed
    assert not far_below(wide, "mean").any()


def test_without_anything_else_nothing_is_far():
    assert far_below(points([("head_only", None, 0.1)]), "mean").tolist() == [False]
    assert (
        far_below(points([("head_only", None, np.nan), ("full", None, 0.8)]), "mean").tolist() == [False] * 2
    )


def test_what_lies_below_says_its_value():
    with style.paper_style():
        ax = Figure(figsize=(3, 2)).add_axes((0.1, 0.1, 0.8, 0.8))
        ax.set_ylim(50, 60)
        mark_far_below(ax, ["head_only", "top_layers"], np.array([1.0, 2.0]), np.array([36.46, -4.25]), 1)
    assert [text.get_text() for text in ax.texts] == [" ↓ 36.5", " ↓ −4.3"]
    assert [list(line.get_xdata()) for line in ax.lines] == [[1.0], [2.0]]
    assert [line.get_marker() for line in ax.lines] == [
        METHODS["head_only"].marker,
        METHODS["top_layers"].marker,
    ]


@pytest.mark.parametrize(
    ("low", "high", "least", "decades"),
    [(2e4, 3e8, None, [5, 6, 7, 8]), (1e3, 1e4, None, [3, 4]), (10.0, 3e8, 1.5e6, [7, 8])],
)
def test_a_tick_a_decade(low, high, least, decades):
    with style.paper_style():
        figure = Figure(figsize=(3, 2))
        ax = figure.add_axes((0.1, 0.1, 0.8, 0.8))
        decade_ticks(ax, low, high, least)
        figure.draw_without_rendering()
    assert np.log10(ax.get_xticks()).round(9).tolist() == decades
    labels = [text.get_text() for text in ax.get_xticklabels()]
    assert labels == [rf"$\mathdefault{{10^{{{d}}}}}$" for d in decades]
    (small,) = [c for c in ax.collections if c.get_label() == "ticks"]
    places = [segment[0][0] for segment in small.get_segments()]
    assert all((least or low) <= place <= high for place in places)
    assert not any(place in 10.0 ** np.arange(12) for place in places)
    expected = [d * 10.0**e for e in range(12) for d in range(2, 10) if (least or low) <= d * 10.0**e <= high]
    assert sorted(places) == pytest.approx(expected)


@pytest.mark.parametrize(("low", "high"), [(0.11, 0.97), (0.21, 0.24), (3.0, 4000.0), (1.0, 2.5)])
def test_a_short_log_axis_has_labels_too(low, high):
    with style.paper_style():
        ax = Figure(figsize=(3, 2)).add_axes((0.1, 0.1, 0.8, 0.8))
        decade_ticks(ax, low, high)
        few_ticks(ax)
        places = ax.get_xticks()
        labels = ax.xaxis.get_major_formatter().format_ticks(places)
    assert 2 <= len(places) <= 10
    assert all(low <= place <= high for place in places)
    assert [float(label) for label in labels] == pytest.approx(places.tolist())


def test_methods_without_a_style_of_their_own_get_different_ones():
    names = ["lora", "full", "boft", "lora:bias=all", "hra"]
    marks = marks_of(names)
    assert marks.keys() == {*names}
    assert (marks["lora"], marks["full"]) == (METHODS["lora"], METHODS["full"])
    assert len({mark.marker for mark in marks.values()}) == len(marks)
    assert all(style.contrast(mark.colour, style.WHITE) >= 3 for mark in marks.values())
    assert marks_of(reversed(names)) == marks


@pytest.mark.parametrize("name", list(VENUES))
@pytest.mark.parametrize("n_labels", slow_unless((9).__eq__, [1, 3, 9]))
def test_a_legend_stands_below_and_fits_the_figure(name, n_labels):
    with style.paper_style(VENUES[name]):
        figure = new_figure(VENUES[name].half, 4)
        figure.add_subplot().set_box_aspect(0.6)
        legend_below(figure, [(Line2D([], []), f"a label, {index}") for index in range(n_labels)])
        fit_height(figure, 9)
    legend = figure.legends[0].get_window_extent()
    assert len(figure.legends[0].get_texts()) == n_labels
    assert legend.y0 >= 0
    assert legend.y1 <= figure.axes[0].get_tightbbox().y0
    assert 0 <= legend.x0 <= legend.x1 <= figure.bbox.width


def test_no_entries_no_legend():
    figure = new_figure(2, 2)
    legend_below(figure, [])
    assert figure.legends == []


def labelled(marks: list[tuple[float, float]]):
    with style.paper_style():
        figure = Figure(figsize=(3, 2), dpi=300)
        ax = figure.add_axes((0.1, 0.1, 0.8, 0.8), xlim=(0, 1), ylim=(0, 1))
        x, y = np.array(marks).T
        ax.plot(x, y, linestyle="", marker="o", markersize=3.4)
        label_points(ax, [PointLabel(f"k = {i}", a, b, "black") for i, (a, b) in enumerate(marks)])
        figure.draw_without_rendering()
    return ax, [text for text in ax.texts if text.get_visible()]


unit_floats = st.floats(0, 1)


@example([(0.0, 1.0), (0.5, 0.140625), (0.0, 0.0), (0.5, 0.0)])
@given(st.lists(st.tuples(unit_floats, unit_floats), min_size=1, max_size=20))
def test_labels_keep_clear_of_marks_and_of_one_another(marks):
    ax, words = labelled(marks)
    boxes = [word.get_window_extent() for word in words]
    places = ax.transData.transform(np.array(marks))
    for index, box in enumerate(boxes):
        assert ax.bbox.padded(3).contains(box.x0, box.y0)
        assert ax.bbox.padded(3).contains(box.x1, box.y1)
        assert not box.padded(-2).count_contains(places)
        assert not any(box.padded(-3).overlaps(other) for other in boxes[:index])


@pytest.mark.slow
def test_a_free_mark_gets_its_label_above_and_a_crowded_one_none():
    _, (word,) = labelled([(0.5, 0.5)])
    assert word.xyann[1] > 0
    grid = np.linspace(0, 1, 40)
    _, words = labelled([(x, y) for x in grid for y in grid])
    assert words == []


def test_a_legend_with_notes_alone_is_its_title():
    with style.paper_style():
        ax = Figure().add_subplot()
        add_legend(ax, [], ["CoLA", "full: 75.1"])
    assert ax.get_legend().get_title().get_text() == "CoLA\nfull: 75.1"
    assert ax.get_legend().get_texts() == []
