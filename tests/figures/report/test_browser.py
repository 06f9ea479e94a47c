"""The page in a real Chromium: pointer, slider, keyboard, quiet console, no request, text that stays text."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from adapter_probe.analysis.deltas import drop_points
from adapter_probe.analysis.summary import span_summary
from adapter_probe.figures.levels import DropScale
from adapter_probe.figures.report.changed_examples import ExampleTexts
from adapter_probe.figures.report.page import write_report
from adapter_probe.metrics import metric_label, score
from adapter_probe.results.ablation_files import read_spans, write_spans
from adapter_probe.studies.loading import load
from adapter_probe.wording import cell_text

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
    """A page with one full ablation and no texts."""
    ablation = reported(folder, checkpoint={"method": {"size": 8}})
    return write_report(tmp_path_factory.mktemp("page") / "report.html", [ablation])


@pytest.fixture(scope="module")
def everything(
    make_ablation, reported, sweep_folder, tradeoff_folder, hostile: str, tmp_path_factory
) -> Path:
    """A page with all there can be, and markup in every text."""
    texts = ExampleTexts(tuple(f"{hostile} {i}" for i in range(N_EXAMPLES)), (hostile,) * N_EXAMPLES)
    one = reported(make_ablation(task=hostile, labels=(hostile, "b")), texts=texts)
    plain = reported(make_ablation(n_layers=3, statistics=False))
    kept = reported(make_ablation(n_layers=4, complement=True))
    place = tmp_path_factory.mktemp("page")
    sweeps = [sweep_folder(place / "a", tasks=(hostile,)), tradeoff_folder(place / "b", tasks=(hostile,))]
    return write_report(place / "report.html", [one, plain, kept], [load(sweep).record for sweep in sweeps])


def cell_number(first: int, last: int) -> int:
    """Which cell of the grid, in the page's order, is the span's."""
    return sum(N_LAYERS - row for row in range(first)) + last - first


def points(tolerance: float) -> str:
    return f"{tolerance:g} point{'' if tolerance == 1 else 's'}"


def name_of(span: dict) -> str:
    return f"layer {span['first']}" if span["n_layers"] == 1 else f"layers {span['first']}–{span['last']}"


def slide_to(browser: Browser, words: str) -> None:
    """Move the slider by the keyboard, from its least value, until it says the words."""
    browser.focus(".slider input")
    browser.press(HOME)
    for _ in range(200):
        if browser.text(".slider output") == words:
            return
        browser.press(RIGHT)
    raise AssertionError(f"the slider never says {words!r}")


def test_hovering_tells_a_span_and_leaving_takes_it_back(browser: Browser, study: Path, folder: Path):
    browser.open(study)
    before = browser.text(".span-card")
    assert "selected span" in before
    browser.point(*browser.place(".cell", cell_number(2, 4)))
    card = browser.text(".span-card")
    row = read_spans(folder).query("first == 2 and last == 4").iloc[0]
    assert "span in focus" in card
    assert "Layers 2–4 off" in card
    assert f"{row['delta_points']:+.1f} points".replace("-", "−") in card
    assert f"{100 * row['score']:.1f} %" in card
    low, high = (f"{row[f'ci_{side}_points']:+.1f}".replace("-", "−") for side in ("low", "high"))
    assert f"{low} to {high} points" in card
    assert "Holm-corrected over 21 spans" in card
    assert re.search(r"\d+ turn wrong, \d+ turn right", card)
    assert "750 parameters" in card
    assert "Layers 2–4 off" in browser.text(".heatmap .corner-title").capitalize()
    browser.point(2, 2)
    assert browser.text(".span-card") == before


def test_a_click_or_a_tap_keeps_a_span(browser: Browser, study: Path):
    for kind, spot in (("mouse", (0, 3)), ("touch", (1, 5))):
        browser.open(study)
        browser.point(*browser.place(".cell", cell_number(*spot)), kind=kind, press=True)
        browser.point(2, 2)
        assert f"selected spanLayers {spot[0]}–{spot[1]} off" in browser.text(".span-card")
        selected = "return [...document.querySelectorAll('[aria-selected=true]')].map(n => n.ariaLabel)"
        (label,) = browser.run(selected)
        assert label.startswith(f"Layers {spot[0]} to {spot[1]}".replace(" to ", "–"))


def test_arrow_keys_walk_the_grid_and_enter_keeps(browser: Browser, study: Path):
    browser.open(study)
    focused = "return document.activeElement.getAttribute('aria-label')"
    browser.focus('.cell[tabindex="0"]')
    steps = [
        ((), "Layer 0 "),
        ((RIGHT, RIGHT, RIGHT), "Layers 0–3 "),
        ((DOWN, DOWN), "Layers 2–3 "),
        ((DOWN,), "Layer 3 "),
        ((DOWN, LEFT), "Layer 3 "),
        ((UP,), "Layers 2–3 "),
        ((END,), "Layers 2–5 "),
        ((LEFT,), "Layers 2–4 "),
        ((HOME,), "Layer 2 "),
    ]
    for keys, label in steps:
        if keys:
            browser.press(*keys)
        assert browser.run(focused).startswith(label)
        assert label.strip() in browser.text(".span-card h3")
    assert browser.count('.cell[tabindex="0"]') == 1
    browser.press(ENTER)
    browser.run("document.activeElement.blur()")
    assert "selected spanLayer 2 off" in browser.text(".span-card")


def test_focus_is_seen(browser: Browser, study: Path):
    browser.open(study)
    browser.focus(".slider input")
    browser.press(RIGHT)
    look = "const s = getComputedStyle(arguments[0]); return [s.outlineStyle, parseFloat(s.outlineWidth)]"
    script = f"return (function () {{ {look} }})(document.activeElement)"
    style, width = browser.run(script)
    assert style == "solid"
    assert width >= 2
    browser.focus(".cell")
    place = "const c = document.querySelector('.cursor'); return [c.getAttribute('x'), c.getAttribute('y')]"
    assert browser.run(place) == ["0", "0"]
    browser.press(RIGHT)
    assert browser.run(place) == ["40", "0"]


@pytest.mark.parametrize("tolerance", [0, 0.5, 1, 2, 5])
def test_the_slider_moves_the_staircase(browser: Browser, study: Path, tolerance: float):
    browser.open(study)
    slide_to(browser, points(tolerance))
    path = browser.run("return document.querySelector('.stairs:not(.halo)').getAttribute('d')")
    steps = browser.run("return JSON.parse(document.getElementById('data').textContent).ablations[0].steps")
    assert [path] == [step["stairs"] for step in steps if step["tolerance"] == tolerance]


@pytest.mark.parametrize("tolerance", [0, 0.5, 1, 2, 5])
def test_the_slider_says_what_can_go(browser: Browser, study: Path, folder: Path, tolerance: float):
    frame = read_spans(folder)
    browser.open(study)
    slide_to(browser, points(tolerance))
    bound = frame.assign(delta_points=frame["ci_low_points"])
    for table, lead in ((frame, "By the estimate"), (bound, "By the 95 % interval")):
        span = span_summary(table, "ablated", [tolerance])["longest_removable"][f"{tolerance:g}"]
        (said,) = (line for line in browser.texts(".advice p") if line.startswith(lead))
        if span is None:
            limit = points(tolerance)
            assert said.endswith(f"no span can be removed within {limit}.")
        else:
            n, limit = span["n_layers"], points(tolerance)
            words = f"{n} of 6 layers, {250 * n:,} of 1,500 adapter"
            assert f"{name_of(span)} can be removed within {limit}: {words}" in said
    within = (drop_points(frame["delta_points"]) <= tolerance).sum()
    assert (
        f"{within} of 21 spans {'is' if within == 1 else 'are'} within {points(tolerance)}."
        in browser.text(".advice")
    )


def test_the_advice_leads_to_its_span(browser: Browser, study: Path, folder: Path):
    browser.open(study)
    slide_to(browser, "5 points")
    span = span_summary(read_spans(folder), "ablated", [5.0])["longest_removable"]["5"]
    name = f"{span['first']}–{span['last']}"
    assert f"Layers {name} off" in browser.text(".span-card"), (
        "the card follows the slider until a cell is chosen"
    )
    browser.point(*browser.place(".cell", 0), press=True)
    browser.point(2, 2)
    assert "Layer 0 off" in browser.text(".span-card")
    browser.point(*browser.place(".advice .span-link"), press=True)
    assert f"Layers {name} off" in browser.text(".span-card")


def test_cells_have_the_colours_of_the_figures(browser: Browser, study: Path, folder: Path):
    browser.open(study)
    drops = drop_points(read_spans(folder)["delta_points"])
    shown = browser.run("return [...document.querySelectorAll('.box')].map(n => n.style.fill)")
    as_hex = ["#" + "".join(f"{int(n):02x}" for n in re.findall(r"\d+", colour)) for colour in shown]
    assert as_hex == DropScale.spanning(drops).colours(drops)


def test_cells_have_the_numbers_of_the_figures(browser: Browser, study: Path, folder: Path):
    browser.open(study)
    drops = drop_points(read_spans(folder)["delta_points"])
    assert (abs(10 * drops) % 1 == 0.5).any(), "some should be halfway between two tenths"
    assert browser.texts(".cell .value") == [cell_text(drop) for drop in drops]


def test_the_other_view_shows_interactions(browser: Browser, study: Path, folder: Path):
    browser.open(study)
    values = read_spans(folder)["interaction_points"]
    browser.point(*browser.place(".map .choice button", 1), press=True)
    assert browser.text(".map [aria-pressed=true]") == "interaction"
    shown = browser.run("return [...document.querySelectorAll('.cell .value')].map(n => n.textContent)")
    assert [float(value.replace("−", "-")) for value in shown] == pytest.approx(values.tolist(), abs=0.5)
    assert "interaction" in browser.text(".bars")


def test_the_layers_have_their_figure_and_table(browser: Browser, study: Path):
    browser.open(study)
    widths = "return [...document.querySelectorAll('.drawn img')].map((n) => n.naturalWidth)"
    (width,) = browser.run(widths)
    assert width > 300, "the image is drawn"
    assert "Bars: each layer's share" in browser.text(".drawn figcaption")
    assert browser.text("tbody tr:nth-child(4)").startswith("3")


def test_examples_that_flip_are_those_of_the_span(browser: Browser, everything: Path):
    browser.open(everything)
    browser.point(*browser.place(".cell", cell_number(0, 5)), press=True)
    wrong, right = (
        int(n) for n in re.search(r"(\d+) turn wrong, (\d+) turn right", browser.text(".span-card")).groups()
    )
    card = browser.text(".examples-card")
    assert f"turn wrong ({wrong})" in card
    assert f"turn right ({right})" in card
    assert browser.count(".examples li") == min(20, wrong)
    assert wrong > 20
    browser.point(*browser.place(".more"), press=True)
    assert browser.count(".examples li") == wrong
    browser.point(*browser.place(".examples-card .choice button", 1), press=True)
    assert browser.count(".examples li") == right


def test_questions_show_their_answers(browser: Browser, questions, reported, tmp_path: Path):
    folder, texts = questions
    page = write_report(tmp_path / "report.html", [reported(folder, texts=texts)])
    browser.open(page)
    assert "by exact match" in browser.text(".span-card")
    asked, note = browser.text(".examples blockquote"), browser.text(".examples .note")
    number = int(re.match(r"#(\d+) the answer is ", note)[1]) - 1
    assert asked == f"{texts.texts[number]}context{texts.texts_b[number]}"
    said = rf"#{number + 1} the answer is {texts.truths[number]}. Intact: (\w+|—). Now: (\w+|—) ✗"
    assert re.fullmatch(said, note)
    assert browser.logs("browser") == []


def test_sweeps_show_their_figures_and_every_run(browser: Browser, everything: Path):
    browser.open(everything)
    sizes = (
        "return [...document.querySelectorAll('.drawn img')].map((n) => [n.complete, n.naturalWidth, n.alt])"
    )
    images = browser.run(sizes)
    assert len(images) == 5  # two grids' layers, a sweep, a trade-off and its sizes
    assert all(done and width > 200 and words for done, width, words in images)
    summaries = browser.texts(".study:last-of-type summary")
    assert [words for words in summaries if "runs" in words] == ["100 runs as a table"]
    runs = browser.texts(".study:nth-last-of-type(2) details.numbers:nth-of-type(2) tbody tr")
    assert len(runs) == 24
    assert sum("—" in row for row in runs) == 2


def test_text_stays_text(browser: Browser, everything: Path, hostile: str):
    browser.open(everything)
    browser.point(*browser.place(".cell", cell_number(0, 5)), press=True)
    assert browser.text("h2") == hostile
    assert browser.run("return document.title").startswith(hostile)
    assert browser.text(".examples blockquote").startswith(hostile)
    assert browser.text(".second") == hostile
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
    assert {url for url in browser.requests() if not url.startswith("data:")} == {everything.as_uri()}


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


def test_a_phone_has_legible_cells_below_the_slider_and_above_the_card(browser: Browser, study: Path):
    browser.open(study, width=360, height=800)
    heights = """return Array.from(document.querySelectorAll(".cell .value"),
        (node) => node.getBoundingClientRect().height)"""
    assert min(browser.run(heights)) >= 9
    tops = """return [".control", ".map", ".span-card"].map(
        (css) => document.querySelector(css).getBoundingClientRect().top)"""
    assert browser.run(tops) == sorted(browser.run(tops))


def test_dark_mode(browser: Browser, study: Path):
    def ground() -> int:
        colour = browser.run("return getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    browser.open(study, prefers_color_scheme="light")
    assert ground() > 600
    browser.open(study, prefers_color_scheme="dark")
    assert ground() < 150


@pytest.mark.parametrize(("wish", "moves"), [("reduce", False), ("no-preference", True)])
def test_motion_is_optional(browser: Browser, study: Path, wish: str, moves: bool):
    browser.open(study, prefers_reduced_motion=wish)
    duration = browser.run("return getComputedStyle(document.querySelector('.box')).transitionDuration")
    assert (duration != "0s") == moves


def test_every_figure_has_words_and_a_table(browser: Browser, everything: Path):
    browser.open(everything)
    figures = browser.count("svg, img")
    silent = browser.count("svg:not([aria-label]):not([aria-hidden=true]), img:not([alt])")
    assert (figures > 10, silent) == (True, 0)
    assert browser.count("[role=gridcell]:not([aria-label]), [role=img]:not([aria-label])") == 0
    tables = """return Array.from(document.querySelectorAll("details.numbers"),
        (details) => details.querySelectorAll("tbody tr").length)"""
    # layers and spans of three grids; points and runs of a sweep; the tables of a trade-off
    assert browser.run(tables) == [6, 21, 3, 6, 4, 10, 8, 24, 25, 25, 10, 100]
    assert (
        browser.run("return Array.from(document.querySelectorAll('input'), (n) => n.labels.length)")
        == [1] * 3
    )


def test_printing_opens_the_tables(browser: Browser, study: Path):
    browser.open(study)
    opened = "return document.querySelectorAll('details[open]').length"
    assert browser.run("dispatchEvent(new Event('beforeprint')); " + opened) == 3
    assert browser.run("dispatchEvent(new Event('afterprint')); " + opened) == 0


def test_spans_that_were_kept_read_as_such(browser: Browser, make_ablation, reported, tmp_path: Path):
    folder = make_ablation(n_layers=N_LAYERS, complement=True)
    browser.open(write_report(tmp_path / "report.html", [reported(folder)], tolerance=5.0))
    span = span_summary(read_spans(folder), "kept", [5.0])["shortest_sufficient"]["5"]
    words = f"By the estimate, the adapters of {name_of(span)} alone suffice within 5 points"
    assert words in browser.text(".advice")
    assert "alone" in browser.text(".span-card h3")


def test_a_gain_at_the_worst_is_said_as_a_gain(browser: Browser, make_ablation, reported, tmp_path: Path):
    folder = make_ablation(n_layers=2)
    frame = read_spans(folder)
    frame["delta_points"], frame["ci_low_points"], frame["ci_high_points"] = 1.0, 0.4, 1.6
    write_spans(folder, frame)
    browser.open(write_report(tmp_path / "report.html", [reported(folder)]))
    assert "500 of 500 adapter parameters (100 %), at worst +0.4 points." in browser.text(".advice")


@pytest.mark.parametrize("order", ["prefix", "suffix", "apart"])
def test_spans_in_a_line_are_marks_of_a_curve(
    browser: Browser, make_ablation, reported, order, tmp_path: Path
):
    folder = make_ablation(n_layers=N_LAYERS)
    frame = read_spans(folder)
    chosen = {
        "prefix": frame["first"] == 0,
        "suffix": frame["last"] == N_LAYERS - 1,
        "apart": frame["n_layers"] == 1,
    }
    frame = frame[chosen[order]].reset_index(drop=True)
    write_spans(folder, frame)
    browser.open(write_report(tmp_path / "report.html", [reported(folder)]))
    places = "[m.cx, m.cy].map((place) => place.baseVal.value)"
    marks = f"return [...document.querySelectorAll('.curve .mark')].map((m) => {places})"
    x, y = np.array(browser.run(marks)).T
    assert len(x) == N_LAYERS
    np.testing.assert_allclose(np.diff(x), np.diff(x)[0], rtol=1e-5)
    slope, at_zero = np.polyfit(drop_points(frame["delta_points"]), y, 1)  # a straight scale, a loss upwards
    np.testing.assert_allclose(slope * drop_points(frame["delta_points"]) + at_zero, y, atol=1e-3)
    assert slope < 0
    assert browser.count(".curve .hollow") == (~frame["significant"]).sum()
    assert (browser.count(".curve .band"), browser.count(".curve .on-curve")) == (
        (0, 1) if order == "apart" else (1, 0)
    )
    browser.focus('.cell[tabindex="0"]')
    browser.press(END, LEFT, ENTER)
    browser.run("document.activeElement.blur()")
    row = frame.iloc[-2]
    assert name_of(row).capitalize() in browser.text(".span-card h3")
    assert browser.count(".bars") == 0
    assert browser.logs("browser") == []


@pytest.fixture
def suffixes(make_ablation) -> Path:
    """An ablation whose spans all end at the last layer."""
    folder = make_ablation(n_layers=N_LAYERS)
    frame = read_spans(folder)
    write_spans(folder, frame[frame["last"] == N_LAYERS - 1].reset_index(drop=True))
    return folder


def without(folder: Path, layers: list[int]) -> None:
    """Leave the spans from these layers on undefined."""
    frame = read_spans(folder)
    numbers = ["score", "delta_points", "ci_low_points", "ci_high_points", "p_value", "p_holm"]
    frame.loc[frame["first"].isin(layers), numbers] = np.nan
    write_spans(folder, frame.assign(significant=frame["significant"] & frame["p_holm"].notna()))


def test_the_dashes_stand_at_every_tolerance(browser: Browser, suffixes: Path, reported, tmp_path: Path):
    frame = read_spans(suffixes)
    frame["delta_points"] *= 0.3 / drop_points(frame["delta_points"]).max()
    frame["ci_low_points"] = frame["ci_high_points"] = frame["delta_points"]
    write_spans(suffixes, frame)  # so that the slider goes on above the largest drop and where it starts
    browser.open(write_report(tmp_path / "report.html", [reported(suffixes)], tolerance=0.25))
    places = "return [...document.querySelectorAll('.curve .mark')].map((m) => m.cy.baseVal.value)"
    slope, at_zero = np.polyfit(drop_points(frame["delta_points"]), browser.run(places), 1)
    steps = browser.run("return JSON.parse(document.getElementById('data').textContent).ablations[0].steps")
    for tolerance in (steps[0]["tolerance"], steps[-1]["tolerance"]):
        browser.focus(".slider input")
        browser.press(END if tolerance else HOME)
        dashes = browser.run("return document.querySelector('.limit-line').getAttribute('d')")
        height = float(re.fullmatch(r"M0 ([\d.]+)H\d+", dashes)[1])
        assert height == pytest.approx(slope * tolerance + at_zero, abs=1e-3)
        assert height >= 0
    assert "tolerated drop" in browser.text(".legend")


@pytest.mark.parametrize("undefined", [[2], [0, 3], [1, 3, 5]])
def test_a_curve_has_gaps_at_undefined_spans(browser: Browser, suffixes, reported, undefined, tmp_path: Path):
    without(suffixes, undefined)
    browser.open(write_report(tmp_path / "report.html", [reported(suffixes)]))
    there = "".join(" " if layer in undefined else "x" for layer in range(N_LAYERS)).split()
    lengths = """return ["curve-line", "band"].map((kind) => document.querySelector(`.curve .${kind}`)
        .getAttribute("d").split("M").slice(1).map((part) => part.split("L").length))"""
    line, band = browser.run(lengths)
    assert line == [len(run) for run in there]
    assert band == [2 * len(run) for run in there]
    assert browser.count(".curve .mark.undefined") == len(undefined)
    assert "undefined" in browser.text(".legend")


@pytest.mark.parametrize("what", ["everything", "intervals"])
def test_what_a_curve_lacks_leaves_nothing_behind(browser: Browser, suffixes, reported, what, tmp_path: Path):
    if what == "everything":
        without(suffixes, list(range(N_LAYERS)))
    else:
        bare = read_spans(suffixes).drop(columns=["ci_low_points", "ci_high_points"])
        write_spans(suffixes, bare)
    browser.open(write_report(tmp_path / "report.html", [reported(suffixes)]))
    stray = """return [...document.querySelectorAll(".curve g")].flatMap((group) => [...group.childNodes])
        .filter((node) => node.nodeType === Node.TEXT_NODE).length"""
    assert browser.run(stray) == 0
    assert browser.count(".curve .band") == 0
    assert browser.count(".curve .curve-line") == (what == "intervals")
    assert browser.logs("browser") == []
    undefined = ["undefined"] if what == "everything" else []
    assert browser.texts(".legend li") == ["tolerated drop", *undefined]


@pytest.mark.parametrize(("metric", "unit"), [("nll", " nats"), ("perplexity", "")])
def test_a_loss_rises_in_its_own_unit(browser: Browser, make_loss, reported, metric, unit, tmp_path: Path):
    ablation = reported(make_loss(metric))
    browser.open(write_report(tmp_path / "report.html", [ablation]))
    spans, results = ablation.record.spans, ablation.results
    scores = score(metric, results.predictions, results.labels)
    rises = scores[1:] - scores[0]
    for number in (0, len(rises) - 1):
        browser.point(*browser.place(".cell", number))
        assert browser.text(".span-card .big") == f"{rises[number]:+.3f}{unit}"
        row = spans.iloc[number]
        low, high = (f"{-row[name] / 100:+.3f}" for name in ("ci_high_points", "ci_low_points"))
        assert f"{low} to {high}{unit}".replace("-", "−") in browser.text(".span-card")
        assert f"score{scores[number + 1]:.3f}{unit}intact {scores[0]:.3f}{unit}" in browser.text(
            ".span-card"
        )
    assert f"rise in {metric_label(metric)} (0.01{unit})" in browser.text(".bars")
    assert f"within 0.01{unit}." in browser.text(".advice")
    script = (
        "return document.body.innerText + [...document.querySelectorAll('details')].map((d) => d.textContent)"
    )
    assert not re.search(r"\bdrop|\bpoints?\b", browser.run(script))
    assert browser.logs("browser") == []
