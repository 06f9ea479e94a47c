"""Names on the Hugging Face Hub, told from paths on this machine. Light, since the commands check early."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path, PurePath

_NAME = re.compile(r"(?P<name>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>[\w-][\w./-]*))?")

_ORIGIN = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_BASE_MODEL = re.compile(r"""^base_model:[ \t]*(?:\n[ \t]*-[ \t]*)?["']?([\w./-]+)""", re.MULTILINE)
_IN_CACHE = re.compile(r"/models--([^/]+)/snapshots/[^/]+\Z")


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


def origin_of_folder(folder: str | Path) -> str | None:
    """The name on the hub that a model's folder says it comes from, by its configuration or model card."""
    said: list[object] = []
    with suppress(OSError, ValueError, AttributeError):
        said.append(json.loads((Path(folder) / "config.json").read_text("utf-8")).get("_name_or_path"))
    with suppress(OSError, ValueError):
        said += _BASE_MODEL.findall((Path(folder) / "README.md").read_text("utf-8").partition("\n---")[0])
    names = (name for name in said if isinstance(name, str) and _ORIGIN.fullmatch(name) and is_missing(name))
    return next(names, None)


def name_of_base(base: str) -> str:
    """What captions call a base: its name on the hub, or its folder with the name that it comes from."""
    if is_hub_name(base) or base.startswith("folder "):  # called so already
        return base
    name = name_of_folder(base)
    if not Path(base).is_dir():
        return name
    if kept := _IN_CACHE.search(Path(base).resolve().as_posix()):
        return kept[1].replace("--", "/", 1)
    origin = origin_of_folder(base)
    if origin is not None and PurePath(origin).name.lower() == name.lower():
        return origin
    return f"folder {name}" + (f" from {origin}" if origin else "")


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
