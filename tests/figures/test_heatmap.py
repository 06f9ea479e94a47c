from __future__ import annotations

from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from adapter_probe.errors import ResultsError
from adapter_probe.figures import heatmap, style
from adapter_probe.figures.levels import DropScale
from adapter_probe.figures.wording import cell_text

grids = st.integers(1, 8).flatmap(
    lambda n: hnp.arrays(float, (n, n), elements=st.sampled_from([-2.0, 0.0, 1.0, 1.001, 7.0, np.nan]))
)


def draw(frame: pd.DataFrame, inches: float = 3.0, **options):
    with style.paper_style():
        figure = Figure(figsize=(inches, inches))
        return heatmap.draw(frame, figure.add_axes((0.1, 0.1, 0.8, 0.8)), **options)


def collection(ax, label: str):
    (found,) = [c for c in ax.collections if c.get_label() == label]
    return found


def cells_of(polygons) -> list[tuple[int, int]]:
    """(first, last) of the cell around each polygon's centre."""
    centres = [path.vertices[:4].mean(axis=0) for path in polygons.get_paths()]
    return [(round(y), round(x)) for x, y in centres]


def texts(ax) -> dict[tuple[int, int], str]:
    """What is written in the cells."""
    in_cells = [t for t in ax.texts if t.get_transform() == ax.transData]
    return {(round(t.get_position()[1]), round(t.get_position()[0])): t.get_text() for t in in_cells}


def border_by_brute_force(drops: np.ndarray, tolerance: float) -> Counter:
    """Ask of every pair of cells whether they touch and whether the tolerance parts them."""
    size, found = len(drops), Counter()
    cells = [(r, c) for r in range(size) for c in range(size) if not np.isnan(drops[r, c])]
    for r, c in cells:
        for other_r, other_c in cells:
            parted = (drops[r, c] <= tolerance) and not (drops[other_r, other_c] <= tolerance)
            if parted and abs(r - other_r) + abs(c - other_c) == 1:
                corners = {(x, y) for x in (c - 0.5, c + 0.5) for y in (r - 0.5, r + 0.5)}
                shared = {
                    (x, y) for x in (other_c - 0.5, other_c + 0.5) for y in (other_r - 0.5, other_r + 0.5)
                }
                found[tuple(sorted(corners & shared))] += 1
    return found


@settings(deadline=None)
@given(grids, st.sampled_from([0.0, 1.0, 5.0, 50.0]))
def test_the_border_parts_within_from_beyond_and_nothing_else(drops, tolerance):
    segments = heatmap.tolerance_border(drops, tolerance)
    assert Counter(tuple(sorted(segment)) for segment in segments) == border_by_brute_force(drops, tolerance)


def test_the_border_of_the_published_shape():
    drops = np.array([[1.2, 0.4, 3.0], [np.nan, 0.3, 1.0], [np.nan, np.nan, 1.5]])
    assert set(heatmap.tolerance_border(drops, 1.0)) == {
        ((0.5, -0.5), (0.5, 0.5)),
        ((1.5, -0.5), (1.5, 0.5)),
        ((1.5, 0.5), (2.5, 0.5)),
        ((1.5, 1.5), (2.5, 1.5)),
    }


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 7), st.integers(0, 10_000))
def test_cells_have_the_colours_of_their_drops(make_frame, n_layers, seed):
    frame = make_frame(n_layers, seed=seed).sample(frac=1, random_state=seed)
    ax = draw(frame)
    polygons = collection(ax, "cells")
    scale = DropScale.spanning(-frame["delta_points"].to_numpy())
    drops = {(r.first, r.last): -r.delta_points for r in frame.itertuples()}
    assert sorted(cells_of(polygons)) == sorted(drops)  # the lower triangle stays blank
    for cell, colour in zip(cells_of(polygons), polygons.get_facecolors()):
        assert to_hex(colour) == scale.colours(np.array([drops[cell]]))[0]


