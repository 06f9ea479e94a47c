"""The page in a real Chromium: pointer, slider, keyboard, address, files, no request, text stays text."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from docs_scripts import module
from matplotlib.colors import to_hex
from matplotlib.image import imread
from rounding import printed

from adapter_probe.figures import style
from adapter_probe.figures.report.examples import ExampleTexts
from adapter_probe.figures.report.page import write_report
from adapter_probe.results.ablation_files import load_ablation, read_spans
from adapter_probe.studies.load import load

if TYPE_CHECKING:
    from conftest import Browser

pytestmark = pytest.mark.slow
N_LAYERS, N_EXAMPLES = 6, 80
ENTER, LEFT, UP, RIGHT, DOWN, END, HOME = "\ue007", "\ue012", "\ue013", "\ue014", "\ue015", "\ue010", "\ue011"


@pytest.fixture(scope="module")
def folder(make_ablation: Callable[..., Path]) -> Path:
    return make_ablation(n_layers=N_LAYERS, n_examples=N_EXAMPLES)


@pytest.fixture(scope="module")
def study(folder: Path, reported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with one full ablation and the texts of its examples, of two kinds."""
    texts = ExampleTexts(
        tuple(f"text {i}." for i in range(N_EXAMPLES)),
        metadata={"kind": tuple("ab"[i % 2] for i in range(N_EXAMPLES))},
    )
    return write_report(tmp_path_factory.mktemp("page") / "report.html", [reported(folder, texts=texts)])


@pytest.fixture(scope="module")
def pair(make_ablation, reported, tmp_path_factory) -> Path:
    """A page with two ablations of the same spans and one of others."""
    folders = [make_ablation(n_layers=n, seed=seed) for n, seed in ((4, 0), (4, 1), (3, 0))]
    return write_report(tmp_path_factory.mktemp("page") / "report.html", [reported(one) for one in folders])


@pytest.fixture(scope="module")
def everything(
    make_ablation, reported, sweep_folder, tradeoff_folder, hostile: str, tmp_path_factory
) -> Path:
    """A page with all there can be, and markup in every text."""
    texts = ExampleTexts(
        tuple(f"{hostile} {i}" for i in range(N_EXAMPLES)), (hostile,) * N_EXAMPLES,
        metadata={hostile: tuple(hostile + "ab"[i % 2] for i in range(N_EXAMPLES))},
    )  # fmt: skip
    one = reported(make_ablation(task=hostile, labels=(hostile, "b")), texts=texts)
    plain = reported(make_ablation(n_layers=3, statistics=False))
    kept = reported(make_ablation(n_layers=4, complement=True))
    place = tmp_path_factory.mktemp("page")
    sweeps = [sweep_folder(place / "a", tasks=(hostile,)), tradeoff_folder(place / "b", tasks=(hostile,))]
    return write_report(place / "report.html", [one, plain, kept], [load(sweep).record for sweep in sweeps])


def cell_number(first: int, last: int) -> int:
    """Which cell of the grid, in the page's order, is the span's."""
    return sum(N_LAYERS - row for row in range(first)) + last - first


def choose(browser: Browser, name: str, value: str) -> None:
    """Choose from a list, or write into a field, as a user does."""
    browser.run(
        "const n = document.querySelector(arguments[0]); n.value = arguments[1];"
        "n.dispatchEvent(new Event('input'))",
        f'[name="{name}"]', value,
    )  # fmt: skip


def test_hovering_tells_a_span_and_leaving_takes_it_back(browser: Browser, study: Path, folder: Path):
    browser.open(study)
    before = browser.text(".span-card")
    browser.point(*browser.place(".cell", cell_number(2, 4)))
    card = browser.text(".span-card")
    row = read_spans(folder).query("first == 2 and last == 4").iloc[0]
    assert "2–4" in browser.text(".span-card h3")
    assert browser.text(".big b") == printed(-row["delta_points"])
    for side in ("low", "high"):
        assert printed(-row[f"ci_{side}_points"]) in browser.text(".interval")
    assert printed(100 * row["score"]) in card
    assert "750 parameters" in card
    visible = "return getComputedStyle(document.querySelector('.pinned')).display !== 'none'"
    assert browser.run(visible) is False
    browser.point(2, 2)
    assert browser.text(".span-card") == before
    assert browser.run(visible) is True


