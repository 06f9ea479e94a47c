"""The page's HTML: templates that escape every text, so that no name or text of a user becomes markup."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

NONE = "—"  # where nothing is known
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
_TEMPLATES = Environment(
    loader=PackageLoader(__package__, ""), autoescape=True, trim_blocks=True, undefined=StrictUndefined
)


class Numbers(NamedTuple):
    """A table of texts; `data` are attributes of its rows, or None."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    data: Sequence[Mapping[str, object]] | None = None


def render(template: str, **values: object) -> Markup:
    """A template of this folder with its values, in ASCII and without control characters."""
    text = _CONTROL.sub("\ufffd", _TEMPLATES.get_template(f"{template}.html").render(values))
    return Markup(text.encode("ascii", "xmlcharrefreplace").decode("ascii"))


def json_for_html(value: object) -> Markup:
    """JSON that HTML cannot misread: ASCII, without `<`, `>` and `&`."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def settings(record: Mapping[str, object]) -> list[tuple[str, str, bool]]:
    """A nested record as dotted names and values, without null or empty ones, and whether each is a hash.

    Of absolute paths only the last part is shown, because folder names are private. Hashes are not printed.
    """
    pairs = [(".".join(path), _text(value)) for path, value in _leaves(record) if value not in (None, "", [])]
    return [(name, text, len(text) >= 32 and set(text) <= set("0123456789abcdef")) for name, text in pairs]


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
