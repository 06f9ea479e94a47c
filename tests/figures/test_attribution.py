from __future__ import annotations

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from ablation_facts import record_of
from matplotlib.figure import Figure
from refusals import refuses, says

from adapter_probe.analysis.study_records import AblationRecord
from adapter_probe.errors import ResultsError
from adapter_probe.figures.attribution import attribution, attribution_figure, drawings, interaction_map
from adapter_probe.figures.grid import NUMBER
from adapter_probe.figures.heatmap import drawings as heatmap_drawings
from adapter_probe.figures.heatmap import heatmap
from adapter_probe.figures.levels import difference_scale
from adapter_probe.figures.venues import PAPER, VENUES, FigureOptions


@pytest.fixture
def record(make_frame, with_statistics):
    def make(n_layers: int = 6, seed: int = 0, task: str = "cola", width: float = 1.0) -> AblationRecord:
        spans, layers = with_statistics(make_frame(n_layers, seed=seed), width)
        return record_of(spans, layers, task=task)

    return make


def shares_axes(figure: Figure):
    (ax,) = [ax for ax in figure.axes if ax.get_xlabel() == "layer"]
    return ax


def brute_force_interactions(spans: pd.DataFrame) -> dict[tuple[int, int], float]:
    """m(a, b) by its definition, empty spans 0."""
    drop = {(row.first, row.last): -row.delta_points for row in spans.itertuples()}
    return {
        (a, b): d - drop.get((a + 1, b), 0) - drop.get((a, b - 1), 0) + drop.get((a + 1, b - 1), 0)
        for (a, b), d in drop.items()
    }


def test_bars_and_diamonds_are_the_shares_and_single_drops(record):
    panel = record()
    figure = attribution_figure([panel], FigureOptions(PAPER))
    beyond = brute_force_interactions(panel.spans)
    expected = [sum(m / (b - a + 1) for (a, b), m in beyond.items() if a <= layer <= b) for layer in range(6)]
    ax = shares_axes(figure)
    assert [bar.get_height() for bar in ax.patches] == pytest.approx(expected)
    singles = panel.spans[panel.spans["n_layers"] == 1]
    (diamonds,) = [c for c in ax.collections if c.get_label() == "alone"]
    assert diamonds.get_offsets()[:, 1].tolist() == pytest.approx((-singles["delta_points"]).tolist())
    filled = [tuple(colour[:3]) == (0, 0, 0) for colour in diamonds.get_facecolors()]
    assert filled == (singles["p_holm"] < 0.05).tolist()
    assert sum(expected) == pytest.approx(-panel.spans.set_index(["first", "last"])["delta_points"][0, 5])


def test_the_csv_holds_what_is_drawn(record):
    panel = record()
    frame = next(drawings([panel], FigureOptions(PAPER))).frame
    drawn = frame[frame["quantity"] == "interaction"].set_index(["first", "last"])["drop_points"]
    for span, value in brute_force_interactions(panel.spans).items():
        assert drawn[span] == pytest.approx(value)
    alone = frame[frame["quantity"] == "layer alone"]
    assert (alone["low_points"] <= alone["drop_points"]).all()
    assert (alone["drop_points"] <= alone["high_points"]).all()
    assert set(frame["task"]) == {"CoLA"}


@pytest.mark.parametrize(("n", "column"), [(2, "half"), pytest.param(4, "full", marks=pytest.mark.slow)])
def test_tidy_with_several(record, assert_tidy, n, column):
    panels = [record(12, seed, task) for seed, task in enumerate(["cola", "mnli", "rte", "sst2"][:n])]
    figure = attribution_figure(panels, FigureOptions(PAPER, column))
    assert_tidy(figure)
    assert len(shares_axes(figure).patches) == 12 * n


@pytest.mark.slow
def test_the_caption_counts_the_intervals_that_are_not_corrected(record):
    caption = next(drawings([record(12)], FigureOptions(PAPER))).caption
    for words in ("1,043", "McNemar", "78 intervals", "about 4 "):
        assert words in caption


@pytest.mark.parametrize(("name", "column"), [("talk", "half"), ("paper", "full"), ("neurips", "half")])
def test_captions_say_where_numbers_are_that_cells_have_no_room_for(record, name, column):
    options = FigureOptions(VENUES[name], column)
    for draw in (drawings, heatmap_drawings):
        drawing = next(draw([record(12, width=0.5)], options))
        drawing.figure.draw_without_rendering()
        texts = [text for ax in drawing.figure.axes for text in ax.texts if text.get_label() == NUMBER]
        without = not any(text.get_visible() for text in texts)
        assert ("have no room for their numbers" in drawing.caption) == without
        assert without == (name == "talk" or (name, draw) == ("neurips", drawings))


