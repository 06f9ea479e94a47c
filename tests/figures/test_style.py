from __future__ import annotations

import io
import json

import matplotlib
import pytest
from fontTools.ttLib import TTFont
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont
from refusals import naming

from adapter_probe.errors import AdapterProbeWarning, ResultsError
from adapter_probe.figures import style
from adapter_probe.figures.venues import PAPER, VENUES


def text_figure(text: str) -> Figure:
    with style.paper_style():
        figure = Figure(figsize=(2, 1))
        figure.text(0.1, 0.5, text)
    return figure


def test_the_readers_settings_have_no_say_and_come_back():
    with matplotlib.rc_context({"font.size": 33, "axes.grid": True, "pdf.fonttype": 3}):
        with style.paper_style():
            inside = {name: matplotlib.rcParams[name] for name in ("font.size", "axes.grid", "pdf.fonttype")}
        assert matplotlib.rcParams["font.size"] == 33
        assert matplotlib.rcParams["pdf.fonttype"] == 3
    assert inside == {"font.size": PAPER.label, "axes.grid": False, "pdf.fonttype": 42}


@pytest.mark.filterwarnings("error")
def test_letters_of_other_scripts_come_from_other_fonts(tmp_path):
    with TTFont(findfont(style.SERIF)) as font:
        assert ord("ქ") not in font.getBestCmap()
    style.save(text_figure("ქართული"), tmp_path, "georgian", title="", identity={})
    lost = "\U0001f9ea"  # a test tube, which no font for text has
    with pytest.warns(AdapterProbeWarning, match=naming(lost)):
        style.save(text_figure(f"a{lost}"), tmp_path, "one", title="", identity={})
    style.save(text_figure(f"a{lost}"), tmp_path, "two", title="", identity={})  # once is enough


@pytest.mark.parametrize("font", [style.SERIF, style.SANS])
def test_the_fonts_ship_with_matplotlib(font):
    assert findfont(font, fallback_to_default=False).startswith(matplotlib.get_data_path())


@pytest.mark.parametrize("venue", ["paper", "talk"])
def test_text_width_is_that_of_the_fonts_own_metrics(venue):
    font = TTFont(findfont(style.SANS if VENUES[venue].sans else style.SERIF))
    glyphs, advances = font.getBestCmap(), font["hmtx"]
    with style.paper_style(VENUES[venue]):
        for text in ("0", "12.5", "+0.3", "−5.1", "nnnnnnnnnn"):
            width = sum(advances[glyphs[ord(c)]][0] for c in text) / font["head"].unitsPerEm
            # The ink ends a little before the last character's advance does.
            assert style.text_width(text, 10) == pytest.approx(10 * width, abs=1.5)
        assert style.text_width("", 10) == 0


@given(st.lists(st.sampled_from(["a", "drop", "longer", "(extraordinary"]), min_size=1, max_size=12))
def test_wrapped_text_keeps_its_words_and_its_width(words):
    text = " ".join(words)
    lines = style.wrap_text(text, 8, 60).split("\n")
    assert " ".join(lines) == text
    assert all(style.text_width(line, 8) <= 60 or " " not in line for line in lines)


def test_a_unit_in_brackets_goes_into_a_line_of_its_own():
    assert style.wrap_text("drop (points)", 8, 500) == "drop (points)"
    assert style.wrap_text("drop in score (points); line", 8, 80) == "drop in score\n(points); line"
    assert style.wrap_text("texts, n = 2,000", 8, 45) == "texts,\nn = 2,000"


def test_a_text_is_as_wide_as_its_letters_are_high():
    assert style.text_width("12", 14) == pytest.approx(2 * style.text_width("12", 7))


def test_contrast_runs_from_1_to_21():
    assert style.contrast("#000000", "#ffffff") == pytest.approx(21)
    assert style.contrast("#123456", "#123456") == 1
    assert style.contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)  # WCAG's known borderline
    assert (style.text_colour("#ffffff"), style.text_colour("#170f28")) == (style.INK, style.WHITE)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match=naming(str(tmp_path / "file" / "in"))):
        style.save(text_figure("x"), tmp_path / "file" / "in", "x", title="x", identity={})


def test_nothing_but_the_figures_is_left_behind(tmp_path):
    paths = style.save(text_figure("x"), tmp_path, "a.b", title="x", identity={})
    assert [p.name for p in paths] == ["a.b.pdf", "a.b.svg", "a.b.png"]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(p.name for p in paths)


def test_identity_is_in_every_format(tmp_path):
    identity = {"base": {"hash": "00ff", "name": "é & <b>"}, "n": 3, "score": float("nan")}
    formats = ("pdf", "svg", "png", "pgf")
    pdf, svg, png, pgf = style.save(
        text_figure("x"), tmp_path, "x", title="CoLA: é", identity=identity, formats=formats
    )
    expected = json.dumps(
        {"base": {"hash": "00ff", "name": "é & <b>"}, "n": 3, "score": None}, sort_keys=True
    )

    from xml.etree import ElementTree

    from PIL import Image

    with Image.open(png) as image:
        text = image.text
    assert (json.dumps(json.loads(text["Description"])), text["Title"]) == (expected, "CoLA: é")
    dublin_core = "{http://purl.org/dc/elements/1.1/}"
    tree = ElementTree.parse(svg)
    description, title, date = (
        tree.find(f".//{dublin_core}{tag}") for tag in ("description", "title", "date")
    )
    assert (json.dumps(json.loads(description.text)), title.text) == (expected, "CoLA: é")
    assert date is None
    (line,) = [line for line in pgf.read_text("utf-8").splitlines() if line.startswith("% identity: ")]
    assert json.dumps(json.loads(line.removeprefix("% identity: "))) == expected
    assert "% CoLA: é" in pgf.read_text("utf-8")
    info = pdf.read_bytes().split(b"/Subject (")[1].split(b")\n")[0].split(b") /")[0]
    unescaped = info.replace(b"\\\\", b"\\").replace(b"\\(", b"(").replace(b"\\)", b")")
    assert json.dumps(json.loads(unescaped)) == expected
    assert b"CreationDate" not in pdf.read_bytes()
    assert not any(b"tIME" in chunk for chunk in (png.read_bytes(),))


def test_svg_needs_no_font(tmp_path):
    (svg,) = style.save(text_figure("12.5"), tmp_path, "x", title="x", identity={}, formats=("svg",))
    assert b"<text" not in svg.read_bytes()


def test_png_is_as_wide_as_the_figure(tmp_path):
    from PIL import Image

    (png,) = style.save(text_figure("x"), tmp_path, "x", title="x", identity={}, formats=("png",))
    with Image.open(io.BytesIO(png.read_bytes())) as image:
        assert image.size == (2 * style.PNG_DPI, style.PNG_DPI)
        assert image.info["dpi"] == pytest.approx((style.PNG_DPI, style.PNG_DPI), abs=0.1)
