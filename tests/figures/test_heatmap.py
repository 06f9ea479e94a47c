from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from ablation_facts import record_of as record
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from refusals import names
from rounding import printed

from adapter_probe.analysis.comparing import ComparisonRecord
from adapter_probe.errors import ResultsError
from adapter_probe.figures import style
from adapter_probe.figures.grid import number_size
from adapter_probe.figures.heatmap import heatmap
from adapter_probe.figures.levels import difference_scale, drop_scale
from adapter_probe.figures.span_grid import Grid, draw, scale_of
from adapter_probe.wording import number_of


def drawn(frame: pd.DataFrame, inches: float = 3.0, *, notes=(), tolerance=1.0, shows="drops", **said):
    """One grid on its own axes, without a colour bar; `said` are facts of an ablation."""
    grid = Grid(frame, notes, record(frame, **said) if said else None, shows=shows)
    with style.paper_style():
        figure = plt.figure(figsize=(inches, inches), dpi=300)
        ax = figure.add_axes((0.1, 0.1, 0.8, 0.8))
        draw(grid, ax, tolerance=tolerance, notes=True, scale=scale_of([grid]))
    figure.draw_without_rendering()
    return ax


def collection(ax, label: str):
    (found,) = [c for c in ax.collections if c.get_label() == label]
    return found


def labels(ax) -> set[str]:
    return {c.get_label() for c in ax.collections}


def cells_of(polygons) -> list[tuple[int, int]]:
    """Row and column of the cell around each polygon's centre."""
    centres = [path.vertices[:4].mean(axis=0) for path in polygons.get_paths()]
    return [(int(y), int(x)) for x, y in centres]


def numbers(ax) -> dict[tuple[int, int], str]:
    """What is written in the cells."""
    shown = [t for t in ax.texts if t.get_transform() == ax.transData and t.get_visible()]
    return {(int(t.get_position()[1]), int(t.get_position()[0])): t.get_text() for t in shown}


def notes(ax) -> list[str]:
    return [t.get_text() for t in ax.texts if t.get_transform() != ax.transData and t.get_visible()]


@given(st.integers(1, 7), st.integers(0, 10_000))
def test_cells_have_the_colours_and_numbers_of_their_drops(make_frame, n_layers, seed):
    frame = make_frame(n_layers, seed=seed).sample(frac=1, random_state=seed)
    ax = drawn(frame)
    mesh = ax.collections[0]
    scale = drop_scale(np.array([number_of(printed(-delta)) for delta in frame["delta_points"]]))
    drops = {(r.first, r.last): -r.delta_points for r in frame.itertuples()}
    colours = mesh.get_facecolors().reshape(n_layers, n_layers, 4)
    masked = mesh.get_array().mask.reshape(n_layers, n_layers)
    assert sorted(drops) == [tuple(cell) for cell in np.argwhere(~masked).tolist()]  # the rest stays blank
    for cell, drop in drops.items():
        assert to_hex(colours[cell]) == scale.colours(np.array([number_of(printed(drop))]))[0]
    plt.close("all")


def test_numbers_are_drops_and_a_gain_is_a_negative_drop(make_frame):
    ax = drawn(make_frame(3, [0.12, -0.34, 11.6, -0.04, 9.96, -12.4]))
    assert numbers(ax) == {
        (0, 0): "0.1", (0, 1): "−0.3", (0, 2): "11.6", (1, 1): "0.0", (1, 2): "10.0", (2, 2): "−12.4",
    }  # fmt: skip


def test_single_layers_are_outlined(make_frame):
    assert cells_of(collection(drawn(make_frame(5)), "single layers")) == [(i, i) for i in range(5)]


def test_the_tolerance_line_runs_between_cells(make_frame):
    ax = drawn(make_frame(2, [0.5, 1.5, 3.0]), tolerance=1.0)
    assert [segment.tolist() for segment in collection(ax, "tolerance border").get_segments()] == [
        [[1, 0], [1, 1]]
    ]
    assert "tolerance border" not in labels(drawn(make_frame(2, [0.5, 1.5, 3.0]), shows="spread"))


