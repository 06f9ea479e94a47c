from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from matplotlib.figure import Figure
from refusals import names

from adapter_probe.analysis.published import published_ablation
from adapter_probe.figures.heatmap import heatmap_figure
from adapter_probe.figures.pgf import mathtext_to_latex, pgf_picture
from adapter_probe.figures.span_grid import Grid
from adapter_probe.figures.venues import PAPER, FigureOptions


@pytest.fixture(scope="module")
def picture() -> str:
    grid = Grid(published_ablation("cola"), [r"a\$ & 50% _of_ $10^{-2}$", "all removed: −13.5"], None)
    return pgf_picture(
        heatmap_figure([grid], FigureOptions(PAPER), "drop (points)"), "title\nof it", '{"a":1}'
    )


def test_it_is_as_wide_as_the_figure(picture):
    assert rf"\pgfqpoint{{{PAPER.half:f}in}}" in picture
    assert picture.splitlines()[0] == "% title of it"
    assert '% identity: {"a":1}' in picture.splitlines()


def test_words_stay_words(picture):
    texts = re.findall(r"\\selectfont (.*)\}%", picture)
    for axis in ("first layer", "last layer"):
        assert any(names(text, axis, "off") for text in texts)
    assert r"all removed: \ensuremath{-}13.5" in texts
    assert r"a\$ \& 50\% \_of\_ \ensuremath{10^{-2}}" in texts
    assert "includegraphics" not in picture  # no raster
    assert len(texts) >= 78 + 24  # a number a cell, the layers


def test_groups_are_closed(picture):
    assert picture.count(r"\begin{pgfscope}") == picture.count(r"\end{pgfscope}")
    bare = re.sub(r"\\[{}%]", "", picture)
    assert bare.count("{") == bare.count("}")


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        (r"\$5 & $\sigma_1$", r"\$5 \& \ensuremath{\sigma_1}"),
        (r"$\mathdefault{10^{−2}}$", r"\ensuremath{10^{-2}}"),
        ("a_b ± 3", r"a\_b \ensuremath{\pm} 3"),
    ],
)
def test_formulas_and_plain_words(text, latex):
    assert mathtext_to_latex(text) == latex


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no LaTeX on this machine")
def test_latex_takes_it(picture, tmp_path):
    (tmp_path / "figure.pgf").write_text(picture, encoding="utf-8")
    (tmp_path / "paper.tex").write_text(
        r"\documentclass{article}\usepackage{pgf}\begin{document}\input{figure.pgf}\end{document}"
    )
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"],
        cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]


def test_slanted_names_end_at_their_ticks():
    """Against the place of Matplotlib's own text: the right end of its baseline."""
    figure = Figure(figsize=(4, 3), dpi=72)
    ax = figure.add_axes((0.2, 0.4, 0.7, 0.5))
    ax.set_xticks([0.5], ["orthogonal"], rotation=40, ha="right", rotation_mode="anchor")
    written = pgf_picture(figure, "", "")
    place = re.search(r"pgftext\[x=([\d.]+)in,y=([\d.]+)in,base,right,rotate=40.*orthogonal", written)
    label = ax.get_xticklabels()[0]
    expected = label.get_transform().transform(label.get_position()) / 72
    ink = 0.1  # inches: the baseline lies below the tops of the letters
    assert [float(n) for n in place.groups()] == pytest.approx(expected.tolist(), abs=ink)
