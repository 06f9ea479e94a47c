"""Names on the Hugging Face Hub, told from paths on this machine. Light, since the commands check early."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path, PurePath

_NAME = re.compile(r"(?P<name>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>[\w-][\w./-]*))?")


def is_hub_name(name: str | Path) -> bool:
    """Whether something that is no path on this machine can be a name on the hub, ``owner/name``.

    A commit, branch or tag may stand behind it, ``owner/name@revision``.
    """
    return is_missing(name) and _NAME.fullmatch(str(name)) is not None


def name_of_folder(base: str) -> str:
    """What a base is called: its folder, or the one around a folder that is only called `model`.

    Of a name on the hub, what stands behind its owner.
    """
    path = PurePath(base)
    if is_hub_name(base):
        return path.name
    return path.parent.name if path.name == "model" and path.parent.name else path.name


def name_and_revision(name: str) -> tuple[str, str | None]:
    """A name on the hub, and the revision behind it, if there is one."""
    found = _NAME.fullmatch(name)
    assert found is not None, name
    return found["name"], found["revision"]


def is_missing(path: str | Path) -> bool:
    """Whether nothing is at a path; what cannot be a path is left to what opens it."""
    with suppress(OSError, ValueError):
        return not Path(path).exists()
    return False