def test_numbers_stand_out_from_their_cells(make_frame):
    frame = make_frame(3, [0.1, 3.0, 45.0, 0.7, 15.0, -0.5])
    ax = drawn(frame)
    backgrounds = {
        (r.first, r.last): drop_scale(np.zeros(1)).colours(np.array([-r.delta_points]))[0]
        for r in frame.itertuples()
    }
    for text in ax.texts:
        column, row = map(int, text.get_position())
        assert style.contrast(text.get_color(), backgrounds[row, column]) > 4.5


@pytest.mark.parametrize(
    ("n_layers", "inches", "fit"), [(12, 3.3, True), (24, 3.3, False), (24, 6.9, True), (80, 6.9, False)]
)
def test_numbers_are_there_where_they_fit_and_dashes_elsewhere(make_frame, n_layers, inches, fit):
    frame = make_frame(n_layers, seed=3)
    ax = drawn(frame, inches)
    assert len(numbers(ax)) == (len(frame) if fit else 0)
    dashes = [c for c in ax.collections if c.get_label() == "dashes"][-1]
    assert dashes.get_visible() != fit
    assert len(dashes.get_segments()) == (frame["delta_points"] > 0.05).sum()
    side = abs(ax.transData.transform((1, 0))[0] - ax.transData.transform((0, 0))[0])
    extents = [t.get_window_extent() for t in ax.texts if t.get_visible()]
    assert max((e.width for e in extents), default=0) < 0.95 * side


def test_numbers_follow_the_axes_when_these_are_resized(make_frame):
    ax = drawn(make_frame(12), 5.0)
    large = ax.texts[0].get_fontsize()
    ax.figure.set_size_inches(3.3, 3.3)
    ax.figure.draw_without_rendering()
    assert style.SMALLEST_SIZE <= ax.texts[0].get_fontsize() < large
    ax.figure.set_size_inches(1.5, 1.5)
    ax.figure.draw_without_rendering()
    assert numbers(ax) == {}


@pytest.mark.parametrize("n_layers", [32, *(pytest.param(n, marks=pytest.mark.slow) for n in (48, 80))])
@pytest.mark.parametrize("inches", [2.5, 6.0])
def test_deep_models_stay_legible(make_frame, n_layers, inches):
    frame = make_frame(n_layers).assign(significant=False)
    ax = drawn(frame, inches, notes=["a task", "intact 74.2% accuracy"], metric="accuracy")
    for axis in (ax.xaxis, ax.yaxis):
        boxes = [t.label1.get_window_extent() for t in axis.get_major_ticks()]
        assert len(boxes) >= 5
        assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])
    assert notes(ax)[0] == "a task"
    cell = ax.bbox.width / n_layers
    assert collection(ax, "tolerance border").get_linewidth()[0] * 300 / 72 < cell / 2


def test_groups_of_layers_name_the_layers_they_hold(make_frame):
    """Layers switched off three at a time: rows are first, columns last layers, without gaps."""
    frame = make_frame(4)
    grouped = frame.assign(first=3 * frame["first"], last=3 * frame["last"] + 2)
    ax = drawn(grouped)
    assert [t.get_text() for t in ax.get_yticklabels()] == ["0", "3", "6", "9"]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["2", "5", "8", "11"]
    assert numbers(ax) == numbers(drawn(frame))
    assert cells_of(collection(ax, "single layers")) == [(i, i) for i in range(4)]


def test_some_layers_of_a_model_have_no_blank_rows(make_frame):
    frame = make_frame(3)
    ax = drawn(frame.assign(first=frame["first"] + 8, last=frame["last"] + 8))
    assert ax.get_xlim() == (0, 3)
    assert [t.get_text() for t in ax.get_xticklabels()] == ["8", "9", "10"]


def test_an_undefined_delta_is_crossed_out_and_has_no_number(make_frame):
    ax = drawn(make_frame(3, [0.1, np.nan, 3.0, 0.2, np.nan, 0.3]), notes=["task"])
    assert set(numbers(ax)) == {(0, 0), (0, 2), (1, 1), (2, 2)}
    crosses = collection(ax, "undefined").get_segments()
    assert {(int(y), int(x)) for x, y in (stroke.mean(axis=0) for stroke in crosses)} == {(0, 1), (1, 2)}
    assert "crossed out: undefined" in notes(ax)