def test_single_layers_are_outlined(make_frame):
    outlines = collection(draw(make_frame(5)), "single layers")
    assert cells_of(outlines) == [(layer, layer) for layer in range(5)]
    assert to_hex(outlines.get_edgecolors()[0]) == style.GREEN


def test_the_black_line_is_drawn_where_the_border_is(make_frame):
    frame = make_frame(3, [1.2, 0.4, 3.0, 0.3, 1.0, 1.5])
    lines = [c for c in draw(frame, tolerance=1.0).collections if c.get_label() == "border"]
    assert [to_hex(line.get_colors()[0]) for line in lines] == [style.WHITE, style.INK]
    for line in lines:
        assert len(line.get_segments()) == 4
    loose = [c for c in draw(frame, tolerance=5.0).collections if c.get_label() == "border"]
    assert all(len(line.get_segments()) == 0 for line in loose)


def test_numbers_are_the_drops_and_gains_have_a_plus(make_frame):
    ax = draw(make_frame(3, [1.16, -0.3, 43.46, 0.0, 9.96, -12.0]))
    assert texts(ax) == {
        (0, 0): "1.2",
        (0, 1): "+0.3",
        (0, 2): "43",
        (1, 1): "0.0",
        (1, 2): "10",
        (2, 2): "+12",
    }


def test_numbers_stand_out_from_their_cells(make_frame):
    ax = draw(make_frame(3, [0.1, 3.0, 45.0, 0.7, 15.0, -0.5]))
    scale = DropScale()
    for text in (t for t in ax.texts if t.get_text() in {"0.1", "3.0", "45", "0.7", "15", "+0.5"}):
        drop = -float(text.get_text()) if "+" in text.get_text() else float(text.get_text())
        (background,) = scale.colours(np.array([drop]))
        assert style.contrast(text.get_color(), background) > 4.5
    assert {t.get_text(): t.get_color() for t in ax.texts}["45"] == style.WHITE


@pytest.mark.parametrize(("n_layers", "inches", "fit"), [(12, 3.3, True), (24, 3.3, False), (24, 6.9, True)])
def test_numbers_are_there_where_they_fit(make_frame, n_layers, inches, fit):
    frame = make_frame(n_layers, seed=3)
    ax = draw(frame, inches)
    drops = {(r.first, r.last): -r.delta_points for r in frame.itertuples()}
    expected = {c: cell_text(d) if fit else "+" for c, d in drops.items() if fit or d < 0}
    assert texts(ax) == expected
    ax.figure.draw_without_rendering()
    side = abs(ax.transData.transform((1, 0))[0] - ax.transData.transform((0, 0))[0])
    extents = [t.get_window_extent() for t in ax.texts]
    assert max(e.width for e in extents) < 0.95 * side


def test_an_undefined_delta_is_crossed_out_and_has_no_number(make_frame):
    ax = draw(make_frame(3, [0.1, np.nan, 3.0, 0.2, np.nan, 0.3]), notes=["task"])
    assert set(texts(ax)) == {(0, 0), (0, 2), (1, 1), (2, 2)}
    crosses = collection(ax, "undefined").get_segments()
    assert {tuple(stroke.mean(axis=0).round(6)) for stroke in crosses} == {(1.0, 0.0), (2.0, 1.0)}
    assert "crossed out: undefined" in {t.get_text() for t in ax.texts}


def test_rings_mark_what_is_not_significant(make_frame):
    frame = make_frame(3, [0.1, 0.2, 3.0, 0.2, -0.4, 0.3])
    labels = {c.get_label() for c in draw(frame).collections}
    assert "rings" not in labels
    ax = draw(frame.assign(significant=[False, True, True, True, False, True]), notes=["task"])
    offsets = collection(ax, "rings").get_offsets()
    assert [(int(np.floor(y + 0.5)), int(np.floor(x + 0.5))) for x, y in offsets] == [(0, 0), (1, 2)]
    assert all(x % 1 > 0.2 and y % 1 > 0.5 for x, y in offsets)  # upper right corners
    assert "○ not significant" in {t.get_text() for t in ax.texts}
    named = draw(frame.assign(significant=False), notes=["task"], test="McNemar")
    assert "○ not significant (McNemar, Holm)" in {t.get_text() for t in named.texts}