def test_a_click_or_a_tap_keeps_a_span(browser: Browser, study: Path):
    for kind, spot in (("mouse", (0, 3)), ("touch", (1, 5))):
        browser.open(study)
        browser.point(*browser.place(".cell", cell_number(*spot)), kind=kind, press=True)
        browser.point(2, 2)
        assert f"{spot[0]}–{spot[1]}" in browser.text(".span-card h3")
        labels = browser.run(
            "return [...document.querySelectorAll('[aria-selected=true]')].map(n => n.ariaLabel)"
        )
        assert all(f"{spot[0]}–{spot[1]} off" in label for label in labels)


def test_arrow_keys_walk_the_grid_and_enter_keeps(browser: Browser, study: Path):
    browser.open(study)
    focused = "return document.activeElement.getAttribute('aria-label')"
    browser.focus('.cell[tabindex="0"]')
    steps = [
        ((), "Layer 0 "), ((RIGHT, RIGHT, RIGHT), "Layers 0–3 "), ((DOWN, DOWN), "Layers 2–3 "),
        ((DOWN,), "Layer 3 "), ((DOWN, LEFT), "Layer 3 "), ((UP,), "Layers 2–3 "), ((END,), "Layers 2–5 "),
        ((LEFT,), "Layers 2–4 "), ((HOME,), "Layer 2 "),
    ]  # fmt: skip
    for keys, label in steps:
        if keys:
            browser.press(*keys)
        assert browser.run(focused).startswith(label)
        assert label.strip() in browser.text(".span-card h3")
    assert browser.count('.view:not([hidden]) .cell[tabindex="0"]') == 1
    browser.press(ENTER)
    browser.run("document.activeElement.blur()")
    assert "Layer 2 off" in browser.text(".span-card h3")


def test_the_focus_is_framed(browser: Browser, study: Path):
    browser.open(study)
    frame = """const [c, f] = [document.activeElement, document.querySelector(".cursor")];
        return ["x", "y", "width", "height"].every((name) => c.getAttribute(name) === f.getAttribute(name))"""
    browser.focus('.cell[tabindex="0"]')
    assert browser.run(frame) is True
    browser.press(RIGHT)
    assert browser.run(frame) is True


def test_the_other_view_shows_interactions_in_map_and_card(browser: Browser, study: Path, folder: Path):
    browser.open(study)
    values = read_spans(folder)["interaction_points"]
    browser.point(*browser.place(".choice button", 1), press=True)
    shown = "return [...document.querySelectorAll('.map .view')].map((n) => n.dataset.view + n.hidden)"
    assert browser.run(shown) == ["droptrue", "interactionfalse"]
    number = cell_number(1, 3)
    browser.point(*browser.place(".view:not([hidden]) .cell", number))
    assert browser.text(".big b") == printed(values[number])
    assert browser.text(".lead") == "interaction"
    assert browser.run("return document.querySelector('.limit-mark').hidden") is True


def test_the_slider_moves_the_line_and_says_what_can_go(browser: Browser, study: Path):
    browser.open(study)
    steps = browser.run("return JSON.parse(document.getElementById('data').textContent).studies[0].steps")
    browser.focus(".slider input")
    browser.press(HOME)
    for step in steps[:6]:
        assert browser.text(".slider output") == step["words"]
        lines = browser.run("return [...document.querySelectorAll('.limit')].map((n) => n.getAttribute('d'))")
        assert set(lines) == {step["line"]}
        for said, (lead, before, row, name, after) in zip(
            browser.texts(".advised"), step["advice"], strict=True
        ):
            assert said == lead + before + (name if row is not None else "") + after
        browser.press(RIGHT)


def test_the_card_follows_the_slider_until_a_cell_is_chosen(browser: Browser, study: Path):
    browser.open(study)
    data = browser.run("return JSON.parse(document.getElementById('data').textContent).studies[0]")
    browser.focus(".slider input")
    browser.press(END)
    last = data["steps"][-1]
    assert browser.text(".span-card h3") == data["titles"][last["estimate"]]
    browser.point(*browser.place(".cell", 0), press=True)
    browser.point(2, 2)
    assert browser.text(".span-card h3") == data["titles"][0]
    browser.point(*browser.place(".advice .span-link"), press=True)
    assert browser.text(".span-card h3") == data["titles"][last["estimate"]]


