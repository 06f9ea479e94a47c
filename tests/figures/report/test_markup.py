from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_reader import PageReader

from adapter_probe.figures.report.markup import Html, joined, settings, short_name, table, tag

# Without control characters, and without noncharacters such as U+FFFE (among "Cn"), whose references Python's
# own reader of HTML drops.
WRITABLE = st.text(st.characters(exclude_categories=("Cs", "Cc", "Cn")))


@given(WRITABLE, WRITABLE)
def test_texts_and_attributes_come_back_as_they_were(text: str, value: str):
    found = PageReader(tag("p", {"class": value, "none": None, "no": False, "yes": True}, text))
    assert found.elements == [("p", {"class": value, "yes": ""})]
    assert "".join(found.texts) == text


def test_markup_is_kept_and_text_is_not_markup():
    made = joined([tag("b", None, "a<b"), None, False, ["<i>", (Html("<hr>"),)]])
    assert made == "<b>a&lt;b</b>&lt;i&gt;<hr>"
    assert "\x1b" not in tag("p", None, "\x1b[31m")
    assert tag("p", None, "\ud800").isascii()


def test_a_table_has_its_heads_and_rows():
    found = PageReader(table("numbers", ["a", "b"], [["1", "2"], ["3", "4"]], [{"data-x": "y"}, {}]))
    assert (len(found.all("th")), found.tables) == (4, [[["a", "b"], ["1", "2"], ["3", "4"]]])
    assert found.all("tr")[1] == {"data-x": "y"}


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
    assert PageReader(settings({"a": value})).texts[1:] == ["a", expected]


def test_settings_are_flat_in_order_and_mark_hashes():
    record = {"b": {"y": 1, "x": [1, 2.5]}, "a": None, "c": "", "d": True, "e": {}, "f": 0, "h": "ab" * 32}
    found = PageReader(settings(record))
    assert found.texts[1:] == ["b.y", "1", "b.x", "1, 2.5", "d", "yes", "f", "0", "h", "ab" * 32]
    assert [attributes.get("class") for attributes in found.all("div")] == [None] * 4 + ["hash"]
    assert settings({"a": None}) is None


def test_a_name_tells_no_more_than_two_parts_of_the_path(tmp_path):
    folder = tmp_path / "checkpoint" / "ablation"
    folder.mkdir(parents=True)
    assert short_name(folder) == short_name(folder / ".." / "ablation") == "checkpoint/ablation"
