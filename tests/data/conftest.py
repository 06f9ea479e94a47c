"""Files that are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """Write files into one folder and return it; of a keyword, the last ``_`` stands for the dot."""

    def write(files: Mapping[str, str] | None = None, **named: str) -> Path:
        for name, content in {**(files or {}), **named}.items():
            file = name if name in (files or {}) else ".".join(name.rsplit("_", 1))
            (tmp_path / file).write_text(content, encoding="utf-8")
        return tmp_path

    return write