def test_the_confusion_matrix_is_that_of_the_span(browser: Browser, study: Path, folder: Path):
    results = load_ablation(folder)
    browser.open(study)
    browser.point(*browser.place(".cell", cell_number(1, 4)), press=True)
    said = results.outputs[results.row_names.index("1-4")].argmax(-1)
    expected = [int(((results.scored_with == i) & (said == j)).sum()) for i in (0, 1) for j in (0, 1)]
    assert [int(text) for text in browser.texts(".of-span .count")] == expected


def test_examples_are_those_that_the_span_changes(browser: Browser, study: Path, folder: Path):
    results = load_ablation(folder)
    right = results.outputs.argmax(-1) == results.scored_with
    intact, now = right[0], right[results.row_names.index("0-5")]
    browser.open(study)
    browser.point(*browser.place(".cell", cell_number(0, 5)), press=True)
    changed = {"wrong": intact & ~now, "right": ~intact & now, "both": intact != now}
    for kind, wanted in changed.items():
        choose(browser, "outcome", kind)
        assert int(browser.text(".examples-card .count")) == wanted.sum()
        assert browser.count(".examples li") == min(20, wanted.sum())
    choose(browser, "outcome", "wrong")
    choose(browser, "by-kind", "1")
    odd = [i for i in np.flatnonzero(changed["wrong"]) if i % 2 == 1]
    assert [int(text[1:]) - 1 for text in browser.texts(".examples button")] == odd[:20]
    choose(browser, "text", f"TEXT {odd[1]}.")
    assert browser.texts(".examples blockquote") == [f"text {odd[1]}."]
    choose(browser, "text", "")
    choose(browser, "by-kind", "")
    choose(browser, "by-label", "0")
    own = [i for i in np.flatnonzero(changed["wrong"]) if results.scored_with[i] == 0]
    assert int(browser.text(".examples-card .count")) == len(own)


def test_examples_are_sorted_by_margin(browser: Browser, study: Path):
    browser.open(study)
    browser.point(*browser.place(".cell", cell_number(0, 5)), press=True)
    choose(browser, "outcome", "all")
    choose(browser, "order", "flips")
    counts = [int(re.search(r"(\d+) of 21", text)[1]) for text in browser.texts(".examples li")]
    assert counts == sorted(counts, reverse=True)
    choose(browser, "order", "margin")
    shown = [text.replace("−", "-") for text in browser.texts(".examples dl div:nth-child(3) dd")]
    margins = [float(re.search(r"\(([+-][\d.]+)\)", text)[1]) for text in shown]
    assert margins == sorted(margins)


def test_the_spans_that_change_one_example_are_marked(browser: Browser, study: Path, folder: Path):
    results = load_ablation(folder)
    right = results.outputs.argmax(-1) == results.scored_with
    browser.open(study)
    browser.point(*browser.place(".cell", cell_number(0, 5)), press=True)
    number = int(browser.text(".examples button")[1:]) - 1
    browser.point(*browser.place(".examples button"), press=True)
    frame = read_spans(folder)
    variants = [results.row_names.index(f"{a}-{b}") for a, b in zip(frame["first"], frame["last"])]
    cells = "[...document.querySelectorAll('.view:not([hidden]) .cell')]"
    marked = browser.run(f"return {cells}.map((n) => n.classList.contains('makes-wrong'))")
    assert marked == [bool(right[0, number] and not right[row, number]) for row in variants]
    browser.point(*browser.place(".examples [aria-pressed=true]"), press=True)
    assert browser.count(".makes-wrong") == 0


