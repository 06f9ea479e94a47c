from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from adapter_probe.figures import style
from adapter_probe.figures.drawing import add_axes
from adapter_probe.figures.grid import number_size, place_notes, prepare_axes, squares

NOTES = ["CoLA", "intact 74.2% accuracy, n = 1,043", "all removed: −5.5", "majority class 69.1%",
         "◣ a shorter span inside costs more", "○ not significant (McNemar, Holm)"]  # fmt: skip


def noted(n_layers: int, side: float, lines: list[str]):
    with style.paper_style():
        figure = Figure(figsize=(7, 7), dpi=300)
        ax = add_axes(figure, (40, 40, side, side))
        cell = prepare_axes(ax, n_layers, "last ablated layer", "first ablated layer")
        place_notes(ax, lines, n_layers, cell)
        figure.draw_without_rendering()
    return ax, cell


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 30), st.floats(72, 420), st.integers(1, 6))
def test_notes_never_touch_a_cell(n_layers, side, n_lines):
    ax, cell = noted(n_layers, side, NOTES[:n_lines])
    assert cell == pytest.approx(side / n_layers)
    to_cells = ax.transData.inverted()
    for text in ax.texts:
        assert text.get_fontsize() >= style.SMALLEST_SIZE
        box = text.get_window_extent()
        right, top = to_cells.transform((box.x1, box.y1))
        assert right < np.floor(top + 0.5) - 0.5 + 1e-6


@pytest.mark.parametrize(("side", "kept"), [(420, NOTES), (72, ["CoLA", "n = 1,043"])])
def test_notes_without_room_stay_out_the_task_last(side, kept):
    ax, _ = noted(12, side, NOTES)
    said = [text.get_text() for text in reversed(ax.texts)]
    assert said[0] == "CoLA"
    assert [line for line in kept if line in said] == kept
    assert (len(said) == len(NOTES)) == (side == 420)


def test_an_axis_too_short_for_its_words_says_less():
    assert noted(12, 200, [])[0].get_ylabel() == "first ablated layer"
    assert noted(12, 45, [])[0].get_ylabel() == "first layer"


@pytest.mark.parametrize(("n_layers", "side"), [(12, 200), (24, 200), (48, 150), (3, 90), (1, 90)])
def test_layer_numbers_do_not_touch(n_layers, side):
    ax, _ = noted(n_layers, side, [])
    labels = [label for label in ax.get_xticklabels() if label.get_text()]
    boxes = [label.get_window_extent() for label in labels]
    assert [label.get_text() for label in labels][:1] == ["0"]
    assert all(one.x1 < other.x0 for one, other in pairwise(boxes))
    steps = set(np.diff([int(label.get_text()) for label in labels]))
    assert len(steps) <= 1


@settings(deadline=None)
@given(
    st.floats(2, 60), st.lists(st.sampled_from(["0.0", "+0.3", "12", "+67", "101"]), min_size=1, max_size=5)
)
def test_numbers_fit_their_cells_or_there_are_none(cell, texts):
    with style.paper_style():
        size = number_size(texts, cell)
        widest = max(style.text_width(text, 1.0) for text in texts)
        if size is None:
            assert min(0.4 * cell, 0.89 * cell / widest) < style.SMALLEST_SIZE
        else:
            assert size >= style.SMALLEST_SIZE
            assert widest * size < 0.95 * cell


def test_squares_stand_on_their_cells():
    corners = squares(np.array([[0, 2], [1, 1]]), inset=0.1)
    assert corners.mean(axis=1).ravel() == pytest.approx([2, 0, 1, 1])  # x is the last layer, y the first
    assert np.ptp(corners, axis=1).ravel() == pytest.approx(0.8)
