"""A finished ablation given back without opening its model, where no byte of what made it has changed.

Opening a checkpoint means loading torch, reading weights and encoding texts, to learn in the end that the
folder's identity is what it was. That follows as well from the bytes: the same files, read by the same code
and libraries as the same command asks, have the same identity. So a finished run notes the hash of every
file that it read, and the next one compares. Where anything differs, or cannot be told, the checkpoint is
opened as ever, and the identities are compared one by one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapter_probe.analysis.studies import AblationRecord, load_record
from adapter_probe.data.hub import HubSplit
from adapter_probe.data.lm_eval_tasks import is_task
from adapter_probe.errors import AdapterProbeError
from adapter_probe.metrics import CustomMetric
from adapter_probe.probe.arguments import CODE_SCHEMA, AblationArguments
from adapter_probe.records import to_record
from adapter_probe.results import schema
from adapter_probe.results.atomic import leftovers
from adapter_probe.results.fingerprints import hash_json
from adapter_probe.results.provenance import State, code_identity, hash_files, states_of
from adapter_probe.results.rundir import PARTS, read_manifest
from adapter_probe.results.sealing import MADE_FROM, note, read_note, sealed_tables

if TYPE_CHECKING:
    from adapter_probe.checkpoints.base import BaseIdentity

_DESCRIPTION, _CONFIG = "adapter_probe.json", "adapter_config.json"
_COMMIT = re.compile("[0-9a-f]{40}")
# Weights of other formats, which are never read from a base: only safetensors are.
_NOT_READ = frozenset((".bin", ".h5", ".msgpack", ".ot", ".onnx", ".pt", ".pth", ".gguf", ".ckpt", ".tflite"))


@dataclass(frozen=True)
class Sources:
    """Every file that an ablation reads, found without opening any of them but JSON.

    Attributes:
        base: folder of the base, resolved.
        data: what the examples are read from, as the task names it.
        files: by what they are: ``checkpoint/NAME``, ``base/NAME``, ``data/NUMBER``.
        state: what the file system said of them when they were found.
    """

    base: Path
    data: tuple[str, ...]
    files: dict[str, Path]
    state: State

    @classmethod
    def find(cls, arguments: AblationArguments) -> Sources | None:
        """The sources of an ablation, or None where they cannot be told from files alone."""
        folder = Path(arguments.checkpoint)
        try:
            base = _base_of(arguments, _document(folder))
            data = arguments.data or tuple(_document(folder)["task"]["files"][arguments.split])
            if base is None or not all(map(_is_fixed, data)):
                return None
            files = {f"checkpoint/{name}": path for name, path in _files_of_checkpoint(folder)}
            files |= {f"base/{name}": path for name, path in _files_of_base(base)}
            files |= {f"data/{n}": Path(entry) for n, entry in enumerate(data) if not HubSplit.parse(entry)}
            return cls(base, data, files, states_of(files))
        except (AdapterProbeError, OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError):
            return None  # whatever is wrong with it, opening says it in plain words


def reopen(arguments: AblationArguments, folder: Path) -> AblationRecord | None:
    """The record of a finished ablation whose every byte, and that of all it was made from, is as it was.

    Args:
        arguments: what is asked for.
        folder: of the results.

    Returns:
        None where the folder is not finished, or anything has changed or cannot be told; also where a writer
        was killed in it, so that the run, which holds the folder, tidies up.
    """
    said, asked = read_note(folder, MADE_FROM), _asked(arguments)
    if asked is None or (said.get("asked"), said.get("code")) != (asked, code_identity()):
        return None
    if leftovers(folder):
        return None
    sources = Sources.find(arguments)
    if sources is None or str(sources.base) != said.get("base"):
        return None
    try:
        if sources.files.keys() != said["sha256"].keys() or hash_files(sources.files) != said["sha256"]:
            return None
        if _kept(folder) != said["kept"]:
            return None
        read_manifest(folder / schema.MANIFEST)
        record = load_record(folder) if sealed_tables(folder) else None
        return record if isinstance(record, AblationRecord) else None
    except (AdapterProbeError, KeyError, AttributeError):  # going on with the run mends or names it
        return None


def remember(arguments: AblationArguments, folder: Path, sources: Sources | None, base: BaseIdentity) -> None:
    """Note what a finished ablation was made from, if none of it was written while it was read.

    Args:
        arguments: what was asked for.
        folder: of the results, written and sealed.
        sources: as they were found before anything was opened.
        base: the base that was opened.

    Raises:
        ResultsError: the note cannot be written.
    """
    asked = _asked(arguments)
    if sources is None or asked is None or sources != Sources.find(arguments):
        return
    if _folder_of(base.name, base.revision) != sources.base:
        return
    sums = hash_files(sources.files)
    if states_of(sources.files) != sources.state:
        return
    made_from = {"asked": asked, "code": code_identity(), "base": str(sources.base), "sha256": sums}
    note(folder, MADE_FROM, {**made_from, "kept": _kept(folder)})


def _asked(arguments: AblationArguments) -> dict[str, Any] | None:
    """The arguments as plain JSON, without what moves no number: the checkpoint's place, rows per pass.

    None where the metric is a function, of which a name tells nothing.
    """
    if isinstance(arguments.metric, CustomMetric):
        return None
    schema = CODE_SCHEMA[arguments.settings.precision]
    settled = {**arguments.settled(), "code_schema": schema, "settings": to_record(arguments.settings)}
    return {name: value for name, value in settled.items() if name not in ("checkpoint", "tokens_per_pass")}


def _document(folder: Path) -> dict[str, Any]:
    """What a checkpoint says of itself, in its own format or another library's."""
    inside = sorted(folder.glob(f"*/{_CONFIG}"))
    for path in (folder / _DESCRIPTION, folder / _CONFIG, *inside[:1]):
        if path.is_file():
            document = json.loads(path.read_text(encoding="utf-8"))
            return document if isinstance(document, dict) else {}
    return {}


