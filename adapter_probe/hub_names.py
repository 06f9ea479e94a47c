"""Names on the Hugging Face Hub, told from paths on this machine. Light, since the commands check early."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def is_hub_name(name: str | Path) -> bool:
    """Whether something that is no path on this machine can be a name on the hub, ``owner/name``."""
    return is_missing(name) and _NAME.fullmatch(str(name)) is not None


def is_missing(path: str | Path) -> bool:
    """Whether nothing is at a path; what cannot be a path is left to what opens it."""
    with suppress(OSError, ValueError):
        return not Path(path).exists()
    return False
