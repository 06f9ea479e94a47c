from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_reader import PageReader
from tiers import slow_unless

from adapter_probe.figures import style
from adapter_probe.figures.report import page as page_module
from adapter_probe.figures.report.ablation_section import ReportedAblation, ablation_study
from adapter_probe.figures.report.markup import json_for_html
from adapter_probe.figures.report.page import map_studies, page_html, write_report
from adapter_probe.studies.comparison import compare
from adapter_probe.studies.load import load
from adapter_probe.wording import RETRAINED

FOLDER = Path(page_module.__file__).parent
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module", params=slow_unless("sweep".__eq__, ["sweep", "tradeoff"]))
def full(request, make_ablation, reported, hostile: str, tmp_path_factory) -> str:
    ablation = reported(make_ablation(n_layers=3, task=hostile, labels=(hostile, "other")))
    write = request.getfixturevalue(f"{request.param}_folder")
    sweep = write(tmp_path_factory.mktemp("sweep") / "s", tasks=(f"m{hostile}",))
    return page_html(map_studies([ablation]), [load(sweep).record])


@given(JSON)
def test_embedded_data_read_back_and_cannot_be_markup(value: object):
    text = json_for_html(value)
    assert json.loads(text) == value
    assert text.isascii()
    assert not set(text) & set("<>&\u2028\u2029")


@pytest.mark.filterwarnings("ignore:Glyph")  # no font of the figures has the names' emoji
def test_hostile_names_change_nothing_of_the_page(full: str, hostile: str):
    document = PageReader(full)
    assert len(document.all("script")) == 2
    data = json.loads(document.blocks["data"])
    assert data["studies"][0]["name"] == " ".join(hostile.split())
    assert data["studies"][0]["confusion"]["names"][0] == hostile


def test_the_policy_lets_this_script_and_style_run_and_nothing_else(full: str):
    document = PageReader(full)
    (policy,) = (a["content"] for a in document.all("meta") if "http-equiv" in a)
    directives = dict(part.split(" ", 1) for part in policy.split("; "))
    for name in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(document.blocks[name].encode()).digest()).decode()
        assert directives.pop(f"{name}-src") == f"'sha256-{digest}'"
    assert directives == {
        "default-src": "'none'", "img-src": "data:", "base-uri": "'none'", "form-action": "'none'",
    }  # fmt: skip


@pytest.mark.slow
def test_studies_of_one_task_have_headings_of_their_own_and_what_they_share_is_said_once(
    make_ablation, reported, sweep_folder, tmp_path: Path
):
    ablations = [reported(make_ablation(n_layers=2, seed=seed)) for seed in (0, 1)]
    sweeps = [load(sweep_folder(tmp_path / name, tasks=("cola",))).record for name in ("one", "two")]
    page = page_html(map_studies(ablations), sweeps)
    headings = re.findall(r"<h2 id=[^>]*>(.*?)</h2>", page)
    assert len(set(headings)) == len(headings) == 4
    assert [heading.split(", ")[-1] for heading in headings[2:]] == ["one", "two"]
    assert html.unescape(page).count(RETRAINED) == 1


def test_each_unit_has_its_own_scale_whatever_stands_beside_it(make_ablation, reported, monkeypatch):
    """Divergences are small and have no gains; a comparison has a scale of its own."""
    seen: dict[str, list] = {}

    def noted(ablation: ReportedAblation, *given):
        seen.setdefault(ablation.record.summary.metric, []).append(given[:2])
        return ablation_study(ablation, *given)

    monkeypatch.setattr(page_module, "ablation_study", noted)
    accuracy = reported(make_ablation(n_layers=3))
    spans = accuracy.record.spans
    spans = spans.assign(delta_points=-spans["delta_points"].abs() / 1e4, interaction_points=1e-5)
    summary = replace(accuracy.record.summary, metric="kl")
    kl = ReportedAblation(replace(accuracy.record, spans=spans, summary=summary))
    comparison = compare(*(load(make_ablation(n_layers=3)) for _ in range(2))).record
    for studies in ([kl], [accuracy], [kl, accuracy], [kl, comparison, accuracy]):
        map_studies(studies)
    assert len(seen["kl"]) == len(seen["accuracy"]) == 3
    for scales in seen.values():
        assert all(one == scales[0] for one in scales)
    (drops, interactions), (of_points, _) = seen["kl"][0], seen["accuracy"][0]
    assert (drops.below, of_points.below) == (False, True)
    assert interactions.edges[-1] < 1e-4
    assert drops.edges[-1] < 0.1


def test_the_page_refers_to_nothing_outside(full: str):
    document = PageReader(full)
    links = [
        value for _, a in document.elements for name, value in a.items() if name in ("src", "href", "srcset")
    ]
    assert {link for link in links if not link.startswith("#")} == {"data:,"}
    sources = document.blocks["script"] + document.blocks["style"]
    assert not re.findall(r"https?://", sources)
    assert not re.search(
        r"url\(|@import|\bfetch\(|XMLHttpRequest|\bimport\(|innerHTML|outerHTML|insertAdjacent", sources
    )


@pytest.mark.slow
def test_equal_results_give_equal_bytes(make_ablation, reported, sweep_folder, tmp_path: Path):
    ablation, sweep = make_ablation(), sweep_folder(tmp_path / "sweep")
    first, second = (
        write_report(tmp_path / name / "report.html", [reported(ablation)], [load(sweep).record])
        for name in ("a", "b")
    )
    assert first.read_bytes() == second.read_bytes()
    assert str(tmp_path.parent) not in first.read_text("utf-8")


@pytest.mark.slow
def test_the_page_stays_light(make_ablation: Callable[..., Path], reported):
    assert len(page_html(map_studies([reported(make_ablation(n_layers=12))])).encode()) < 300_000


def test_control_characters_do_not_reach_the_markup(make_ablation: Callable[..., Path], reported):
    text = page_html(map_studies([reported(make_ablation(n_layers=2, task="a\x1b[31mb\x00\x9b<"))]))
    assert "<title>a?[31mb??&lt;" in text  # ASCII alone
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)


def palette(css: str, dark: bool) -> dict[str, str]:
    blocks = re.findall(r":root \{(.*?)\}", css, flags=re.S)
    found = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", blocks[0]))
    return {**found, **dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", blocks[1]))} if dark else found


@pytest.mark.parametrize("dark", [False, True])
def test_words_stand_out_from_their_ground(dark: bool):
    colours = palette((FOLDER / "page.css").read_text("utf-8"), dark)
    for ground in ("paper", "card"):
        for ink in ("ink", "soft", "accent", "gain"):
            assert style.contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
        assert style.contrast(colours["loss"], colours[ground]) >= 3, ground
    assert style.contrast(colours["accent"], colours["accent-soft"]) >= 4.5


def test_scripts_are_short_ascii_and_all_listed():
    scripts = {path.name: path.read_text("utf-8") for path in FOLDER.glob("*.js")}
    assert all(text in page_html([]) for text in scripts.values())
    assert sum(text.count("\n") for text in scripts.values()) < 500
    for name, text in scripts.items():
        assert text.isascii(), name
        assert text.count("\n") < 300, name
        assert "</" not in text, name


def test_an_empty_page_still_has_a_title():
    assert "<title>adapter-probe · adapter-probe</title>" in html.unescape(page_html([]))
