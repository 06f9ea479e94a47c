from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure

from adapter_probe.analysis.published import published_ablation
from adapter_probe.analysis.studies import AblationOverview
from adapter_probe.figures import interactions, style
from adapter_probe.figures.attribution import Attributed, attribution, attribution_figure
from adapter_probe.figures.drawing import add_axes
from adapter_probe.figures.interactions import EDGES, InteractionScale, interaction_text
from adapter_probe.figures.venues import PAPER, Look

FACTS = AblationOverview("cola", "validation", "ablated", "accuracy", 1043, 0.74, -5.5, majority=0.69)


@pytest.fixture
def attributed(make_frame, with_statistics):
    def make(n_layers: int = 6, seed: int = 0, task: str = "cola", width: float = 1.0) -> Attributed:
        frame = make_frame(n_layers, seed=seed)
        spans, layers = with_statistics(frame, width)
        return Attributed(spans, layers, AblationOverview(task, *list(vars(FACTS).values())[1:]))

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


def test_bars_and_diamonds_are_the_shares_and_single_drops(attributed):
    panel = attributed()
    figure = attribution_figure([panel], Look(PAPER))
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


def test_the_csv_holds_what_is_drawn(attributed):
    panel = attributed()
    frame = attribution([panel], Look(PAPER), {}).frame
    drawn = frame[frame["quantity"] == "interaction"].set_index(["first", "last"])["drop_points"]
    for span, value in brute_force_interactions(panel.spans).items():
        assert drawn[span] == pytest.approx(value)
    alone = frame[frame["quantity"] == "layer alone"]
    assert (alone["low_points"] <= alone["drop_points"]).all()
    assert (alone["drop_points"] <= alone["high_points"]).all()
    assert set(frame["task"]) == {"CoLA"}


@pytest.mark.parametrize(("n", "column"), [(2, "half"), (4, "full")])
def test_tidy_with_several(attributed, assert_tidy, n, column):
    panels = [attributed(12, seed, task) for seed, task in enumerate(["cola", "mnli", "rte", "sst2"][:n])]
    figure = attribution_figure(panels, Look(PAPER, column))
    assert_tidy(figure)
    assert len(shares_axes(figure).patches) == 12 * n


def test_the_caption_says_what_a_reviewer_asks(attributed):
    caption = attribution([attributed()], Look(PAPER), {}).caption
    for words in ("1,043 examples", "95% paired bootstrap", "McNemar", "Holm", "Myerson", "majority class"):
        assert words in caption


def test_without_intervals_nothing_is_said_of_them(attributed):
    panel = attributed()
    bare = Attributed(
        panel.spans[["first", "last", "n_layers", "delta_points", "interaction_points"]],
        panel.layers[["layer", "delta_points", "share_points"]],
        panel.facts,
    )
    drawing = attribution([bare], Look(PAPER), {})
    assert "bootstrap" not in drawing.caption
    assert "Holm" not in drawing.caption
    words = [text.get_text() for legend in drawing.figure.legends for text in legend.get_texts()]
    words += [text.get_text() for ax in drawing.figure.axes for text in ax.texts]
    assert not any("interval" in text for text in words)


def test_squares_are_small_where_the_interval_holds_zero(attributed):
    panel = attributed(5, width=1.0)
    with style.paper_style():
        figure = Figure(figsize=(3, 3))
        ax = interactions.draw(panel.spans, add_axes(figure, (30, 30, 170, 170)))
    sizes = [
        path.get_extents().width
        for collection in ax.collections
        if not isinstance(collection, PathCollection)
        for path in collection.get_paths()
        if 0.1 < path.get_extents().width < 1 and len(path.vertices) in (4, 5)
    ]
    clear = ((panel.spans["interaction_low_points"] > 0) | (panel.spans["interaction_high_points"] < 0)).sum()
    assert 0 < clear < len(panel.spans)
    large = sum(size > 0.8 for size in sizes)
    assert large >= clear
    assert sum(size < 0.8 for size in sizes) == len(panel.spans) - clear


def test_the_scale_holds_every_value():
    values = published_ablation("mnli")["delta_points"].to_numpy()
    scale = InteractionScale.spanning(values)
    assert len(scale.edges) == scale.n_less + scale.n_extra
    assert scale.colours(np.array([0.0, -0.4]))[0] == scale.colours(np.array([0.49]))[0]
    extra = [scale.colours(np.array([edge + 0.01]))[0] for edge in EDGES[: scale.n_extra]]
    assert len(set(extra)) == len(extra)
    brightness = [style.luminance(colour) for colour in extra]
    assert brightness == sorted(brightness, reverse=True)  # the same order in greyscale


@pytest.mark.parametrize(("value", "text"), [(0.04, "0.0"), (-0.04, "0.0"), (-1.26, "−1.3"), (12.4, "12")])
def test_interaction_text(value, text):
    assert interaction_text(value) == text
