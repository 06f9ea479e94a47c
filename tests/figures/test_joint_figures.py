"""The mean of several ablations: its spread over the studies is there on shallow and on deep grids."""

from __future__ import annotations

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_rgba
from refusals import names
from tiers import slow_unless

from adapter_probe.analysis.comparing import AverageRecord
from adapter_probe.analysis.published import published_ablation
from adapter_probe.figures.ablation_words import notes_of
from adapter_probe.figures.grid import NUMBER
from adapter_probe.figures.heatmap import heatmap
from adapter_probe.figures.joint import drawings
from adapter_probe.figures.levels import drop_scale
from adapter_probe.figures.span_grid import grid_of, scale_of
from adapter_probe.figures.venues import PAPER, VENUES, FigureOptions


def mean_of(n_layers: int) -> AverageRecord:
    """Three studies whose spread is 0.1 points a layer of the span."""
    pairs = [(i, j) for i in range(n_layers) for j in range(i, n_layers)]
    spans = pd.DataFrame(pairs, columns=["first", "last"])
    spans["n_layers"] = spans["last"] - spans["first"] + 1
    spans = spans.assign(delta_points=-0.2 * spans["n_layers"], sd_points=0.1 * spans["n_layers"], p_holm=0.5)
    return AverageRecord(("s0", "s1", "s2"), spans, "accuracy", 100, (0.7, 0.8, 0.75), {})


def colours_drawn(ax) -> np.ndarray:
    """Colours of the cells that there are, row by row."""
    mesh = next(artist for artist in ax.collections if isinstance(artist, QuadMesh))
    mesh.update_scalarmappable()
    return mesh.get_facecolors()[~np.ma.getmaskarray(mesh.get_array()).ravel()]


def test_an_average_says_its_spread_below_each_mean():
    figure, ax = plt.subplots(figsize=(6, 5))
    heatmap(mean_of(6), ax)
    figure.draw_without_rendering()
    said = {text.get_text() for text in ax.texts if text.get_visible()}
    assert {f"{0.2 * n:.1f}\n± {0.1 * n:.1f}" for n in range(1, 7)} <= said
    assert len(figure.axes) == 2  # the grid and the colour bar


@pytest.mark.parametrize(
    ("metric", "scores", "said"),
    [
        ("accuracy", (1.0, 0.475, 0.6), ("intact", "accuracy 47.5% to 100.0%")),
        ("mcc", (0.1, -0.25, -0.1), ("intact", "Matthews correlation −0.250 to 0.100")),
        ("perplexity", (9.5, 10.25, 10.0), ("intact", "perplexity 9.500 to 10.250")),
    ],
)
def test_an_average_says_the_lowest_and_the_highest_intact_score(metric, scores, said):
    assert names(notes_of(replace(mean_of(3), metric=metric, intact_scores=scores))[-1], *said)


@pytest.mark.parametrize(("inches", "n_grids"), [(8, 2), (2.5, 1)])
def test_a_deep_average_has_a_grid_of_its_spread(inches, n_grids):
    record = mean_of(30)
    figure = plt.figure(figsize=(inches, 4))
    heatmap(record, figure.add_subplot(), colorbar=False)
    assert len(figure.axes) == n_grids
    alone = heatmap(record, plt.figure(figsize=(4, 4)).add_subplot(), colorbar=False, spread=True)
    expected = [
        to_rgba(colour)
        for colour in scale_of([grid_of(record)]).colours(record.spans["sd_points"].to_numpy())
    ]
    for ax in (*figure.axes[1:], alone):
        np.testing.assert_allclose(colours_drawn(ax), expected)


@pytest.mark.parametrize(
    ("n_layers", "n_panels"), [(6, 1), (12, 1), pytest.param(30, 2, marks=pytest.mark.slow)]
)
def test_the_average_figure_shows_means_and_spread(n_layers, n_panels):
    record = mean_of(n_layers)
    drawing = next(drawings([record], FigureOptions(PAPER)))
    grids = [ax for ax in drawing.figure.axes if "last layer" in ax.get_xlabel()]
    assert len(grids) == n_panels
    drawing.figure.draw_without_rendering()
    shown = "\n".join(text.get_text() for ax in grids for text in ax.texts if text.get_visible())
    assert "± 0.1" in shown if n_panels == 1 else "s.d. over 3 studies" in shown
    assert drawing.frame is record.spans


@pytest.mark.parametrize("column", ["half", "full"])
@pytest.mark.parametrize("name", slow_unless("acl".__eq__, [name for name in VENUES if name != "icml"]))
def test_the_spread_is_in_the_cells_or_in_a_grid_of_its_own(name, column):
    drawing = next(drawings([mean_of(12)], FigureOptions(VENUES[name], column)))
    drawing.figure.draw_without_rendering()
    grids = [ax for ax in drawing.figure.axes if "last layer" in ax.get_xlabel()]
    texts = [text for ax in grids for text in ax.texts if text.get_visible()]
    in_cells = any("±" in text.get_text() for text in texts if text.get_label() == NUMBER)
    assert in_cells == (len(grids) == 1) == ("below each mean" in drawing.caption)
    assert any("mean ± s.d." in text.get_text() for text in texts) <= in_cells


@pytest.mark.parametrize(
    ("task", "paper", "n"),
    [("mnli", True, 2), pytest.param("mnli", False, 1, marks=pytest.mark.slow), ("x", True, 1)],
)
def test_the_published_grid_stands_beside_the_mean(task, paper, n):
    record = replace(mean_of(12), task=task)
    drawing = next(drawings([record], FigureOptions(PAPER, paper=paper)))
    grids = [ax for ax in drawing.figure.axes if "last layer" in ax.get_xlabel()]
    assert len(grids) == n
    assert ("Houlsby et al. (2019)" in drawing.caption) == (n == 2)
    if n == 2:
        drops = -published_ablation("mnli").sort_values(["first", "last"])["delta_points"].to_numpy()
        scale = drop_scale(np.append(drops, 2.4))  # the largest mean is that of all 12 layers
        np.testing.assert_allclose(colours_drawn(grids[1]), [to_rgba(c) for c in scale.colours(drops)])
        own = scale.colours(-record.spans["delta_points"].to_numpy())
        np.testing.assert_allclose(colours_drawn(grids[0]), [to_rgba(c) for c in own])