def test_rings_mark_what_is_not_significant(make_frame):
    frame = make_frame(3, [0.1, 0.2, 3.0, 0.2, -0.4, 0.3])
    assert "rings" not in labels(drawn(frame))
    ax = drawn(frame.assign(significant=[False, True, True, True, False, True]), notes=["task"])
    offsets = collection(ax, "rings").get_offsets()
    assert [(int(y), int(x)) for x, y in offsets] == [(0, 0), (1, 2)]
    assert all(x % 1 < 0.3 and y % 1 < 0.3 for x, y in offsets)  # left corners: on the right a degree sign
    assert "○ not significant" in notes(ax)
    named = drawn(frame.assign(significant=False), notes=["task"], metric="accuracy")
    assert "○ not significant (McNemar, Holm)" in notes(named)


def test_an_undefined_cell_has_neither_ring_nor_triangle(make_frame):
    frame = make_frame(2, [0.1, np.nan, 0.3]).assign(significant=False, non_monotone=[False, True, False])
    ax = drawn(frame)
    assert len(collection(ax, "rings").get_offsets()) == 2
    assert "triangles" not in labels(ax)


def test_triangles_mark_what_costs_less_than_a_part_of_it(make_frame):
    frame = make_frame(3, [0.1, 30.0, 3.0, 0.2, -0.4, 0.3])
    assert "triangles" not in labels(drawn(frame.assign(non_monotone=False)))
    ax = drawn(frame.assign(non_monotone=[False, True, False, False, True, False]), notes=["task"])
    marks = collection(ax, "triangles")
    for (row, column), path in zip([(0, 1), (1, 2)], marks.get_paths()):
        points = path.vertices[:3]
        assert (np.abs(points - (column, row + 1)) < 0.35).all()  # in the corner, clear of number and ring
        assert ((points > (column, row)) & (points < (column + 1, row + 1))).all()
    assert [to_hex(c) for c in marks.get_facecolors()] == [style.WHITE, style.INK]  # of what it stands on
    assert any(note.startswith("◣") for note in notes(ax))


@pytest.mark.parametrize(("study", "done"), [("ablated", "switched off"), ("kept", "kept on")])
def test_axes_say_what_happened_to_the_span(make_frame, study, done):
    ax = drawn(make_frame(3), study=study)
    assert (ax.get_xlabel(), ax.get_ylabel()) == (f"last layer {done}", f"first layer {done}")
    assert ax.get_title() == ""


@pytest.mark.parametrize(
    ("n_layers", "inches"),
    [(1, 2.0), (2, 3.3), (3, 2.5), (6, 3.3), (12, 3.3), (12, 1.4), (24, 3.3), (80, 3.3)],
)
def test_notes_stay_clear_of_the_cells(make_frame, n_layers, inches):
    lines = ["validation task", "intact 74.2% accuracy", "all switched off: drop 5.1", "majority class 69.1%"]
    ax = drawn(make_frame(n_layers), inches, notes=lines)
    placed = [t for t in ax.texts if t.get_transform() != ax.transData and t.get_visible()]
    if n_layers >= 3:
        assert len(placed) == len(lines)
        told = zip(sorted(t.get_text() for t in placed), sorted(lines))
        assert all(text.split()[0] == line.split()[0] for text, line in told)
        assert inches < 2 or [t.get_text() for t in placed] == lines
    assert bool(placed) == (n_layers > 1)
    to_cells = ax.transData.inverted()
    for text in placed:
        assert text.get_fontsize() >= style.SMALLEST_SIZE
        box = text.get_window_extent()
        right, top = to_cells.transform((box.x1, box.y1))
        assert right < int(top)  # in row r, cells begin at column r
        assert to_cells.transform((box.x0, box.y0))[0] > 0


