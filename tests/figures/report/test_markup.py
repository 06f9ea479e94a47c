from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_reader import PageReader

from adapter_probe.figures.report.markup import Numbers, render, settings, short_name

# Without control characters, and without noncharacters such as U+FFFE (among "Cn"), whose references Python's
# own reader of HTML drops.
WRITABLE = st.text(st.characters(exclude_categories=("Cs", "Cc", "Cn")))


def written(numbers: Numbers, lines=()) -> PageReader:
    """A section with one table and settings, read back."""
    about = dict.fromkeys(("heading", "about", "verdict"), "") | dict.fromkeys(
        ("question", "warning", "filters")
    )
    more = {"is_sweep": False, "number": 0, "n_runs": 0, "kind": "drawn", "figures": []}
    return PageReader(render("curves", tables=[numbers], settings=lines, **about, **more))


@given(WRITABLE, WRITABLE)
def test_texts_and_attributes_come_back_as_they_were(text: str, value: str):
    found = written(Numbers(value, [text], [[text, "<b>"]], [{"data-x": value}]))
    assert found.tables == [[[text], [text, "<b>"]]]
    assert found.all("tr")[1] == {"data-x": value}
    assert [place["aria-label"] for place in found.all("div")] == [value]
    assert len(found.all("th")) == 2


def test_control_characters_and_surrogates_do_not_reach_the_page():
    made = render("runs", shapes=[{"aria-label": "\x1b[31m \ud800"}])
    assert "\x1b" not in made
    assert made.isascii()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("/home/a/b", "b"),
        ("C:\\Users\\a\\b", "b"),
        ("owner/name", "owner/name"),
        ("/", "/"),
        (["/x/y", "z"], "y, z"),
    ],
)
def test_settings_do_not_tell_where_things_lay(value: object, expected: str):
    assert settings({"a": value}) == [("a", expected, False)]


def test_settings_are_flat_in_order_and_mark_hashes():
    record = {"b": {"y": 1, "x": [1, 2.5]}, "a": None, "c": "", "d": True, "e": {}, "f": 0, "h": "ab" * 32}
    lines = [("b.y", "1"), ("b.x", "1, 2.5"), ("d", "yes"), ("f", "0"), ("h", "ab" * 32)]
    assert settings(record) == [(*pair, pair[0] == "h") for pair in lines]
    kinds = [one.get("class") for one in written(Numbers("", [], []), settings(record)).all("div")]
    assert kinds == ["scroll", *[None] * 4, "hash"]


def test_a_name_tells_no_more_than_two_parts_of_the_path(tmp_path):
    folder = tmp_path / "checkpoint" / "ablation"
    folder.mkdir(parents=True)
    assert short_name(folder) == short_name(folder / ".." / "ablation") == "checkpoint/ablation"
