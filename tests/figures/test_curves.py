from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from adapter_probe.analysis.sweeps import METHOD_LABELS
from adapter_probe.figures import style
from adapter_probe.figures.curves import (
    METHODS,
    SERIES,
    decade_ticks,
    far_below,
    legend_height,
    legend_layout,
    line_of,
    look_of,
    mark_far_below,
    place_legend,
)
from adapter_probe.figures.drawing import add_axes
from adapter_probe.figures.venues import VENUES

words = st.text("abcdefgh ", min_size=1, max_size=30)


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
            ours, theirs = look_of(mark), look_of(mark, published=True)
        assert theirs["markerfacecolor"] == style.WHITE
        assert theirs["linewidth"] < ours["linewidth"]
        assert (ours["marker"], ours["color"]) == (theirs["marker"], theirs["color"])


def test_only_bare_heads_can_lie_below_the_axis():
    rows = [("adapters", None, 0.8), ("adapters", None, 0.7), ("adapters", None, 0.1), ("full", None, 0.85)]
    assert not far_below(points(rows), "mean").any()
    heads = [("head_only", None, 0.1), ("top_layers", 0, 0.2), ("top_layers", 1, 0.78)]
    rest = [("adapters", None, 0.8), ("full", None, 0.85)]
    assert far_below(points(heads + rest), "mean").tolist() == [True, True, False, False, False]
    near = [("head_only", None, 0.76), *rest, ("adapters", None, 0.7)]
    assert not far_below(points(near), "mean").any()


def test_without_anything_else_nothing_is_far():
    assert far_below(points([("head_only", None, 0.1)]), "mean").tolist() == [False]
    assert (
        far_below(points([("head_only", None, np.nan), ("full", None, 0.8)]), "mean").tolist() == [False] * 2
    )


def test_what_lies_below_says_its_value():
    with style.paper_style():
        ax = add_axes(Figure(figsize=(3, 2)), (20, 20, 180, 110))
        ax.set_ylim(50, 60)
        mark_far_below(ax, ["head_only", "top_layers"], np.array([1.0, 2.0]), np.array([36.46, -4.25]), 1)
    assert [text.get_text() for text in ax.texts] == [" ↓ 36.5", " ↓ −4.2"]
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
        ax = add_axes(figure, (20, 20, 180, 110))
        decade_ticks(ax, low, high, least)
        figure.draw_without_rendering()
    assert np.log10(ax.get_xticks()).round(9).tolist() == decades
    assert [text.get_text() for text in ax.get_xticklabels()] == [f"$10^{{{d}}}$" for d in decades]
    (small,) = [c for c in ax.collections if c.get_label() == "ticks"]
    places = [segment[0][0] for segment in small.get_segments()]
    assert all((least or low) <= place <= high for place in places)
    assert not any(place in 10.0 ** np.arange(12) for place in places)
    expected = [d * 10.0**e for e in range(12) for d in range(2, 10) if (least or low) <= d * 10.0**e <= high]
    assert sorted(places) == pytest.approx(expected)


@settings(deadline=None, max_examples=30)
@given(st.lists(words, min_size=1, max_size=9), st.floats(120, 520), st.sampled_from(list(VENUES)))
def test_a_legend_takes_the_room_that_was_foreseen(labels, width, name):
    with style.paper_style(VENUES[name]):
        entries = [(Line2D([], [], label="x"), label) for label in labels]
        columns, rows, size = legend_layout(entries, width)
        assert columns * rows >= len(labels) > columns * (rows - 1)
        assert style.SMALLEST_SIZE <= size <= style.tick_size()
        figure = Figure(figsize=(width / 72, 4), dpi=300)
        place_legend(figure, entries, 0.0, 0.0, width)
        figure.draw_without_rendering()
        box = figure.legends[0].get_window_extent()
        assert box.height * 72 / 300 <= legend_height(entries, width) + 1
        assert box.width * 72 / 300 <= width + 2 or size == style.SMALLEST_SIZE
        assert box.y0 >= 0


def test_no_legend_takes_no_room():
    with style.paper_style():
        assert legend_height([], 200) == 0
        figure = Figure()
        place_legend(figure, [], 0, 0, 200)
        assert figure.legends == []
        assert line_of(SERIES[0]).get_marker() == SERIES[0].marker