def test_a_record_on_the_users_own_axes(make_frame):
    """Given axes come back, the current ones are the default, and nothing of the user's is changed."""
    before = dict(plt.rcParams)
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5))
    assert heatmap(record(make_frame(4)), left) is left
    plt.sca(right)
    assert heatmap(record(make_frame(4)), colorbar=False, notes=False) is right
    assert dict(plt.rcParams) == before
    assert len(figure.axes) == 3  # one colour bar
    assert names(figure.axes[2].get_ylabel().replace("\n", " "), "drop", "validation accuracy")
    figure.draw_without_rendering()
    assert notes(left)[:2] == ["CoLA, n = 1,043", "intact 74.4% accuracy"]
    assert notes(right) == []


def test_what_stands_on_the_axes_is_left_alone(make_frame):
    """A panel's letter keeps its look, and a second drawing has numbers and inks like the first."""
    figure, (own, free) = plt.subplots(1, 2, figsize=(12, 5))
    letter = own.text(-0.4, 9.5, "A", size=17, color="tab:orange")
    for ax in (own, own, free):
        heatmap(record(make_frame(6)), ax, colorbar=False, notes=False)
    figure.draw_without_rendering()
    assert (letter.get_text(), letter.get_size(), letter.get_color()) == ("A", 17, "tab:orange")
    once, twice = ([(t.get_text(), t.get_color()) for t in ax.texts if t is not letter] for ax in (free, own))
    assert len(once) == 21
    assert twice == once + once


@pytest.mark.parametrize(
    "layout", [None, *(pytest.param(name, marks=pytest.mark.slow) for name in ("constrained", "tight"))]
)
@pytest.mark.parametrize("font_size", [7, pytest.param(14, marks=pytest.mark.slow)])
def test_it_sits_well_in_a_grid_of_subplots(make_frame, layout, font_size):
    """The bar of one panel overlaps no other panel, and letters follow the user's font size."""
    with plt.rc_context({"font.size": font_size}):
        figure, axes = plt.subplots(2, 3, figsize=(12, 7), layout=layout, dpi=100)
        for ax in axes.flat[:-1]:
            heatmap(record(make_frame(12)), ax)
        figure.draw_without_rendering()
        renderer = figure.canvas.get_renderer()
    bars = figure.axes[6:]
    assert len(bars) == 5
    for ax, bar in zip(axes.flat, bars):
        box = bar.get_tightbbox(renderer)
        assert box.x0 >= ax.get_window_extent().x1 - 1
        assert not any(box.overlaps(o.get_window_extent()) for o in axes.flat if o is not ax)
    assert axes[0, 0].xaxis.label.get_fontsize() == font_size
    assert max(t.get_fontsize() for t in axes[0, 0].texts) <= 1.05 * font_size + 1e-9


def test_it_is_saved_as_it_was_drawn_whatever_style_is_then_in_force(make_frame):
    with plt.rc_context({"font.size": 5, "xtick.labelsize": 5}):
        ax = heatmap(record(make_frame(12)), plt.figure(figsize=(5, 4)).gca())
        ax.figure.draw_without_rendering()
        inside = [t.get_fontsize() for t in ax.texts]
    with plt.rc_context({"font.size": 30, "xtick.labelsize": 30}):
        ax.figure.draw_without_rendering()
    assert [t.get_fontsize() for t in ax.texts] == inside


def test_the_papers_grid_takes_the_right_half(make_frame):
    figure, (left, right) = plt.subplots(1, 2, figsize=(24, 7))
    ax = heatmap(record(make_frame(12)), left, paper=True)
    figure.draw_without_rendering()
    ours, theirs = (axes for axes in figure.axes if "last layer" in axes.get_xlabel())
    assert ax is left is ours
    assert "Houlsby et al. 2019" in notes(theirs)
    assert ours.get_window_extent().x1 < theirs.get_window_extent().x0
    assert theirs.get_window_extent().x1 < right.get_window_extent().x0
    other = heatmap(record(make_frame(12), task="my task"), right, paper=True)
    assert other.figure is figure
    assert len(figure.axes) == 5  # two of ours, the paper's, two bars: nothing is published of "my task"
    free = plt.figure().add_axes((0.1, 0.1, 0.8, 0.8))
    heatmap(record(make_frame(12)), free, paper=True)
    assert len(free.figure.axes) == 3
    for metric, said in (("accuracy", "accuracy"), ("mcc", "score (score × 100)")):
        own = heatmap(record(make_frame(12), metric=metric), plt.figure().add_subplot(), paper=True)
        bar = own.figure.axes[-1]
        assert said in bar.get_ylabel() + bar.get_xlabel()
        assert "Matthews" not in bar.get_ylabel() + bar.get_xlabel()


