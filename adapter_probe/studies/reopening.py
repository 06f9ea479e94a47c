"""Reopen a finished ablation without opening its model, when none of its inputs has changed.

Opening a checkpoint means loading torch, reading weights and encoding texts, only to find that the identity
of the results is unchanged. The same follows from the bytes: identical files, read with identical arguments
by identical code and libraries, have the same identity. A finished run therefore records the hash of every
file that it read, and the next run compares the hashes. If anything differs or cannot be determined, the
checkpoint is opened as usual and the identities are compared field by field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapter_probe.checkpoints.files import CONFIG, DESCRIPTION
from adapter_probe.data.hub import HubSplit
from adapter_probe.errors import AdapterProbeError
from adapter_probe.metrics import CustomMetric
from adapter_probe.probe.arguments import CODE_SCHEMA, AblationArguments
from adapter_probe.results import schema
from adapter_probe.results.atomic import leftover_files
from adapter_probe.results.fingerprints import code_identity, hash_files, hash_json
from adapter_probe.results.rundir import PARTS, read_manifest
from adapter_probe.results.sealing import MADE_FROM, add_note, read_note, sealed_tables

from .ablation import Ablation
from .loading import load

if TYPE_CHECKING:
    from adapter_probe.checkpoints.identity import BaseIdentity

_COMMIT = re.compile("[0-9a-f]{40}")
# Weights in other formats; of a base, only safetensors are ever read.
_NOT_READ = frozenset((".bin", ".h5", ".msgpack", ".ot", ".onnx", ".pt", ".pth", ".gguf", ".ckpt", ".tflite"))


@dataclass(frozen=True)
class Sources:
    """Every file that an ablation reads, found by opening JSON files only.

    Attributes:
        base: folder of the base, resolved.
        data: sources of the examples, as recorded in the task.
        files: paths by role: ``checkpoint/NAME``, ``base/NAME``, ``data/NUMBER``.
        state: what the file system says of each file when it was found. It changes when a file is
            rewritten, because it includes the change time of the inode, which programs cannot set.
    """

    base: Path
    data: tuple[str, ...]
    files: dict[str, Path]
    state: dict[str, tuple[int, ...]]

    @classmethod
    def find(cls, arguments: AblationArguments) -> Sources | None:
        """The sources of an ablation, or None if they cannot be determined from files alone."""
        folder = Path(arguments.checkpoint)
        try:
            document = _document(folder)
            said, commit = document.get("base"), document.get("revision")
            name = document.get("base_model_name_or_path") or document.get("model_name")
            if isinstance(said, dict):
                name, commit = said["name"], said["revision"]
            base = _folder_of(*((name, commit) if arguments.base is None else (arguments.base, None)))
            if base is None:
                return None
            below = [path.parent for path in folder.glob(f"*/{CONFIG}")]  # results folders are not read
            files = {f"checkpoint/{name}": path for name, path in _files_in(folder, below)}
            of_base = _files_in(base, base.glob("*_templates"))  # with further chat templates
            files |= {f"base/{name}": path for name, path in of_base if path.suffix.lower() not in _NOT_READ}
            data = arguments.data or tuple(document["task"]["files"][arguments.split])
            for number, entry in enumerate(data):
                if (path := Path(entry)).is_file():
                    files[f"data/{number}"] = path
                # Tasks of lm-evaluation-harness may read anything, and so may a branch on the hub.
                elif not ((on_hub := HubSplit.parse(entry)) and _COMMIT.fullmatch(on_hub.revision or "")):
                    return None
            stats = {name: path.stat() for name, path in files.items()}
            state: dict[str, tuple[int, ...]] = {
                name: (said.st_dev, said.st_ino, said.st_size, said.st_mtime_ns, said.st_ctime_ns)
                for name, said in stats.items()
            }
            return cls(base, data, files, state)
        except (AdapterProbeError, OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError):
            return None  # opening the checkpoint will report what is wrong


def reopen_ablation(arguments: AblationArguments, sources: Sources | None, folder: Path) -> Ablation | None:
    """A finished ablation, if no byte of it or of its inputs has changed.

    Args:
        arguments: arguments of the current call.
        sources: the files that it reads.
        folder: results folder.

    Returns:
        None if the ablation is not finished, if anything has changed or cannot be determined, or if a writer
        was killed in the folder, so that the run, which claims the folder, removes its leftovers.
    """
    said = read_note(folder, MADE_FROM)
    if sources is None or str(sources.base) != said.get("base") or leftover_files(folder):
        return None
    asked = _recorded_arguments(arguments)
    if asked is None or (said.get("asked"), said.get("code")) != (asked, code_identity()):
        return None
    try:
        if sources.files.keys() != said["sha256"].keys() or hash_files(sources.files) != said["sha256"]:
            return None
        if _hash_of_unsealed_files(folder) != said["kept"]:
            return None
        read_manifest(folder / schema.MANIFEST)
        study = load(folder) if sealed_tables(folder) else None
        return study if isinstance(study, Ablation) else None
    except (AdapterProbeError, KeyError, AttributeError):  # resuming the run repairs or reports it
        return None


def record_sources(
    arguments: AblationArguments, sources: Sources | None, folder: Path, base: BaseIdentity
) -> None:
    """Record the inputs of a finished ablation, unless one of them was rewritten while it ran.

    Args:
        arguments: arguments of the current call.
        sources: the sources as found before anything was opened.
        folder: results folder, written and sealed.
        base: identity of the opened base.

    Raises:
        ResultsError: the record cannot be written.
    """
    asked = _recorded_arguments(arguments)
    if sources is None or asked is None or sources != Sources.find(arguments):
        return
    if _folder_of(base.name, base.revision) != sources.base:
        return
    sums = hash_files(sources.files)
    if sources != Sources.find(arguments):  # rewritten while it was hashed
        return
    made_from = {"asked": asked, "code": code_identity(), "base": str(sources.base), "sha256": sums}
    add_note(folder, MADE_FROM, {**made_from, "kept": _hash_of_unsealed_files(folder)})


def _recorded_arguments(arguments: AblationArguments) -> dict[str, Any] | None:
    """The arguments as plain JSON, without those that change no number: checkpoint path, rows per pass.

    None where the metric is a function, of which a name tells nothing.
    """
    if isinstance(arguments.metric, CustomMetric):
        return None
    settled = {**arguments.settled(), "code_schema": CODE_SCHEMA[arguments.settings.precision]}
    return {name: value for name, value in settled.items() if name not in ("checkpoint", "tokens_per_pass")}


def _document(folder: Path) -> dict[str, Any]:
    """The description file of a checkpoint, in this project's format or another library's."""
    inside = sorted(folder.glob(f"*/{CONFIG}"))
    for path in (folder / DESCRIPTION, folder / CONFIG, *inside[:1]):
        if path.is_file():
            document = json.loads(path.read_text(encoding="utf-8"))
            return document if isinstance(document, dict) else {}
    return {}


def _folder_of(name: str, commit: str | None) -> Path | None:
    """The folder of the base that opening would use; None if that requires access to the hub."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if commit is None or not _COMMIT.fullmatch(commit):
        return None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json", revision=commit)
    return Path(found).parent.resolve() if isinstance(found, str) else None


def _files_in(folder: Path, below: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """The files in a folder and in some of its subfolders, with their names relative to it."""
    for place in (folder, *sorted(below)):
        yield from ((p.relative_to(folder).as_posix(), p) for p in sorted(place.iterdir()) if p.is_file())


def _hash_of_unsealed_files(folder: Path) -> str:
    """The hash of a run's files that are not sealed tables: its parts and the record of mixed precision."""
    paths = [*sorted((folder / PARTS).glob("*")), folder / schema.GUARD]
    return hash_json(hash_files({path.name: path for path in paths if path.is_file()}))
