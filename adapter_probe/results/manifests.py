"""What identifies the run of a results folder, and notes of what came of it.

``manifest.json`` (of a sweep ``study.json``) contains everything that determines the numbers, with a
checksum. ``checksums.json`` contains notes of later steps with the hashes of files: what the run was made
from, by which a finished study is read back at once, and the figures that were drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adapter_probe.errors import ResultsError
from adapter_probe.results.atomic import read_json, write_json
from adapter_probe.results.fingerprints import hash_json, refuse_changes

NOTES, MANIFEST, STUDY = "checksums.json", "manifest.json", "study.json"
SCHEMA = 1
"""Schema version of the manifest."""
MANIFEST_SECTIONS = ("created_with", "identity", "plan")
FIGURES, MADE_FROM = "figures", "made_from"
"""Names of notes."""
_CHECKSUM = "checksum"


def read_note(folder: str | Path, name: str) -> dict[str, Any]:
    """A note on a folder; empty if there is none or the file cannot be read."""
    found = _notes(Path(folder)).get(name)
    return found if isinstance(found, dict) else {}


def write_note(folder: str | Path, name: str, value: dict[str, Any] | None) -> None:
    """Write a note on a folder, or with None remove it."""
    others = {key: own for key, own in _notes(Path(folder)).items() if key != name}
    path = Path(folder) / NOTES
    if value is not None or path.is_file():
        write_json(path, others if value is None else {**others, name: value})


def _notes(folder: Path) -> dict[str, Any]:
    try:
        found = read_json(folder / NOTES) if (folder / NOTES).is_file() else {}
    except ResultsError:
        return {}
    return found


def write_study(path: Path, content: Mapping[str, Any]) -> None:
    """Write ``study.json`` with the hash of its content."""
    write_json(path, {**content, _CHECKSUM: hash_json(content)})


def begin_study(folder: Path, content: Mapping[str, Any]) -> None:
    """Write ``study.json`` into a folder that has none yet.

    Raises:
        ResultsError: the folder holds another study, or its file is damaged.
    """
    path = folder / STUDY
    if not path.exists():
        write_study(path, content)
        return
    advice = ". Choose another --out or remove the folder"
    refuse_changes(read_study(path), content, f"{folder} contains another study", advice)


def read_study(path: Path) -> dict[str, Any]:
    """The content of ``study.json``, verified.

    Raises:
        ResultsError: the file is damaged or was edited.
    """
    content = read_json(path)
    if content.pop(_CHECKSUM, None) != hash_json(content):
        raise ResultsError(
            f"{path} is damaged or was edited: its checksum does not match; restore the file, or choose "
            "another --out"
        )
    return content


def manifest_checksum(manifest: Mapping[str, Any]) -> str:
    """The hash of a manifest's sections, which the manifest also contains."""
    return hash_json({name: manifest.get(name) for name in MANIFEST_SECTIONS})


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a run, verified.

    Raises:
        ResultsError: it is damaged, edited or newer than this version.
    """
    manifest = read_json(path)
    schema, checksum = manifest.get("schema"), manifest.get("checksum")
    refuse_newer(path, schema, SCHEMA)
    if schema != SCHEMA or checksum != manifest_checksum(manifest):
        raise ResultsError(
            f"{path} is damaged or was edited: its checksum does not match; choose another --out or remove "
            "the folder"
        )
    return manifest


def refuse_newer(path: Path, schema: object, known: int) -> None:
    """Refuse a file whose schema is newer than the known one."""
    if isinstance(schema, int) and schema > known:
        raise ResultsError(
            f"{path} was written by a newer adapter-probe: its schema is {schema}, this version reads up to "
            f"{known}; upgrade adapter-probe"
        )
