"""A results folder's seal: which run its tables belong to, and what their bytes were.

``checksums.json`` holds the hash of the run's identity and the SHA-256 of each table. A table that was copied
from another folder, edited or cut short is refused wherever it is read; a folder without the file, such as
one made by hand, is read as it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from adapter_probe.errors import ResultsError
from adapter_probe.results.atomic import read_json, write_json
from adapter_probe.results.fingerprints import hash_json

CHECKSUMS, MANIFEST, STUDY = "checksums.json", "manifest.json", "study.json"
MANIFEST_SECTIONS = ("created_with", "identity", "plan")
_GROWS = "tasks"  # tasks may be added to a study, which leaves its tables as they are


@contextmanager
def sealed(folder: str | Path, names: Sequence[str]) -> Iterator[None]:
    """Seal a folder's tables after the block has written them; nothing is sealed if it fails.

    Args:
        folder: with the manifest of its run.
        names: of the tables; those that are not there are left out.

    Raises:
        ResultsError: the folder cannot be written, or its manifest cannot be read.
    """
    folder = Path(folder)
    with suppress(FileNotFoundError):
        (folder / CHECKSUMS).unlink()
    yield
    sums = {name: _sha256(folder / name) for name in names if (folder / name).is_file()}
    write_json(folder / CHECKSUMS, {"run": _run_of(folder), "sha256": sums})


def check_sealed(path: str | Path) -> None:
    """Make sure that a table is the one that its folder's run wrote, where the folder says which that is.

    Raises:
        ResultsError: it is another one, or the folder's manifest was edited.
    """
    path = Path(path)
    seal = path.parent / CHECKSUMS
    if not seal.is_file() or not path.is_file():
        return
    said = read_json(seal)
    sums, run = said.get("sha256"), _run_of(path.parent)
    if not isinstance(sums, dict) or path.name not in sums:
        return
    if run not in (None, said.get("run")):
        fault = "belongs to another run"
    elif _sha256(path) != sums[path.name]:
        fault = "is not as it was written"
    else:
        return
    raise ResultsError(
        f"{path} {fault} (see {CHECKSUMS}): give the command that made the folder again to write it from the "
        f"predictions or trials, or remove {CHECKSUMS} to use the table as it is"
    )


def manifest_checksum(manifest: Mapping[str, Any]) -> str:
    """The hash of a manifest's sections, which it holds beside them."""
    return hash_json({name: manifest.get(name) for name in MANIFEST_SECTIONS})


def _run_of(folder: Path) -> str | None:
    """The hash of what determines the folder's numbers; None where nothing says it.

    Raises:
        ResultsError: the manifest was edited.
    """
    if (path := folder / MANIFEST).is_file():
        manifest = read_json(path)
        if "checksum" in manifest and manifest["checksum"] != manifest_checksum(manifest):
            raise ResultsError(f"{path} is damaged or was edited: its checksum does not match")
        return hash_json(manifest.get("identity"))
    if (folder / STUDY).is_file():
        return hash_json({k: v for k, v in read_json(folder / STUDY).items() if k != _GROWS})
    return None


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ResultsError(f"cannot read {path}: {error.strerror}") from error
