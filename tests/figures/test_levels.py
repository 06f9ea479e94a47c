from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from adapter_probe.figures import levels, style
from adapter_probe.figures.levels import difference_scale, drop_scale

drops = st.floats(-200, 200).map(lambda x: round(x, 3) + 0.0)
edges = st.sampled_from([s * e for s in (-1, 1) for e in (0, 0.5, 1, 2, 3, 5, 10, 20, 30, 50)])
drop_lists = st.lists(drops | edges, min_size=1, max_size=30)


def level_by_hand(drop: float, n_gains: int) -> int:
    if drop < 0:
        gain = next((level for level, upper in enumerate((1, 2, 3, 5), start=1) if -drop <= upper), 5)
        return -min(gain, n_gains)
    for level, upper in enumerate((0.5, 1, 2, 5, 10, 20, 30, 50), start=1):
        if drop <= upper:
            return level
    return 9


@given(drop_lists)
def test_levels_hold_their_upper_edges(values):
    n_gains = 1 + sum(edge < -min(values) for edge in levels.GAIN_EDGES)
    found = [level_by_hand(value, n_gains) for value in values]
    colours = [levels.DROP_COLOURS[n - 1] if n > 0 else levels.GAIN_COLOURS[-n - 1] for n in found]
    assert drop_scale(np.array(values)).colours(np.array(values)) == colours


@pytest.mark.parametrize(
    ("values", "n_gains", "beyond"),
    [
        ([0.0, 50.0], 1, False),
        ([50.001], 1, True),
        ([-1.0], 1, False),
        ([-1.001], 2, False),
        ([-2.5, 60.0], 3, True),
        ([-3.3], 4, False),
        ([-50.0], 5, False),
        ([np.nan], 1, False),
        ([], 1, False),
    ],
)
def test_the_scale_grows_only_as_far_as_the_drops_do(values, n_gains, beyond):
    scale = drop_scale(np.array(values))
    assert (scale.edges.index(0.0), scale.beyond) == (n_gains - 1, beyond)
    assert len(scale.shown) == n_gains + 8 + beyond


def test_lightness_falls_evenly_with_the_drop():
    def lightness(colour: str) -> float:  # CIE 1976 L*, for colours brighter than L* = 8 or so
        return 116 * style.luminance(colour) ** (1 / 3) - 16

    steps = -np.diff([lightness(colour) for colour in levels.DROP_COLOURS])
    assert steps.min() > 10
    assert steps.max() < 14
    gain_steps = -np.diff([lightness(colour) for colour in levels.GAIN_COLOURS])
    assert gain_steps.min() > 6


def test_gains_are_blue_and_drops_are_not():
    assert all(to_rgb(c)[2] > to_rgb(c)[0] for c in levels.GAIN_COLOURS)
    assert all(to_rgb(c)[2] < to_rgb(c)[0] for c in levels.DROP_COLOURS[:5])


@pytest.mark.parametrize("colour", [*levels.DROP_COLOURS, *levels.GAIN_COLOURS])
def test_numbers_can_be_read_on_every_colour(colour):
    assert style.contrast(style.text_colour(colour), colour) > 4.5


@pytest.mark.parametrize("location", ["right", "bottom"])
@pytest.mark.parametrize(
    ("scale", "ticks"),
    [
        (drop_scale(np.zeros(1)), "0 0.5 1 2 5 10 20 30 50"),
        (drop_scale(np.array([-2.5, 60.0])), "−2 −1 0 0.5 1 2 5 10 20 30 50"),
        (difference_scale(np.array([0.0, 4.0])), "−1 −0.5 0.5 1 2"),
    ],
)
def test_the_bar_tells_the_truth(scale, ticks, location):
    with style.paper_style():
        figure = Figure(figsize=(6, 6))
        ax = figure.add_axes((0.1, 0.1, 0.8, 0.8))
        bar = levels.draw_colorbar(scale, [ax], "x", 1.0, location=location)
        figure.draw_without_rendering()
    axis = bar.ax.yaxis if location == "right" else bar.ax.xaxis
    assert [text.get_text() for text in axis.get_ticklabels()] == ticks.split()
    assert bar.extend == ("both" if scale.beyond else "min")
    # In the middle of each interval the bar shows the colour that a cell of that value has.
    bounds = np.array(scale.edges)
    for value in (bounds[1:] + bounds[:-1]) / 2:
        assert to_hex(bar.cmap(bar.norm(value))) == scale.colours(np.array([value]))[0]
    assert to_hex(bar.cmap.get_under()) == scale.colours(np.array([-99.0]))[0]
    if scale.beyond:
        assert to_hex(bar.cmap.get_over()) == scale.colours(np.array([99.0]))[0]


def test_labels_of_a_short_bar_are_thinned_but_keep_zero():
    with style.paper_style():
        figure = Figure(figsize=(1.6, 2))
        ax = figure.add_axes((0.2, 0.2, 0.6, 0.6))
        bar = levels.draw_colorbar(drop_scale(np.array([-2.5, 60.0])), [ax], "x", location="bottom")
        figure.draw_without_rendering()
    shown = [text.get_text() for text in bar.ax.get_xticklabels()]
    assert "0" in shown
    assert shown.count("") >= len(shown) // 2