def test_colours_and_numbers_on_request(make_frame):
    """Another colour map has as many levels, from end to end; without numbers there are none."""
    frame = make_frame(3, [0.1, 3.0, 45.0, 0.7, 15.0, -0.5])
    ax = heatmap(record(frame), plt.figure(figsize=(4, 4)).gca(), cmap="viridis", annot=False)
    ax.figure.draw_without_rendering()
    assert not any(numbers(ax).values())
    colours = {to_hex(c) for c in ax.collections[0].get_facecolors() if c[3]}
    assert colours == set(
        drop_scale(np.zeros(1)).recoloured("viridis").colours(-frame["delta_points"].to_numpy())
    )
    ends = [to_hex(plt.get_cmap("viridis")(end)) for end in (0.0, 1.0)]
    assert (
        drop_scale(np.zeros(1)).recoloured("viridis").shown[0],
        drop_scale(np.zeros(1)).recoloured("viridis").shown[-1],
    ) == tuple(ends)
    for wrong in ("no such map", 7):
        with pytest.raises(ResultsError, match="cmap"):
            heatmap(record(frame), cmap=wrong)


def test_the_bar_names_the_black_line_only_if_there_is_one(make_frame):
    for drops, named in (([0.1, 0.2, 0.3], False), ([0.1, 5.0, 0.3], True)):
        ax = heatmap(record(make_frame(2, drops)), plt.figure(figsize=(6, 6)).gca())
        assert ("tolerance border" in labels(ax)) == named
        assert ("1 point" in ax.figure.axes[1].get_ylabel()) == named


@pytest.mark.parametrize("n_layers", [13, 24, 30])
def test_the_last_layer_has_its_number(make_frame, n_layers):
    ax = drawn(make_frame(n_layers), 3.3)
    for axis in (ax.xaxis, ax.yaxis):
        said = [tick.label1.get_text() for tick in axis.get_major_ticks()]
        assert said[0] == "0"
        assert said[-1] == str(n_layers - 1)


def test_lines_of_the_users_style_do_not_run_through_the_notes(make_frame):
    with plt.rc_context({"axes.grid": True}):
        ax = heatmap(record(make_frame(4)), plt.figure().gca())
    assert not any(line.get_visible() for line in (*ax.get_xgridlines(), *ax.get_ygridlines()))


def test_a_difference_has_a_neutral_middle_and_the_sign_of_the_drops(make_frame):
    frame = make_frame(3, [0.3, -3.0, 0.0, 4.0, -0.2, 0.6])
    ax = drawn(frame, 4.0, shows="differences")
    assert numbers(ax)[0, 1] == "−3.0"
    assert numbers(ax)[1, 1] == "4.0"
    mesh = ax.collections[0]
    values = mesh.get_array()
    colours = {
        v: to_hex(mesh.to_rgba(w))
        for v, w in zip([0.3, -3.0, 4.0], (values[0, 0], values[0, 1], values[1, 1]))
    }
    scale = difference_scale(np.array([-3.0, 4.0]))
    assert colours == dict(zip(colours, scale.colours(np.array(list(colours)))))
    assert "tolerance border" not in labels(ax)
    spans = frame.assign(difference_points=-frame["delta_points"])
    record = ComparisonRecord(("a", "b"), spans, "accuracy", 9, (0.7, 0.8), {})
    ax = heatmap(record, plt.figure(figsize=(4, 4)).gca())
    assert names(ax.figure.axes[1].get_ylabel().replace("\n", " "), "difference", "percentage points")


def test_powers_of_ten_keep_clear_of_their_cells():
    for number, room in (("3e−3", 0.79), ("12.5", 0.91)):
        width = style.text_width(number, style.SMALLEST_SIZE)
        assert number_size([number], 1.01 * width / room) == pytest.approx(style.SMALLEST_SIZE, abs=0.1)
        assert number_size([number], 0.99 * width / room) is None