def _base_of(arguments: AblationArguments, document: dict[str, Any]) -> Path | None:
    """The folder of the base that opening would find; None where the hub would have to be asked."""
    if arguments.base is not None:
        return _folder_of(arguments.base, None)
    if isinstance(document.get("base"), dict):
        return _folder_of(document["base"]["name"], document["base"]["revision"])
    return _folder_of(
        document.get("base_model_name_or_path") or document["model_name"], document.get("revision")
    )


def _folder_of(name: str, commit: str | None) -> Path | None:
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if commit is None or not _COMMIT.fullmatch(commit):
        return None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json", revision=commit)
    return Path(found).parent.resolve() if isinstance(found, str) else None


def _is_fixed(entry: str) -> bool:
    """Whether the name of a source tells its contents: a file, or a commit on the hub."""
    on_hub = HubSplit.parse(entry)
    if on_hub is not None:
        return bool(on_hub.revision and _COMMIT.fullmatch(on_hub.revision))
    return not is_task(entry) and Path(entry).is_file()


def _files_of_checkpoint(folder: Path) -> Iterator[tuple[str, Path]]:
    """Its own files and those of adapters in folders below it; results that lie in it are none of them."""
    yield from _files_in(folder)
    for below in sorted(path.parent for path in folder.glob(f"*/{_CONFIG}")):
        yield from ((f"{below.name}/{name}", path) for name, path in _files_in(below))


def _files_of_base(folder: Path) -> Iterator[tuple[str, Path]]:
    yield from ((name, path) for name, path in _files_in(folder) if path.suffix.lower() not in _NOT_READ)
    for below in sorted(folder.glob("*_templates")):  # further chat templates
        yield from ((f"{below.name}/{name}", path) for name, path in _files_in(below))


def _files_in(folder: Path) -> Iterator[tuple[str, Path]]:
    yield from ((path.name, path) for path in sorted(folder.iterdir()) if path.is_file())


def _kept(folder: Path) -> str:
    """The hash of what a run keeps beside its sealed tables: its parts, and what mixed precision measured."""
    paths = [*sorted((folder / PARTS).glob("*")), folder / schema.GUARD]
    return hash_json(hash_files({path.name: path for path in paths if path.is_file()}))
