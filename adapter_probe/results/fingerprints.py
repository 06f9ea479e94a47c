"""Identities of runs: plain JSON, hashes of values, files and this program's code, and what differs.

If no file that a run read, no source file and no library has changed, computing its results again would give
the same folder, so nothing has to be opened. Contents are hashed each time, because sizes and dates are not
reliable.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from adapter_probe.errors import ResultsError, reason_of

_HASH = re.compile(r"[0-9a-f]{16,}")
_HASH_SHOWN = 8
_TEXT_SHOWN = 40
_ABSENT = "absent"
_MOST_LISTED = 4
_CHUNK = 1 << 20  # bytes
_PACKAGES = ("adapter_probe", "adapter_probe.figures")  # the latter is elsewhere in a checkout
_LIBRARIES = (
    "numpy", "pandas", "torch", "transformers", "tokenizers", "safetensors", "matplotlib", "seaborn",
    "tueplots", "datasets", "pyarrow", "peft", "bitsandbytes", "torchao",
)  # fmt: skip


def to_plain(value: object) -> object:
    """`value` as JSON reads it back: dicts with string keys, lists, strings, numbers, booleans, None.

    Tuples become lists and NumPy scalars Python ones, so that a value compares equal to itself after a
    round trip through a file. NaN, which JSON cannot hold, becomes None: an undefined score is null.

    Raises:
        TypeError: for anything else (arrays, paths, keys that are not strings).
        ValueError: for an infinity.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if math.isinf(value):
            raise ValueError("JSON cannot represent infinity")
        return None if math.isnan(value) else value
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"JSON keys are strings, got {wrong[0]!r}")
        return {key: to_plain(item) for key, item in value.items()}
    raise TypeError(f"JSON cannot represent {value!r}, a {type(value).__name__}")


def canonical_json(value: object) -> str:
    """The one JSON text of `value`: sorted keys, no spaces, ASCII. Equal texts mean equal values."""
    return json.dumps(to_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def hash_json(value: object) -> str:
    """SHA-256 of the canonical JSON, in hex; the order of keys does not matter, that of lists does."""
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()


def shorten(value: object) -> str:
    """`value` shortened for an error message: the start of a hash, both ends of a long text."""
    text = value if isinstance(value, str) else canonical_json(value)
    if _HASH.fullmatch(text):
        return f"{text[:_HASH_SHOWN]}…"
    text = json.dumps(text, ensure_ascii=False)[1:-1] if isinstance(value, str) else text
    if len(text) <= _TEXT_SHOWN:
        return text
    return f"{text[: _TEXT_SHOWN // 2]}…{text[-_TEXT_SHOWN // 2 :]}"


def describe_changes(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """One ``dotted.key: old -> new`` for every leaf that differs, by key; empty if nothing does.

    Lists are leaves. Values are compared as canonical JSON, so 1, 1.0 and true all differ.
    """
    before, after = dict(_leaves(to_plain(old))), dict(_leaves(to_plain(new)))
    lines = []
    for path in sorted(before.keys() | after.keys()):
        if path in before and path in after:
            if canonical_json(before[path]) == canonical_json(after[path]):
                continue
            was, now = _show_both(before[path], after[path])
        else:
            was = shorten(before[path]) if path in before else _ABSENT
            now = shorten(after[path]) if path in after else _ABSENT
        lines.append(f"{'.'.join(path)}: {was} -> {now}")
    return lines


def refuse_changes(
    old: Mapping[str, object],
    new: Mapping[str, object],
    before: str,
    after: str = "",
    *,
    apart: Collection[str] = (),
) -> None:
    """Refuse two identities that differ.

    Args:
        apart: dotted keys that may differ.
    """
    changes = [line for line in describe_changes(old, new) if line.partition(":")[0] not in apart]
    if changes:
        raise ResultsError(f"{before}: {list_changes(changes)}{after}")


def list_changes(changes: Sequence[str]) -> str:
    """Changes as one line, with the first few in full."""
    more = f" and {len(changes) - _MOST_LISTED} more" if len(changes) > _MOST_LISTED else ""
    return "; ".join(changes[:_MOST_LISTED]) + more


def _leaves(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    if isinstance(value, dict) and (value or not path):
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    else:
        yield path, value  # an empty dict below the root is a leaf: adding or removing one is a change


def _show_both(old: object, new: object) -> tuple[str, str]:
    """Both values shortened, or if that hides the difference, the text around the first difference."""
    was, now = shorten(old), shorten(new)
    if was != now:
        return was, now
    full_old, full_new = canonical_json(old), canonical_json(new)
    pairs = enumerate(zip(full_old, full_new))
    first = next((i for i, (a, b) in pairs if a != b), min(len(full_old), len(full_new)))
    start = max(0, first - _TEXT_SHOWN // 2)
    window = slice(start, start + _TEXT_SHOWN)
    lead = "…" if start else ""
    return lead + full_old[window], lead + full_new[window]


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex, read piece by piece.

    Raises:
        ResultsError: the file cannot be read.
    """
    digest, buffer = hashlib.sha256(), bytearray(_CHUNK)
    view = memoryview(buffer)
    try:
        with path.open("rb", buffering=0) as file:
            while n_read := file.readinto(buffer):
                digest.update(view[:n_read])
    except OSError as error:
        raise ResultsError(f"cannot read {path}: {reason_of(error)}") from error
    return digest.hexdigest()


def hash_files(files: Mapping[str, Path]) -> dict[str, str]:
    """`sha256_of` of each file, by name, in threads, because hashing releases Python's lock."""
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as threads:
        return dict(zip(files, threads.map(sha256_of, files.values())))


@lru_cache(maxsize=1)
def code_identity() -> dict[str, str]:
    """The hash of this program's source files, and the versions of Python and the libraries."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        spec = find_spec(package)
        places = [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
        found = (
            (path.relative_to(place).as_posix(), path) for place in places for path in place.rglob("*.py")
        )
        for name, path in sorted(found):
            digest.update(f"{package} {name} {sha256_of(path)}\n".encode())
    return {"code": digest.hexdigest(), "python": platform.python_version(), **installed_versions(_LIBRARIES)}


def installed_versions(names: Iterable[str]) -> dict[str, str]:
    """The versions of those of some packages that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
