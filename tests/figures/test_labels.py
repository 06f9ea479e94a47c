from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from adapter_probe.figures import style
from adapter_probe.figures.drawing import add_axes
from adapter_probe.figures.labels import Room, spread, text_box, write_beside, write_notes

unit_floats = st.floats(0, 1)


def axes():
    figure = Figure(figsize=(3, 2))
    ax = add_axes(figure, (20, 20, 180, 110))
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1)
    return ax


def overlap(one, other) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(unit_floats, unit_floats), min_size=1, max_size=25))
def test_words_keep_clear_of_marks_and_of_one_another(marks):
    with style.paper_style():
        ax = axes()
        room = Room(ax)
        x, y = np.array(marks).T
        room.take_points(x, y, 3.0)
        boxes = []
        for index, (one, two) in enumerate(marks):
            text = f"k = {index}"
            if write_beside(room, text, one, two, colour="black", clearance=4.0):
                note = ax.texts[-1]
                left, bottom = note.xyann
                boxes.append(text_box(text, note.get_size(), left, bottom - 0.22 * note.get_size()))
        for box in boxes:
            assert box[0] >= 0
            assert box[1] >= 0
            assert box[2] <= room.width
            assert box[3] <= room.height
            for px, py in room.place(x, y):
                nearest = np.clip(px, box[0], box[2]), np.clip(py, box[1], box[3])
                assert max(abs(nearest[0] - px), abs(nearest[1] - py)) >= 3.0 - 1e-6
        assert not any(overlap(*pair) for pair in combinations(boxes, 2))


def test_a_mark_in_a_crowd_stays_without_words():
    with style.paper_style():
        room = Room(axes())
        grid = np.linspace(0, 1, 60)
        x, y = (part.ravel() for part in np.meshgrid(grid, grid))
        room.take_points(x, y, 1.0)
        assert not write_beside(room, "k = 1", 0.5, 0.5, colour="black", clearance=4.0)


def test_a_free_mark_gets_its_words_above():
    with style.paper_style():
        ax = axes()
        room = Room(ax)
        room.take_points(np.array([0.5]), np.array([0.5]), 2.0)
        assert write_beside(room, "8", 0.5, 0.5, colour="black", clearance=4.0)
        (note,) = ax.texts
        assert note.xyann[1] > 55


def test_notes_take_the_empty_corner():
    with style.paper_style():
        ax = axes()
        room = Room(ax)
        for x, y in ((0.1, 0.1), (0.1, 0.9), (0.9, 0.9)):
            room.take_points(np.linspace(x - 0.1, x + 0.1, 9), np.full(9, y), 20.0)
        write_notes(room, ["CoLA", "full: 75.1"])
        first = ax.texts[-1]  # the lower line is written first
        assert [text.get_text() for text in ax.texts] == ["full: 75.1", "CoLA"]
        assert first.xyann[0] > 90
        assert first.xyann[1] < 55


def test_a_gap_in_a_line_is_free():
    with style.paper_style():
        room = Room(axes())
        room.take_line(np.array([0, 0.4, np.nan, 0.6, 1]), np.array([0.5, 0.5, np.nan, 0.5, 0.5]))
        middle, end = (room.place(np.array([x]), np.array([0.5]))[0] for x in (0.5, 0.2))
        crowd = [room.crowd((x - 3, y - 3, x + 3, y + 3)) for x, y in (middle, end)]
        assert crowd[0] == 0
        assert crowd[1] > 0


@settings(deadline=None)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=8))
def test_heights_are_moved_apart_in_their_order(heights):
    placed = spread(heights, 10.0, 0.0, 100.0)
    order = np.argsort(heights, kind="stable")
    gaps = np.diff(np.array(placed)[order])
    assert (gaps >= 10 - 1e-9).all()
    assert min(placed) >= 0
    if len(heights) == 1:
        assert placed == heights
