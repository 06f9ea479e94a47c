"""The seal of a results folder: the run to which its tables belong, and the hashes of the tables.

``checksums.json`` contains the hash of the run's identity and the SHA-256 of each table. Tables that were
copied from another folder, edited or truncated are refused wherever they are read, and so are tables that
their run never sealed, and folders that lack a sealed table. A folder without this file, a manifest and
``study.json``, such as one that was created by hand, is read unchecked. The same file contains notes of later
steps: the inputs of the run, and the figures that were drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from adapter_probe.errors import ResultsError
from adapter_probe.results.atomic import read_json, write_json
from adapter_probe.results.fingerprints import hash_json, refuse_changes, sha256_of

CHECKSUMS, MANIFEST, STUDY = "checksums.json", "manifest.json", "study.json"
SCHEMA = 1
"""Schema version of the manifest."""
MANIFEST_SECTIONS = ("created_with", "identity", "plan")
FIGURES, MADE_FROM = "figures", "made_from"
"""Names of notes in ``checksums.json``."""
_CHECKSUM = "checksum"
_GROWS = "tasks"  # tasks may be added to a study, which does not change its tables


@contextmanager
def sealed(folder: str | Path, names: Sequence[str]) -> Iterator[None]:
    """Seal a folder's tables after the block has written them; nothing is sealed if the block fails.

    Args:
        folder: the results folder, which contains the manifest of its run.
        names: names of the tables; missing ones are left out.

    Raises:
        ResultsError: the folder cannot be written, or its manifest cannot be read.
    """
    folder = Path(folder)
    drawn = read_note(folder, FIGURES)  # the note itself records the tables of each figure
    with suppress(FileNotFoundError):
        (folder / CHECKSUMS).unlink()
    yield
    sums = {name: sha256_of(folder / name) for name in names if (folder / name).is_file()}
    seal = {"run": _run_of(folder), "sha256": sums}
    write_json(folder / CHECKSUMS, {**seal, FIGURES: drawn} if drawn else seal)


def sealed_tables(folder: str | Path) -> dict[str, str] | None:
    """The SHA-256 of every sealed table; None unless the folder's run wrote all of them and none has changed.

    Raises:
        ResultsError: the seal or the manifest cannot be read.
    """
    folder = Path(folder)
    sums, run = _read_seal(folder)
    if not sums or run is None or run != _run_of(folder):
        return None
    whole = all((folder / name).is_file() and sha256_of(folder / name) == sums[name] for name in sums)
    return sums if whole else None


def read_note(folder: str | Path, name: str) -> dict[str, Any]:
    """A note in ``checksums.json``; empty if there is none or the file cannot be read."""
    path = Path(folder) / CHECKSUMS
    try:
        found = read_json(path).get(name) if path.is_file() else None
    except ResultsError:
        return {}
    return found if isinstance(found, dict) else {}


def add_note(folder: str | Path, name: str, value: dict[str, Any]) -> None:
    """Add a note to ``checksums.json``; without this file, nothing is written."""
    path = Path(folder) / CHECKSUMS
    if path.is_file():
        write_json(path, {**read_json(path), name: value})


def check_sealed(path: str | Path) -> None:
    """Make sure that a table is the one that its folder's run wrote, if the folder records its run.

    Raises:
        ResultsError: it is a different or unfinished table, or the folder's manifest was edited or was
            written by a newer version.
    """
    path = Path(path)
    seal = path.parent / CHECKSUMS
    if not path.is_file():
        return
    if not seal.is_file():
        record = path.with_name(_record_of(path.parent))
        # Some tables of a run that never sealed them may be from earlier settings.
        if record.is_file() and (record.name == STUDY or "checksum" in read_json(record)):
            raise ResultsError(
                f"{path} may be unfinished: its run was interrupted before it wrote {CHECKSUMS}, or that "
                f"file was removed; run the command that made the folder again, or remove {record.name} as "
                "well to use the table unchecked"
            )
        return
    (sums, sealed_for), run = _read_seal(path.parent), _run_of(path.parent)
    if sums is None:
        return
    if run not in (None, sealed_for):
        fault = "belongs to another run"
    elif path.name not in sums:
        fault = "was not written by the last run, which may have been interrupted"
    elif sha256_of(path) != sums[path.name]:
        fault = "has changed since it was written"
    else:
        return
    raise ResultsError(
        f"{path} {fault} (see {CHECKSUMS}); run the command that made the folder again to write it from the "
        f"predictions or trials, or remove {CHECKSUMS} and {_record_of(path.parent)} to use it "
        "unchecked"
    )


def check_complete(folder: str | Path, dispensable: Sequence[str] = ()) -> None:
    """Make sure that no sealed table is missing from a folder.

    Args:
        dispensable: names of tables that may be missing, such as large ones that were not copied.

    Raises:
        ResultsError: a table is missing, or the seal cannot be read.
    """
    names = [name for name in _read_seal(Path(folder))[0] or () if name not in dispensable]
    if missing := [name for name in names if not (Path(folder) / name).is_file()]:
        raise ResultsError(
            f"{folder} lacks {', '.join(missing)}, which its run wrote (see {CHECKSUMS}); run the command "
            f"that made the folder again, or remove {CHECKSUMS} and {_record_of(Path(folder))} to use "
            "the other tables"
        )


def _read_seal(folder: Path) -> tuple[dict[str, str] | None, str | None]:
    """The hashes of a folder's sealed tables, and the run that sealed them; None where it does not say."""
    said = read_json(folder / CHECKSUMS) if (folder / CHECKSUMS).is_file() else {}
    sums = said.get("sha256")
    return sums if isinstance(sums, dict) else None, said.get("run")


def _record_of(folder: Path) -> str:
    """The name of the file that identifies the run of a folder."""
    return STUDY if (folder / STUDY).is_file() else MANIFEST


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


def read_manifest(path: Path, *, by_hand: bool = False) -> dict[str, Any]:
    """The manifest of a run, verified.

    Args:
        by_hand: whether to accept a manifest without a checksum, as in a folder that was created by hand.

    Raises:
        ResultsError: it is damaged, edited or newer than this version.
    """
    manifest = read_json(path)
    schema, checksum = manifest.get("schema"), manifest.get("checksum")
    refuse_newer(path, schema, SCHEMA)
    whole = schema == SCHEMA and checksum == manifest_checksum(manifest)
    if not whole and not (by_hand and "checksum" not in manifest):
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


def _run_of(folder: Path) -> str | None:
    """The hash of everything that determines the folder's numbers; None if the folder does not record it.

    Raises:
        ResultsError: the manifest was edited or was written by a newer version.
    """
    if (path := folder / MANIFEST).is_file():
        return hash_json(read_manifest(path, by_hand=True).get("identity"))
    if (folder / STUDY).is_file():
        return hash_json({k: v for k, v in read_study(folder / STUDY).items() if k != _GROWS})
    return None