@pytest.mark.slow
def test_bars_of_groups_are_called_groups_and_end_at_their_last_layer(record):
    panel = record(3)
    spans = panel.spans
    by_two = replace(
        panel,
        spans=spans.assign(first=2 * spans["first"], last=2 * spans["last"] + 1),
        layers=panel.layers.assign(layer=2 * panel.layers["layer"], last_layer=2 * panel.layers["layer"] + 1),
    )
    drawing = next(drawings([by_two], FigureOptions(PAPER)))
    frame = drawing.frame[drawing.frame["quantity"] != "interaction"]
    assert list(zip(frame["first"], frame["last"])) == 2 * [(0, 1), (2, 3), (4, 5)]
    single = next(drawings([panel], FigureOptions(PAPER)))
    assert says(drawing.caption, "group of layers alone")
    assert says(single.caption, "the layer alone")
    for one, word in ((drawing, "group"), (single, "layer")):
        (legend,) = one.figure.legends
        assert all(word in text.get_text() for text in legend.get_texts()[1:])
    assert any("group" in ax.get_xlabel() for ax in drawing.figure.axes)


@pytest.mark.slow
def test_without_intervals_nothing_is_said_of_them(record):
    panel = record()
    bare = replace(
        panel,
        spans=panel.spans[["first", "last", "n_layers", "delta_points", "interaction_points"]],
        layers=panel.layers[["layer", "delta_points", "share_points"]],
    )
    bounds = [f"{name}_{end}_points" for name in ("interaction", "share") for end in ("low", "high")]
    single = replace(  # of one example
        panel,
        spans=panel.spans.assign(**dict.fromkeys(bounds[:2], np.nan)),
        layers=panel.layers.assign(**dict.fromkeys(bounds[2:], np.nan)),
    )
    for one, unsaid in ((bare, ("bootstrap", "Holm")), (single, ("Error bars",))):
        drawing = next(drawings([one], FigureOptions(PAPER)))
        assert not any(word in drawing.caption for word in unsaid)
        words = [text.get_text() for legend in drawing.figure.legends for text in legend.get_texts()]
        words += [text.get_text() for ax in drawing.figure.axes for text in ax.texts]
        assert not any("interval" in text for text in words)


def scale_for(one):
    return difference_scale(one.spans["interaction_points"].to_numpy(float))


def test_squares_are_small_where_the_interval_holds_zero(record):
    panel = record(5, width=1.0)
    ax = plt.figure(figsize=(4, 4)).gca()
    interaction_map(panel, ax, scale_for(panel))
    full = ~ax.collections[0].get_array().mask
    small = next(c for c in ax.collections if c.get_label() == "small cells")
    centres = [path.vertices[:4].mean(axis=0) for path in small.get_paths()]
    spans = panel.spans
    clear = (spans["interaction_low_points"] > 0) | (spans["interaction_high_points"] < 0)
    assert 0 < clear.sum() < len(spans)
    assert {tuple(cell) for cell in np.argwhere(full)} == set(
        zip(spans["first"][clear], spans["last"][clear])
    )
    assert {(int(y), int(x)) for x, y in centres} == set(zip(spans["first"][~clear], spans["last"][~clear]))
    assert max(np.ptp(path.vertices[:, 0]) for path in small.get_paths()) < 0.6


def test_a_gain_has_the_sign_here_that_it_has_in_the_heatmap(make_frame, with_statistics, record):
    spans, layers = with_statistics(make_frame(3, [-2.2, 1.0, 3.0, 0.4, 1.0, 4.0]), 0.1)
    one = replace(record(), spans=spans, layers=layers)
    _, (left, right) = plt.subplots(1, 2, figsize=(10, 5))
    said = []
    heatmap(one, left)
    interaction_map(one, right, scale_for(one))
    for ax in (left, right):
        said.append(next(t.get_text() for t in ax.texts if t.get_position() == (0.5, 0.5)))
    assert said == ["−2.2", "−2.2"]
    _, ax = plt.subplots()
    attribution(one, ax)
    (alone,) = [c for c in ax.collections if c.get_label() == "alone"]
    assert alone.get_offsets()[0, 1] == pytest.approx(-2.2)


def test_on_the_users_own_axes(record):
    before = dict(plt.rcParams)
    _, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    assert attribution(record(), left) is left
    plt.sca(right)
    assert attribution([record(), record(6, 1, "rte")], legend=False) is right
    assert (left.get_legend() is None, right.get_legend() is None) == (False, True)
    assert dict(plt.rcParams) == before


@pytest.mark.parametrize("inches", [3.0, 7.0])
def test_the_legend_covers_neither_data_nor_axis(record, inches):
    figure, (_, ax) = plt.subplots(1, 2, figsize=(inches, 3), layout="constrained")
    panel = record(12)
    attribution(panel, ax)
    figure.draw_without_rendering()
    legend = ax.get_legend()
    box, within = legend.get_window_extent(), ax.get_window_extent()
    if legend.get_visible():
        assert within.x0 <= box.x0 < box.x1 <= within.x1
        tops = np.column_stack([np.arange(12), panel.layers["share_high_points"]])
        assert not box.count_contains(ax.transData.transform(tops))
        assert min(text.get_fontsize() for text in legend.get_texts()) >= 6
    assert legend.get_visible() or inches < 4


def test_a_study_without_shares_is_refused(record):
    refuses(ResultsError, ("results",), attribution, replace(record(), layers=None))
