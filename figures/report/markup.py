"""HTML as text that is escaped unless it was made here, so that no name or text of a user becomes markup."""

from __future__ import annotations

import html
import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath

_VOID = frozenset(("input",))
NONE = "—"  # where nothing is known


class Html(str):
    """Markup; every other string is text."""


def tag(name: str, attributes: Mapping[str, object] | None = None, *children: object) -> Html:
    """An element; attributes and children that are None or False are left out, True is an empty attribute."""
    said = "".join(
        f' {key}="{"" if value is True else plain(str(value))}"'
        for key, value in (attributes or {}).items()
        if value is not None and value is not False
    )
    inside = "" if name in _VOID else f"{joined(children)}</{name}>"
    return Html(f"<{name}{said}>{inside}")


def joined(parts: object) -> Html:
    """Markup and texts, in any nesting of lists and tuples, one after the other."""
    if parts is None or parts is False:
        return Html("")
    if isinstance(parts, (list, tuple)):
        return Html("".join(map(joined, parts)))
    return parts if isinstance(parts, Html) else Html(plain(str(parts)))


def plain(text: str) -> str:
    """Text escaped for HTML: safe in any encoding, without control characters and lone surrogates."""
    shown = "".join("\ufffd" if unicodedata.category(c) == "Cc" and c != "\n" else c for c in text)
    return html.escape(shown).encode("ascii", "xmlcharrefreplace").decode("ascii")


def json_for_html(value: object) -> str:
    """JSON that HTML cannot misread: ASCII, without `<`, `>` and `&`."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def choice(name: str, label: str, options: Sequence[tuple[str, str]], chosen: str = "") -> Html:
    """A labelled list of options, pairs of value and words, of which one is chosen."""
    shown = [tag("option", {"value": value, "selected": value == chosen}, words) for value, words in options]
    return tag("label", {"class": "pick"}, tag("span", None, label), tag("select", {"name": name}, shown))


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    data: Sequence[Mapping[str, object]] | None = None,
) -> Html:
    """A table that can be opened and, if it is large, scrolled; the first field heads its row."""
    head = tag("tr", None, [tag("th", {"scope": "col"}, name) for name in columns])
    body = []
    for number, (name, *cells) in enumerate(rows):
        fields = tag("th", {"scope": "row"}, name), [tag("td", None, cell) for cell in cells]
        body.append(tag("tr", data and data[number], fields))
    grid = tag("table", None, tag("thead", None, head), tag("tbody", None, body))
    place = {"class": "scroll", "tabindex": "0", "role": "region", "aria-label": title}
    return tag("details", {"class": "numbers"}, tag("summary", None, title), tag("div", place, grid))


def settings(record: Mapping[str, object]) -> Html | None:
    """A nested record as dotted names and values that can be opened, without null or empty values.

    Of absolute paths only the last part is shown, because folder names are private. Hashes are not printed.
    """
    pairs = [(".".join(path), _text(value)) for path, value in _leaves(record) if value not in (None, "", [])]
    lines = []
    for name, text in pairs:
        is_hash = len(text) >= 32 and set(text) <= set("0123456789abcdef")
        kind = {"class": "hash" if is_hash else None}
        lines.append(tag("div", kind, tag("dt", None, name), tag("dd", None, text)))
    inside = tag("summary", None, "Settings and versions"), tag("dl", None, lines)
    return tag("details", {"class": "settings"}, *inside) if lines else None


def _leaves(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, (*path, str(key)))
    else:
        yield path, value


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    for kind in (PurePosixPath, PureWindowsPath):
        if (path := kind(text)).is_absolute():
            return path.name or text
    return text


def short_name(folder: Path) -> str:
    """The last two parts of a folder's path: enough to identify it without private folder names."""
    return "/".join(folder.resolve().parts[-2:]).lstrip("/") or "/"


def header(
    place: str, heading: str, about: str, question: Sequence[str], warning: str | None, *more: Html
) -> Html:
    """The head of a study's section: what it is, the lines of its question, why its spans mean nothing."""
    lines = [tag("li", None, line) for line in question]
    return tag(
        "header", None, tag("h2", {"id": place}, heading), tag("p", {"class": "note"}, about),
        tag("ul", {"class": "note question"}, lines) if lines else None,
        warning and tag("p", {"class": "warning", "role": "note"}, warning), *more,
    )  # fmt: skip
