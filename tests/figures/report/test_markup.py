from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter_probe.figures.report.markup import Html, joined, settings, short_name, table, tag


class Reader(HTMLParser):
    """The texts and the elements of a piece of markup."""

    def __init__(self, markup: str):
        super().__init__()
        self.texts: list[str] = []
        self.elements: list[tuple[str, dict]] = []
        self.feed(markup)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@given(
    st.text(st.characters(blacklist_categories=("Cs", "Cc"))),
    st.text(st.characters(blacklist_categories=("Cs", "Cc"))),
)
def test_texts_and_attributes_come_back_as_they_were(text: str, value: str):
    found = Reader(tag("p", {"class": value, "none": None, "no": False, "yes": True}, text))
    assert found.elements == [("p", {"class": value, "yes": ""})]
    assert "".join(found.texts) == text


def test_markup_is_kept_and_text_is_not_markup():
    made = joined([tag("b", None, "a<b"), None, False, ["<i>", (Html("<hr>"),)]])
    assert made == "<b>a&lt;b</b>&lt;i&gt;<hr>"
    assert "\x1b" not in tag("p", None, "\x1b[31m")
    assert tag("p", None, "\ud800").isascii()


def test_a_table_has_its_heads_and_rows():
    found = Reader(table("numbers", ["a", "b"], [["1", "2"], ["3", "4"]], [{"data-x": "y"}, {}]))
    kinds = [name for name, _ in found.elements]
    assert (kinds.count("tr"), kinds.count("th"), kinds.count("td")) == (3, 4, 2)
    assert [attributes for name, attributes in found.elements if name == "tr"][1] == {"data-x": "y"}


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
    assert Reader(settings({"a": value})).texts[1:] == ["a", expected]


def test_settings_are_flat_in_order_and_mark_hashes():
    record = {"b": {"y": 1, "x": [1, 2.5]}, "a": None, "c": "", "d": True, "e": {}, "f": 0, "h": "ab" * 32}
    found = Reader(settings(record))
    assert found.texts[1:] == ["b.y", "1", "b.x", "1, 2.5", "d", "yes", "f", "0", "h", "ab" * 32]
    assert [a.get("class") for name, a in found.elements if name == "div"] == [None] * 4 + ["hash"]
    assert settings({"a": None}) is None


def test_a_name_tells_no_more_than_two_parts_of_the_path(tmp_path):
    folder = tmp_path / "checkpoint" / "ablation"
    folder.mkdir(parents=True)
    assert short_name(folder) == short_name(folder / ".." / "ablation") == "checkpoint/ablation"
