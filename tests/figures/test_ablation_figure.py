from __future__ import annotations

import re
import zlib
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex

from adapter_probe.analysis.published import published_ablation
from adapter_probe.analysis.studies import AblationOverview
from adapter_probe.figures import style, wording
from adapter_probe.figures.ablation import Panel, ablation_figure, lay_out
from adapter_probe.figures.venues import PAPER, VENUES, Look

NOTES = ("MNLI$_\\mathrm{m}$", "intact 83.7% accuracy, n = 9,815", "all removed: −43.5")


def notes_of(ax) -> list[str]:
    return [t.get_text() for t in reversed(ax.texts) if t.get_transform() != ax.transData]


def test_fonts_in_the_pdf_are_type_42(tmp_path):
    figure = ablation_figure([Panel(published_ablation("mnli"), None, NOTES)], Look(PAPER))
    (pdf,) = style.save(figure, tmp_path, "x", title="x", identity={}, formats=("pdf",))
    data = pdf.read_bytes()
    streams = [zlib.decompress(s) for s in re.findall(rb"stream\r?\n(x.*?)\r?\nendstream", data, re.DOTALL)]
    everything = b"\n".join([data, *streams])
    subtypes = set(re.findall(rb"/Subtype\s*/(\w+)", everything))
    assert b"CIDFontType2" in subtypes or b"TrueType" in subtypes  # what PDF calls a Type 42 font
    assert not subtypes & {b"Type3", b"Type1"}
    assert set(re.findall(rb"/BaseFont\s*/(?:[A-Z]{6}\+)?([\w-]+)", everything)) == {b"STIXGeneral-Regular"}
    assert everything.count(b"/FontFile2") > 0


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ("intact 90.0% accuracy, n = 40", "all removed: −15.0", "majority class 75.0%")),
        ({"removed_delta": 2.5}, (..., "all removed: +2.5", ...)),
        ({"removed_delta": 0.0}, (..., "all removed: 0.0", ...)),
        ({"removed_delta": None}, (..., "all removed: undefined", ...)),
        ({"removed": "all attention removed"}, (..., "all attention removed: −15.0", ...)),
        ({"majority": None}, (..., "all removed: −15.0")),
        (
            {"metric": "mcc", "intact": 1.0, "majority": 0.0},
            ("intact Matthews correlation 1.000, n = 40", ..., "majority class 0.000"),
        ),
    ],
)
def test_notes_tell_what_a_reader_wants_to_know(changes, expected):
    facts = AblationOverview("CoLA$", "validation", "ablated", "accuracy", 40, 0.9, -15.0, majority=0.75)
    task, *lines = wording.ablation_notes(replace(facts, **changes))
    assert task == r"CoLA\$"
    assert len(lines) == len(expected)
    assert all(want in (..., line) for line, want in zip(lines, expected))


@pytest.mark.parametrize(
    ("metric", "tolerance", "expected"),
    [
        ("accuracy", 1.0, "drop in test accuracy (percentage points); black line = 1 point"),
        ("mcc", 0.5, "drop in test Matthews correlation (points of 0.01); black line = 0.5 points"),
        (None, 2.0, "drop in test score (points of 0.01); black line = 2 points"),
    ],
)
def test_the_bar_says_what_is_dropped(metric, tolerance, expected):
    assert wording.drop_label(metric, "test", tolerance) == expected


@pytest.mark.parametrize(
    ("drop", "text"),
    [
        (0.04, "0.0"),
        (-0.04, "+0.0"),
        (9.94, "9.9"),
        (9.95, "10"),
        (10.4, "10"),
        (-3.25, "+3.2"),
        (101.0, "101"),
    ],
)
def test_cell_text(drop, text):
    assert wording.cell_text(drop) == text


@pytest.mark.parametrize(("points", "text"), [(-5.06, "−5.1"), (0.3, "+0.3"), (-0.04, "0.0"), (0.0, "0.0")])
def test_signed(points, text):
    assert wording.signed(points) == text


@pytest.mark.parametrize("venue", ["neurips", "talk"])
@pytest.mark.parametrize("column", ["half", "full"])
@pytest.mark.parametrize("n_layers", [1, 2, 24])
def test_everything_lies_inside_the_figure(make_frame, assert_tidy, n_layers, column, venue):
    panel = Panel(make_frame(n_layers, seed=1), None, NOTES)
    figure = ablation_figure(
        [panel], Look(VENUES[venue], column, tolerance=0.5), metric="mcc", split="validation"
    )
    assert_tidy(figure)
    assert figure.get_figwidth() == VENUES[venue].width(column)
    assert figure.get_figheight() <= VENUES[venue].tallest + 1e-9


@pytest.mark.parametrize("n_panels", [2, 3])
def test_panels_share_one_scale_and_one_bar(make_frame, assert_tidy, n_panels):
    frames = [make_frame(6, [0.3] * 21), make_frame(12, np.linspace(-3, 60, 78)), published_ablation("cola")]
    panels = [Panel(frame, None, NOTES) for frame in frames[:n_panels]]
    figure = ablation_figure(panels, Look(PAPER), preferred_wide=True)
    assert_tidy(figure)
    *grids, bar = figure.axes
    assert len(grids) == n_panels
    assert [ax.get_ylabel() for ax in grids] == ["first ablated layer"] + [""] * (n_panels - 1)
    assert all(ax.get_title() == "" for ax in figure.axes)
    assert notes_of(grids[1]) == list(NOTES)
    # The bar covers all panels: gains beyond 2 points and drops beyond 50 occur in the second alone.
    assert " ".join(t.get_text() for t in bar.get_xticklabels()) == "+2 +1 0 0.5 1 2 5 10 20 50"
    (cells,) = [c for c in grids[0].collections if c.get_label() == "cells"]
    assert {to_hex(c) for c in cells.get_facecolors()} == {"#f9e5d4"}


@pytest.mark.parametrize("n_panels", range(1, 10))
@pytest.mark.parametrize("venue", ["icml", "neurips", "talk"])
def test_grids_never_overlap_and_stay_on_the_page(n_panels, venue):
    with style.paper_style(VENUES[venue]):
        width, tallest = 72 * VENUES[venue].full, 72 * VENUES[venue].tallest
        if venue == "talk" and n_panels > 3:
            tallest = 9 * 72
        layout = lay_out(n_panels, width, tallest, False, "label")
    places = [*layout.grids, layout.bar]
    assert len(layout.grids) == n_panels
    for index, (x, y, w, h) in enumerate(places):
        assert min(x, y, w, h) >= 0
        assert x + w <= width
        assert y + h <= layout.height <= tallest + 1e-6
        for other_x, other_y, other_w, other_h in places[:index]:
            apart = x >= other_x + other_w or other_x >= x + w or y >= other_y + other_h or other_y >= y + h
            assert apart


def test_a_layout_without_room_is_refused():
    with style.paper_style(), pytest.raises(ValueError, match=r"2 grids do not fit 0\.5 inches"):
        lay_out(2, 36, 648, False, "label")
    with style.paper_style(), pytest.raises(ValueError, match="0 grids"):
        lay_out(0, 400, 648, False, "label")