@given(drop_lists)
def test_a_diverging_scale_is_symmetric_in_its_edges(values):
    values = np.array(values)
    scale = difference_scale(values)
    counts = np.searchsorted(levels.DIVERGING_EDGES, np.round(np.abs(values), 9))
    sides = [
        max([2, *counts[side * values > 0]]) for side in (-1, 1)
    ]  # fewer would leave a bar of one colour
    assert [sum(side * edge > 0 for edge in scale.edges) for side in (-1, 1)] == sides
    neutral = scale.colours(np.zeros(1))[0]
    assert [colour == neutral for colour in scale.colours(values)] == (counts == 0).tolist()
    assert (scale.is_gain(values) == ((values < 0) & (counts > 0))).all()


def test_more_loss_is_darker_on_the_diverging_scale():
    scale = difference_scale(np.array([-30.0, 30.0]))
    brightness = [style.luminance(c) for c in scale.colours(np.array(levels.DIVERGING_EDGES) + 0.01)]
    assert brightness == sorted(brightness, reverse=True)  # the same order in greyscale


# What people without one kind of cone see, of linear RGB: Machado, Oliveira and Fernandes 2009 (IEEE
# Transactions on Visualization and Computer Graphics 15), severity 1.0.
SEEN_BY = {
    "all cones": np.eye(3),
    "protanopia": np.array(
        [(0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)]
    ),
    "deuteranopia": np.array(
        [(0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)]
    ),
}
TO_XYZ = np.array(
    [(0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750), (0.0193339, 0.1191920, 0.9503041)]
)  # of linear sRGB, IEC 61966-2-1


def as_seen(colour: str, matrix: np.ndarray) -> np.ndarray:
    """A colour in CIELAB as it looks through a matrix of linear RGB."""
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    t = TO_XYZ @ np.clip(matrix @ linear, 0, 1) / TO_XYZ.sum(axis=1)
    f = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("matrix", SEEN_BY.values(), ids=SEEN_BY)
@pytest.mark.parametrize(
    "palette",
    [drop_scale(np.array([-9.0, 60.0])).shown, difference_scale(np.array([-30.0, 30.0])).shown, style.FILLS],
    ids=["drops", "differences", "bars"],
)
def test_neighbouring_colours_stay_apart_without_red_or_green_cones(palette, matrix):
    """By three times what is just noticeable, a distance of 2.3 in CIELAB (Mahy et al. 1994)."""
    seen = [as_seen(colour, matrix) for colour in palette]
    assert min(np.linalg.norm(one - other) for one, other in pairwise(seen)) > 3 * 2.3


small = st.lists(st.floats(1e-9, 0.49) | st.sampled_from([0.01, 0.03, 0.3]), min_size=1, max_size=60)


@given(small, st.floats(0.0, 1e4))
def test_distances_below_the_first_edge_have_a_logarithmic_scale(values, largest):
    values = np.array([*values, *values, largest])
    scale = drop_scale(values, ["kl"])
    edges = np.array(scale.edges)
    assert len(scale.shown) == len(edges) <= len(levels.DROP_COLOURS)
    steps = edges[2:] / edges[1:-1]
    assert np.all((steps > 1.9) & (steps < 10.1))
    assert edges[1] <= max(np.quantile(values[values > 0], 0.2), 1e-9)
    found = scale.colours(values)
    by_hand = [max(0, sum(edge < round(value, 9) for edge in scale.edges) - 1) for value in values]
    assert [scale.shown.index(colour) for colour in found] == by_hand


@pytest.mark.parametrize(
    ("metric", "largest", "last"),
    [("accuracy", 90, 50), ("nll", 40, 50), ("nll", 90, 500), ("perplexity", 4000, 5000), ("kl", 90, 500)],
)
def test_changes_in_a_unit_of_their_own_have_levels_of_their_size(metric, largest, last):
    drops = np.linspace(1, largest, 20)
    assert drop_scale(drops, [metric]).edges == tuple(last / 50 * edge for edge in levels.DROP_EDGES)
    assert drop_scale(drops, [metric, "accuracy"]).edges == levels.DROP_EDGES
    falls = drop_scale(-drops, [metric])
    assert falls.edges[0] == (0 if metric == "kl" else -last / 10)


def test_small_interactions_of_distances_have_levels_and_those_of_losses_have_none():
    values = np.array([3e-7, -4e-6, 1e-5])
    assert difference_scale(values, ["nll"]) == difference_scale(values)
    assert difference_scale(values, ["kl"]).edges[-2:] == (2e-6, 5e-6)


def test_nothing_and_something_differ_in_colour():
    values = np.array([0.0, 0.0, 0.1, 0.1])
    nothing, _, something, _ = drop_scale(values, ["kl"]).colours(values)
    assert nothing != something