def test_an_undefined_cell_has_neither_ring_nor_triangle(make_frame):
    frame = make_frame(2, [0.1, np.nan, 0.3]).assign(significant=False, non_monotone=[False, True, False])
    ax = draw(frame)
    assert len(collection(ax, "rings").get_offsets()) == 2
    assert "triangles" not in {c.get_label() for c in ax.collections}


def test_triangles_mark_what_costs_less_than_a_part_of_it(make_frame):
    frame = make_frame(3, [0.1, 30.0, 3.0, 0.2, -0.4, 0.3])
    assert "triangles" not in {c.get_label() for c in draw(frame.assign(non_monotone=False)).collections}
    ax = draw(frame.assign(non_monotone=[False, True, False, False, True, False]), notes=["task"])
    marks = collection(ax, "triangles")
    corners = [path.vertices[:3] for path in marks.get_paths()]
    for (first, last), points in zip([(0, 1), (1, 2)], corners):
        lower_left = np.array([last - 0.5, first + 0.5])
        assert np.abs(points - lower_left).max() < 0.35  # in the corner, clear of number and ring
        assert (points[:, 0] > last - 0.5).all()
        assert (points[:, 1] < first + 0.5).all()
    assert [to_hex(c) for c in marks.get_facecolors()] == [style.WHITE, style.INK]  # of what it stands on
    assert any(t.get_text().startswith("◣") for t in ax.texts)


@pytest.mark.parametrize("study", ["ablated", "kept"])
def test_axes_say_what_happened_to_the_span(make_frame, study):
    ax = draw(make_frame(3), study=study)
    assert (ax.get_xlabel(), ax.get_ylabel()) == (f"last {study} layer", f"first {study} layer")
    assert ax.get_title() == ""


@pytest.mark.parametrize(
    ("n_layers", "inches"), [(2, 3.3), (3, 2.5), (6, 3.3), (12, 3.3), (12, 2.3), (24, 3.3)]
)
def test_notes_stay_clear_of_the_cells(make_frame, n_layers, inches):
    notes = [
        "validation task",
        "intact 74.2% accuracy, n = 1,043",
        "all removed: −5.1",
        "majority class 69.1%",
    ]
    ax = draw(make_frame(n_layers), inches, notes=notes)
    ax.figure.draw_without_rendering()
    placed = [t for t in ax.texts if t.get_transform() != ax.transData]
    assert " ".join(t.get_text() for t in reversed(placed)) == " ".join(notes)
    to_cells = ax.transData.inverted()
    for text in placed:
        assert text.get_fontsize() >= style.SMALLEST_SIZE
        box = text.get_window_extent()
        right, top = to_cells.transform((box.x1, box.y1))
        row = int(np.floor(top + 0.5))  # the highest row the text touches
        assert right < row - 0.5
        assert to_cells.transform((box.x0, box.y0))[0] > -0.5


def test_one_layer_has_no_room_for_notes(make_frame):
    assert texts(draw(make_frame(1, [2.0]), notes=["task"])) == {(0, 0): "2.0"}


def test_a_larger_model_leaves_the_missing_spans_blank(make_frame):
    ax = draw(make_frame(2), n_layers=4)
    assert ax.get_xlim() == (-0.5, 3.5)
    assert sorted(cells_of(collection(ax, "cells"))) == [(0, 0), (0, 1), (1, 1)]


def test_a_span_outside_the_model_is_refused(make_frame):
    with pytest.raises(ResultsError, match="0-2 does not fit a model of 2 layers"):
        draw(make_frame(3), n_layers=2)
