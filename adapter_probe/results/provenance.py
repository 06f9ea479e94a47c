"""The inputs of a results folder: hashes of all files read, of this program's code and its libraries.

If none of them has changed, computing the results again would give the same folder, so nothing has to be
opened. Contents are hashed each time, because sizes and dates are not reliable.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from adapter_probe.errors import ResultsError, reason_of

_CHUNK = 1 << 20  # bytes
_PACKAGES = ("adapter_probe", "adapter_probe.figures")  # the latter is elsewhere in a checkout
_LIBRARIES = (
    "numpy", "pandas", "torch", "transformers", "tokenizers", "safetensors", "matplotlib", "seaborn",
    "tueplots", "datasets", "pyarrow",
)  # fmt: skip

State = dict[str, tuple[int, ...]]


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
    """`sha256_of` of each file, by name, in threads, because hashing releases Python's lock.

    Raises:
        ResultsError: a file cannot be read.
    """
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as threads:
        return dict(zip(files, threads.map(sha256_of, files.values())))


def states_of(files: Mapping[str, Path]) -> State:
    """The file system's state of each file; a changed state means that the file was rewritten.

    It includes the change time of the inode, which programs cannot set.

    Raises:
        ResultsError: a file does not exist.
    """
    try:
        found = {name: path.stat() for name, path in files.items()}
    except OSError as error:
        raise ResultsError(f"cannot read {error.filename}: {reason_of(error)}") from error
    return {
        name: (said.st_dev, said.st_ino, said.st_size, said.st_mtime_ns, said.st_ctime_ns)
        for name, said in found.items()
    }


@lru_cache(maxsize=1)
def code_identity() -> dict[str, str]:
    """The hash of this program's source files, and the versions of Python and the libraries."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for name, path in _source_files(package):
            digest.update(f"{package} {name} {sha256_of(path)}\n".encode())
    return {"code": digest.hexdigest(), "python": platform.python_version(), **versions(_LIBRARIES)}


def _source_files(package: str) -> list[tuple[str, Path]]:
    spec = find_spec(package)
    places = [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
    return sorted(
        (path.relative_to(place).as_posix(), path) for place in places for path in place.rglob("*.py")
    )


def versions(names: Iterable[str]) -> dict[str, str]:
    """The versions of those of some packages that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
