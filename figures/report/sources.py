"""How a results folder is named on the page."""

from __future__ import annotations

from pathlib import Path


def short_name(folder: Path) -> str:
    """The last two parts of a folder's path: they tell it apart, and not whose machine it is on."""
    return "/".join(folder.resolve().parts[-2:]).lstrip("/") or "/"
