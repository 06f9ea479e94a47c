from __future__ import annotations

import re
import zlib

import numpy as np
import pandas as pd
import pytest
from ablation_facts import record_of
from matplotlib.colors import to_hex
from refusals import names

from adapter_probe.analysis.published import published_ablation
from adapter_probe.analysis.summary import NOT_WORSE
from adapter_probe.figures import ablation_words, style
from adapter_probe.figures.heatmap import heatmap_figure
from adapter_probe.figures.span_grid import Grid
from adapter_probe.figures.venues import PAPER, VENUES, FigureOptions
from adapter_probe.settings import FIGURE_FORMATS
from adapter_probe.wording import ALL_OFF

NOTES = ["MNLI$_\\mathrm{m}$", "intact 83.7% accuracy", "all switched off: drop 43.5"]


def notes_of(ax) -> list[str]:
    found = [t for t in ax.texts if t.get_transform() != ax.transData and t.get_visible()]
    return [t.get_text() for t in found]


def test_fonts_in_the_pdf_are_type_42(tmp_path):
    figure = heatmap_figure(
        [Grid(published_ablation("mnli"), NOTES, None)], FigureOptions(PAPER), "drop (points)"
    )
    (pdf,) = style.save(figure, tmp_path, "x", title="x", identity={}, formats=("pdf",))
    data = pdf.read_bytes()
    streams = [zlib.decompress(s) for s in re.findall(rb"stream\r?\n(x.*?)\r?\nendstream", data, re.DOTALL)]
    everything = b"\n".join([data, *streams])
    subtypes = set(re.findall(rb"/Subtype\s*/(\w+)", everything))
    assert b"CIDFontType2" in subtypes  # what PDF calls a Type 42 font of more than 255 characters
    assert not subtypes & {b"Type3", b"Type1", b"Image"}  # nothing is a raster
    assert set(re.findall(rb"/BaseFont\s*/(?:[A-Z]{6}\+)?([\w-]+)", everything)) == {b"STIXGeneral-Regular"}
    assert everything.count(b"/FontFile2") > 0


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (("intact", "90.0% accuracy"), (ALL_OFF, "drop 15.0"), ("majority class", "75.0%"))),
        ({"removed_delta_points": 2.5}, ((), (ALL_OFF, "gain 2.5"), ())),
        ({"removed_delta_points": 0.0}, ((), (ALL_OFF, "drop 0.0"), ())),
        ({"removed_delta_points": None}, ((), (ALL_OFF, "undefined"), ())),
        ({"switched": "attention"}, ((), ("all attention", "off", "drop 15.0"), ())),
        ({"majority_score": None}, ((), (ALL_OFF, "drop 15.0"))),
        ({"warning": "?"}, ((), (), (), ("no better", "majority class"), ("spans", "not informative"))),
        ({"warning": NOT_WORSE}, ((), (), (), ("no better", ALL_OFF), ("spans", "not informative"))),
        (
            {"warning": NOT_WORSE, "switched": "attention"},
            ((), (), (), ("no better", "all attention"), ("spans", "not informative")),
        ),
        ({"metric": "nll", "majority_score": None}, ((), (ALL_OFF, "rise 0.150 nats"))),
        (
            {"metric": "mcc", "intact_score": 1.0, "majority_score": 0.0},
            (("intact", "Matthews correlation 1.000"), (), ("majority class", "0.000")),
        ),
    ],
)
def test_notes_tell_what_a_reader_wants_to_know(changes, expected):
    study = {
        "task": "CoLA$", "n_examples": 40, "intact_score": 0.9, "removed_delta_points": -15.0,
        "majority_score": 0.75,
    }  # fmt: skip
    task, *lines = ablation_words.notes_of(record_of(pd.DataFrame(), **{**study, **changes}))
    assert task == r"CoLA\$, n = 40"
    assert len(lines) == len(expected)
    assert all(names(line, *facts) for line, facts in zip(lines, expected))


@pytest.mark.parametrize(
    ("metric", "data", "expected"),
    [
        ("accuracy", "", ("drop", "test accuracy", "percentage points")),
        ("accuracy", "arc_test.jsonl", ("drop", "accuracy", "arc_test.jsonl", "percentage points")),
        ("acc_norm", "arc_easy", ("drop", "length-normalised accuracy", "ARC-Easy", "percentage points")),
        ("mcc", "", ("drop", "test Matthews correlation", "score × 100")),
        ("nll", "", ("rise", "test negative log-likelihood", "0.01 nats")),
        (None, "", ("drop", "test score", "score × 100")),
    ],
)
def test_the_bar_says_what_is_dropped_on_which_data(metric, data, expected):
    study = record_of(pd.DataFrame(), split="test", data=data or None)
    assert names(ablation_words.drop_label([study], metric), *expected)


def test_panels_share_one_scale_and_one_bar(make_frame, assert_tidy):
    frames = [make_frame(6, [0.3] * 21), make_frame(12, np.linspace(-3, 60, 78)), published_ablation("cola")]
    grids = [Grid(frame, NOTES, None) for frame in frames]
    figure = heatmap_figure(grids, FigureOptions(PAPER), "drop (points)")
    assert_tidy(figure)
    *grids, bar = figure.axes
    figure.draw_without_rendering()
    assert len(grids) == 3
    first, *others = [ax.get_ylabel() for ax in grids]
    assert names(first, "first layer", "off")
    assert others == ["", ""]
    assert all(ax.get_title() == "" for ax in figure.axes)
    assert notes_of(grids[1]) == list(NOTES)
    # The bar covers all panels: gains beyond 2 points and drops beyond 50 occur in the second alone.
    assert " ".join(t.get_text() for t in bar.get_xticklabels()) == "−2 −1 0 0.5 1 2 5 10 20 30 50"
    cells = grids[0].collections[0]
    assert {to_hex(c) for c in cells.get_facecolors() if c[3]} == {"#f9e5d4"}


@pytest.mark.parametrize("n_grids", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 5, 9))])
@pytest.mark.parametrize("venue", ["icml", pytest.param("talk", marks=pytest.mark.slow)])
def test_grids_never_overlap_and_stay_on_the_page(make_frame, assert_tidy, n_grids, venue):
    grids = [Grid(make_frame(4, seed=index), ["a task"], None) for index in range(n_grids)]
    figure = heatmap_figure(grids, FigureOptions(VENUES[venue], "full"), "drop (points)")
    assert_tidy(figure)
    boxes = [ax.get_window_extent() for ax in figure.axes]
    assert len(boxes) == n_grids + 1
    for index, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:index])
        assert min(box.width, box.height) > 3
    sides = [round(box.width) for box in boxes[:-1]]
    assert len(set(sides)) == 1
    assert sides[0] > 0.6 * figure.dpi  # inches
    if venue == "icml":
        assert figure.get_figheight() <= VENUES[venue].tallest


@pytest.mark.slow
def test_a_figure_is_the_same_bytes_each_time_in_every_format(make_frame, tmp_path):
    def written(folder):
        figure = heatmap_figure([Grid(make_frame(12), NOTES, None)], FigureOptions(PAPER), "drop (points)")
        paths = style.save(figure, folder, "x", title="x", identity={}, formats=FIGURE_FORMATS)
        return [path.read_bytes() for path in paths]

    assert written(tmp_path / "one") == written(tmp_path / "two")