def test_the_address_brings_back_what_was_seen(browser: Browser, study: Path):
    browser.open(study)
    browser.point(*browser.place(".choice button", 1), press=True)
    browser.point(*browser.place(".view:not([hidden]) .cell", cell_number(2, 4)), press=True)
    browser.focus(".slider input")
    browser.press(RIGHT)
    choose(browser, "outcome", "both")
    choose(browser, "text", "text")
    browser.point(*browser.place(".examples button"), press=True)
    browser.point(2, 2)
    seen = """const texts = [".span-card h3", ".slider output", ".examples-card"];
        const marks = document.querySelectorAll("[hidden].view, .makes-wrong, .makes-right").length;
        return [...texts.map((css) => document.querySelector(css).innerText), marks, location.hash]"""
    before = browser.run(seen)
    assert browser.run("return document.querySelector('.here').hash === location.hash") is True
    browser.ask("/url", {"url": "about:blank"})
    browser.ask("/url", {"url": study.as_uri() + before[-1]})
    assert browser.run(seen) == before


def test_a_map_can_be_saved(browser: Browser, study: Path, folder: Path, tmp_path: Path):
    import io
    import time
    from xml.etree import ElementTree

    import pandas as pd

    browser.open(study)
    browser.devtools("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    for number in range(3):
        browser.point(*browser.place("[data-save]", number), press=True)
    deadline = time.monotonic() + 30
    while len(files := [p for p in tmp_path.iterdir() if p.suffix in (".csv", ".svg", ".png")]) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    files = {path.suffix: path for path in files}
    frame = pd.read_csv(io.StringIO(files[".csv"].read_text()))
    np.testing.assert_allclose(frame["delta_points"], read_spans(folder)["delta_points"], rtol=1e-9)
    root = ElementTree.parse(files[".svg"]).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert not [node for node in root.iter() if node.get("class") == "cell"]
    assert files[".png"].read_bytes().startswith(b"\x89PNG")
    assert browser.logs("browser") == []


def test_studies_of_the_same_spans_are_looked_at_together(browser: Browser, pair: Path):
    browser.open(pair, width=1500)
    boxes = browser.run(
        "const boxes = [...document.querySelectorAll('.study')].map((n) => n.getBoundingClientRect());"
        "return boxes.map((box) => [box.x, box.y])"
    )
    assert boxes[0][1] == boxes[1][1], "side by side"
    assert boxes[0][0] < boxes[1][0]
    browser.point(*browser.place(".cell", 1))
    titles = browser.texts(".span-card h3")
    assert titles[0] == titles[1] != titles[2]
    browser.point(*browser.place(".choice button", 1), press=True)
    shown = (
        "return [...document.querySelectorAll('.view:not([hidden])[data-view]')].map((n) => n.dataset.view)"
    )
    assert [name for name in browser.run(shown) if name] == ["interaction", "interaction", "drop"]
    browser.focus(".slider input")
    browser.press(END)
    words = browser.texts(".slider output")
    assert words[0] == words[1]


def test_runs_can_be_filtered_and_pointed_at(browser: Browser, everything: Path):
    browser.open(everything)
    sweep = '[data-sweep="1"]'
    points, rows = (f"{sweep} circle.run:not([hidden])", f"{sweep} tr.run:not([hidden])")
    n = browser.count(points)
    assert n == browser.count(rows) == 100
    seeds = browser.run(
        f"return [...document.querySelectorAll('{sweep} [name=seed] option')].map((n) => n.value)"
    )
    script = f"""const n = document.querySelector('{sweep} [name=seed]'); n.value = arguments[0];
        n.dispatchEvent(new Event("input"))"""
    counts = []
    for seed in seeds[1:]:
        browser.run(script, seed)
        assert browser.count(points) == browser.count(rows) == int(browser.text(f"{sweep} .count"))
        counts.append(browser.count(points))
    assert sum(counts) == 100
    kept = browser.run("return location.hash")
    browser.ask("/url", {"url": "about:blank"})
    browser.ask("/url", {"url": everything.as_uri() + kept})
    assert browser.run(f"return document.querySelector('{sweep} [name=seed]').value") == seeds[-1]
    assert browser.count(points) == browser.count(rows) == counts[-1]
    browser.open(everything)
    assert browser.count(points) == 100
    browser.focus(f"{sweep} circle.run:not([hidden])")
    label = browser.run("return document.activeElement.getAttribute('aria-label')")
    assert browser.text(f"{sweep} .readout") == label


def test_text_stays_text(browser: Browser, everything: Path, hostile: str):
    browser.open(everything)
    browser.point(*browser.place(".cell", cell_number(0, 5)), press=True)
    assert browser.text("h2") == " ".join(hostile.split())
    assert browser.text(".examples blockquote").startswith(hostile)
    assert browser.text(".second") == hostile
    assert hostile in browser.text('[name="by-label"]')
    assert browser.count("script") == 2
    comments = "return document.createNodeIterator(document, NodeFilter.SHOW_COMMENT).nextNode()"
    assert browser.run(comments) is None
    with pytest.raises(AssertionError, match="no such alert"):
        browser.ask("/alert/accept")


def test_the_console_is_quiet_and_no_request_leaves(browser: Browser, everything: Path):
    browser.open(everything)
    for number in range(5):
        browser.point(*browser.place(".cell", number), press=True)
    browser.run("for (const d of document.querySelectorAll('details')) d.open = true")
    assert browser.logs("browser") == []
    assert {url.partition("#")[0] for url in browser.requests() if not url.startswith("data:")} == {
        everything.as_uri()
    }


def test_a_request_would_be_seen(browser: Browser, tmp_path: Path):
    page = tmp_path / "leaky.html"
    page.write_text("<!doctype html><img src='http://127.0.0.1:9/x.png'><script>nonsense()</script>")
    browser.open(page)
    assert "http://127.0.0.1:9/x.png" in browser.requests()
    assert any("nonsense" in entry["message"] for entry in browser.logs("browser"))


def test_the_policy_stops_requests_and_foreign_script(browser: Browser, study: Path):
    browser.open(study)
    refused = """const seen = [];
        document.addEventListener("securitypolicyviolation", (e) => seen.push(e.effectiveDirective));
        const image = new Image();
        image.src = "http://127.0.0.1:9/x.png";
        const script = document.createElement("script");
        script.textContent = "window.ran = true";
        document.body.append(image, script);
        return fetch("http://127.0.0.1:9/").then(() => ["fetched"], () => new Promise((done) =>
            setTimeout(() => done([...seen, String(window.ran)]), 200)));"""
    assert sorted(browser.run(refused)) == ["connect-src", "img-src", "script-src-elem", "undefined"]


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_sticks_out_of_the_window(browser: Browser, everything: Path, width: int):
    browser.open(everything, width=width, height=800)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    shown = """return [...document.querySelectorAll(".drawn svg")].map((n) => n.getBoundingClientRect())
        .filter((box) => box.width).map((box) => box.right)"""
    ends = browser.run(shown)
    assert len(ends) == browser.count(".drawn")  # each figure once, in the form for this width
    assert width > 700 or max(ends) <= width


def test_a_mean_lies_above_its_runs_which_can_still_be_pointed_at(browser: Browser, everything: Path):
    browser.open(everything)
    x, y = browser.place('[data-sweep="1"] circle.run.chosen')
    assert browser.run(f"return document.elementFromPoint({x}, {y}).matches('circle.run')")
    order = """return document.querySelector('[data-sweep="1"] svg').firstElementChild.matches('.runs')"""
    assert browser.run(order)


def test_a_phone_has_large_cells_below_the_slider_and_above_the_card(browser: Browser, study: Path):
    browser.open(study, width=360, height=800)
    sizes = "return [...document.querySelectorAll('.cell')].map((n) => n.getBoundingClientRect().width)"
    assert min(width for width in browser.run(sizes) if width) >= 40
    tops = """return [".control", ".map", ".span-card"].map(
        (css) => document.querySelector(css).getBoundingClientRect().top)"""
    assert browser.run(tops) == sorted(browser.run(tops))


def test_dark_mode_also_of_the_drawings(browser: Browser, study: Path):
    def bright(css: str, name: str) -> int:
        script = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
        return sum(int(n) for n in re.findall(r"\d+", browser.run(script, css, name))[:3])

    for scheme, ground in (("light", True), ("dark", False)):
        browser.open(study, prefers_color_scheme=scheme)
        assert (bright("body", "backgroundColor") > 600) == ground
        assert (bright('.figure [fill="#fffffe"]', "fill") > 600) == ground
        assert (bright('.figure [stroke="#000001"]', "stroke") < 150) == ground
        # The style sheet does not reach into what a use shows, so nothing there has a colour of its own.
        assert not browser.count(".figure defs > path[stroke], .figure defs > path[fill]")


def test_lines_of_every_colour_stand_out_in_the_dark(browser: Browser, tmp_path: Path):
    """By the pixels of the page: each colour, on the ground of its figure and of the card around it."""
    RESULTS = module("gallery_results")
    RESULTS.write(tmp_path, ("ranks-layers", "tradeoff-two-tasks"))
    records = [load(tmp_path / name).record for name in ("ranks-layers", "tradeoff-two-tasks")]
    browser.open(write_report(tmp_path / "lines.html", [], records), prefers_color_scheme="dark")
    named = (
        "return [...new Set([...document.querySelectorAll('.lines svg [stroke^=\"#\"]')].map("
        "(n) => n.getAttribute('stroke')))]"
    )
    paint = """const svg = document.querySelector(".lines svg"), box = svg.getBoundingClientRect();
        const rect = document.createElementNS(svg.namespaceURI, "rect");
        for (const [name, value] of [["width", "100%"], ["height", "100%"], ["fill", arguments[0]]])
            rect.setAttribute(name, value);
        svg.append(rect);
        return [box.x + scrollX, box.y + scrollY];"""

    def pixel(x: float, y: float) -> str:
        clip = {"x": x, "y": y, "width": 1, "height": 1, "scale": 1}
        png = browser.devtools("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
        return to_hex(imread(io.BytesIO(base64.b64decode(png)))[0, 0, :3])

    colours = [one for one in browser.run(named) if one not in ("#e4e4e4", "#fffffe")]  # grid lines, ground
    assert len(colours) > 8
    for colour in ["#fffffe", *colours]:
        x, y = browser.run(paint, colour)
        card, seen = pixel(x - 8, y + 20), pixel(x + 20, y + 20)
        if colour == "#fffffe":
            assert style.contrast(seen, card) < 1.05, seen
        else:
            assert style.contrast(seen, card) > 1.8, (colour, seen)


def test_every_figure_has_words_and_every_field_its_label(browser: Browser, everything: Path):
    browser.open(everything)
    assert browser.count("svg") > 8
    assert browser.count("svg:not([aria-label])") == 0
    assert browser.count("[role=gridcell]:not([aria-label]), [role=option]:not([aria-label])") == 0
    fields = "return [...document.querySelectorAll('input, select')].map((n) => n.labels.length)"
    assert set(browser.run(fields)) == {1}


def test_printing_opens_the_tables_and_needs_few_pages(browser: Browser, study: Path):
    browser.open(study)
    opened = "return document.querySelectorAll('details[open]').length"
    assert browser.run("dispatchEvent(new Event('beforeprint')); " + opened) == 3
    assert browser.run("dispatchEvent(new Event('afterprint')); " + opened) == 0
    pdf = base64.b64decode(browser.devtools("Page.printToPDF", preferCSSPageSize=True)["data"])
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 4


def test_spans_in_a_line_are_chosen_by_the_arrows(browser: Browser, make_ablation, reported, tmp_path: Path):
    from adapter_probe.results.ablation_files import write_spans

    folder = make_ablation(n_layers=N_LAYERS)
    frame = read_spans(folder)
    write_spans(folder, frame[frame["last"] == N_LAYERS - 1].reset_index(drop=True))
    browser.open(write_report(tmp_path / "report.html", [reported(folder)]))
    browser.focus('.cell[tabindex="0"]')
    browser.press(END, LEFT, ENTER)
    browser.run("document.activeElement.blur()")
    assert f"{N_LAYERS - 2}–{N_LAYERS - 1}" in browser.text(".span-card h3")
    assert browser.logs("browser") == []


def test_questions_show_their_answers(browser: Browser, questions, reported, tmp_path: Path):
    folder, texts = questions
    browser.open(write_report(tmp_path / "report.html", [reported(folder, texts=texts)]))
    number = int(browser.text(".examples button")[1:]) - 1
    assert browser.text(".examples blockquote").startswith(texts.texts[number])
    assert browser.text(".examples dd") == texts.truths[number]
    assert texts.texts_b[number] in browser.text("details.second")
    assert browser.logs("browser") == []
