"""The figure of a study of strengths, and its part of the page: every number of the table, in words."""

from __future__ import annotations

import html
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from refusals import names

from adapter_probe.analysis.strengths import StrengthSummary
from adapter_probe.analysis.study_records import StrengthRecord
from adapter_probe.figures.report.page import page_html
from adapter_probe.figures.strengths import strengths


def record(n_layers: int) -> StrengthRecord:
    """A study of all adapters and of every layer alone; layer 1 loses most, the others next to nothing."""
    rows = []
    for layer in (None, *range(n_layers)):
        for strength in (0.0, 0.5, 1.0, 1.5):
            delta = -20.0 * (1 - strength) ** 2 * {None: 1.0, 1: 0.5}.get(layer, 0.01 * (layer or 0))
            first, last = (0, n_layers - 1) if layer is None else (layer, layer)
            rows.append((strength, first, last, last - first + 1, layer is None, 0.8 + delta / 100, delta))
    names = ["strength", "first", "last", "n_layers", "whole", "score", "delta_points"]
    frame = pd.DataFrame(rows, columns=names)
    frame = frame.assign(
        ci_low_points=frame["delta_points"] - 1, ci_high_points=frame["delta_points"] + 1, n_examples=50
    )
    said = StrengthSummary(
        task="arc_easy", data="test.jsonl", metric="accuracy", n_examples=50, intact_score=0.8, best=1.0,
        n_judged=25, delta_points=0.0, interval_points=(0.0, 0.0),
    )  # fmt: skip
    return StrengthRecord(Path("lora/strengths"), frame, said, {"identity": {"settings": {"task": "arc"}}})


@pytest.mark.parametrize(("n_layers", "in_legend"), [(3, 3), (12, 0)])
def test_layers_are_told_apart_by_more_than_colour(n_layers, in_legend):
    figure = Figure(figsize=(5, 4), layout="constrained")
    ax = strengths(record(n_layers), figure.subplots())
    figure.draw_without_rendering()
    words = [text.get_text() for text in ax.get_legend().get_texts()]
    assert sum(bool(re.fullmatch(r"layer \d+ alone", word)) for word in words) == in_legend
    own = [line for line in ax.lines if line.get_zorder() == 2 and len(line.get_xdata()) == 4]
    assert len(own) == n_layers
    if in_legend:
        assert len({str(line._unscaled_dash_pattern) for line in own}) == n_layers
    else:
        (bar,) = [other for other in figure.axes if other is not ax]
        assert names(bar.get_ylabel(), "layer", "alone")
        assert [bar.get_ylim()[0], bar.get_ylim()[1]] == [0, n_layers - 1]
        assert "layer 1" in [text.get_text() for text in ax.texts if text.get_visible()]
        colours = np.array([line.get_color() for line in own])
        assert len(np.unique(colours, axis=0)) == n_layers


def test_the_page_has_the_answer_the_figure_and_every_number():
    page = page_html([], [record(3)])
    assert "ARC-Easy: accuracy" in page
    assert html.escape(record(3).summary.verdict[1:], quote=False) in page  # its first letter is a capital
    assert page.count("<figure") == 1
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", page)]
    assert len(rows) == 1 + 16
    assert rows[1] == ["all", "0", "60.0%", "20.0 points", "19.0 points", "21.0 points"]
    assert names(rows[0][3], "drop", "strength 1")
    assert [row[0] for row in rows[5:]] == [name for n in range(3) for name in [f"layer {n}"] * 4]
