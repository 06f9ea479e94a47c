"""Read untrusted files: bounded in memory, only JSON (without torch) and tensors."""

from __future__ import annotations

import json
import math
import pickle
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapter_probe.errors import CheckpointError, one_line, reason_of
from adapter_probe.errors import quote as quote

if TYPE_CHECKING:
    from torch import Tensor

DESCRIPTION = "adapter_probe.json"
"""The file that describes a checkpoint of this project."""
DELTA = "delta.safetensors"
"""The file of its tensors."""

CONFIG = "adapter_config.json"
"""The file that describes a checkpoint of PEFT or AdapterHub."""


def is_own(folder: Path) -> bool:
    """Whether a checkpoint is in this project's format, and not in PEFT's with the record of its training."""
    return (folder / DESCRIPTION).is_file() and not (folder / CONFIG).is_file()


_POINTER = b"version https://git-lfs.github.com/spec/"
_DAMAGE = (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, LookupError, TypeError)


MODULE_NAME = re.compile(r"\w+(\.\w+)*")
COMMIT = re.compile("[0-9a-f]{40}")
_OTHER_WEIGHTS = frozenset(
    (".bin", ".h5", ".msgpack", ".ot", ".onnx", ".pt", ".pth", ".gguf", ".ckpt", ".tflite")
)
_READ = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")


def refuse_unreadable(folder: Path) -> None:
    """Refuse a model's folder if a file that transformers reads is no file with its own contents."""
    for path in (path for pattern in _READ for path in sorted(folder.glob(pattern))):
        refuse_irregular(path)


def checkpoint_files(folder: Path) -> dict[str, Path]:
    """The files of a checkpoint by name, with those of adapters in subfolders but not those of results.

    Above one of several adapters, there are the files of another, whose tokenizer may be that of both.
    """
    parts = "*/config.json" if (folder / MODULES).is_file() else f"*/{CONFIG}"
    found = _files_in(folder, [path.parent for path in folder.glob(parts)])
    above = folder.absolute().parent
    shared = _files_in(above, ()) if (above / CONFIG).is_file() else {}
    return found | {f"../{name}": path for name, path in shared.items()}


MODULES = "modules.json"
"""The list of modules that sentence-transformers writes."""


def base_files(folder: Path) -> dict[str, Path]:
    """The files of a base by name, with further chat templates; of its weights only safetensors are read."""
    found = _files_in(folder, folder.glob("*_templates"))
    return {name: path for name, path in found.items() if path.suffix.lower() not in _OTHER_WEIGHTS}


def _files_in(folder: Path, below: Iterable[Path]) -> dict[str, Path]:
    """The files in a folder and in some of its subfolders, by their names relative to it."""
    places = (folder, *sorted(below))
    found = (path for place in places for path in sorted(place.iterdir()) if path.is_file())
    return {path.relative_to(folder).as_posix(): path for path in found}


def folder_of_base(name: str, commit: str | None) -> Path | None:
    """The folder of a base, also in the cache of the hub; None if finding it requires access to the hub."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if commit is None or not COMMIT.fullmatch(commit):
        return None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json", revision=commit)
    return Path(found).parent.resolve() if isinstance(found, str) else None


class Unsupported(CheckpointError):
    """A feature that is not supported, in a file that may be sound."""


class UnknownField(Unsupported):
    """A field whose effect is unknown here; another version of its library may know it."""


def refuse_irregular(path: Path) -> None:
    """Refuse a pipe or device, which might never end, and a git-LFS pointer: a few lines about the file."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise CheckpointError(f"{path} is a pipe, socket or device; a regular file is needed")
    if not path.is_file():
        return
    try:
        with path.open("rb") as file:
            start = file.read(len(_POINTER))
    except OSError:  # whoever reads it in full says so
        return
    if start == _POINTER:
        raise CheckpointError(f"{path} is a git-LFS pointer, not the file itself; run `git lfs pull` there")


def read_json_file(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        CheckpointError: the file cannot be read, or contains something else.
    """
    refuse_irregular(path)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {reason_of(error)}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} contains {quote(document)}, expected an object")
    return document


def read_tensors(path: Path, *, as_stored: bool = False) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or of a torch file, from which only tensors are loaded.

    They are sorted by name, because safetensors returns them in an order that differs between processes, and
    the order of a method's parts is part of its identity.

    Args:
        path: the file.
        as_stored: allow whole numbers, and keep every tensor's type; otherwise all become float32.

    Raises:
        CheckpointError: the file cannot be read, holds something else, is compressed, or holds tensors that
            are no finite real numbers.
    """
    import safetensors.torch
    import torch

    refuse_irregular(path)
    try:
        size = path.stat().st_size
        if path.suffix == ".safetensors":
            tensors = safetensors.torch.load(path.read_bytes())
        else:
            _refuse_compressed(path)
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {reason_of(error)}") from error
    except CheckpointError:
        raise
    except (safetensors.SafetensorError, *_DAMAGE) as error:
        raise CheckpointError(f"{path} is damaged, or contains more than tensors") from error
    if not isinstance(tensors, Mapping) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in tensors.items()
    ):
        raise CheckpointError(f"{path} does not contain named tensors")
    for name, tensor in sorted(tensors.items()):
        if tensor.numel() > size:  # a view that repeats few stored numbers
            raise CheckpointError(
                f"{path}: {name} has shape {list(tensor.shape)}, more than the file contains"
            )
        whole = not (tensor.is_floating_point() or tensor.is_complex()) and tensor.layout == torch.strided
        if not (as_stored and whole and not tensor.is_meta):
            check_values(path, name, tensor)
    return {name: tensor if as_stored else tensor.float() for name, tensor in sorted(tensors.items())}


def _refuse_compressed(path: Path) -> None:
    """Refuse compressed archives: torch never compresses, so it may be a decompression bomb."""
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{path} is damaged: {one_line(error)}") from error
    if not stored:
        raise CheckpointError(f"{path} is compressed, which files written by torch never are")


def check_values(path: Path, name: str, tensor: Tensor) -> None:
    """Refuse tensors that a cast would change silently, and values that are not finite."""
    import torch

    if not tensor.dtype.is_floating_point or tensor.layout != torch.strided or tensor.is_meta:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise CheckpointError(f"{path}: {name} contains {kind} values, expected floating-point numbers")
    if not torch.isfinite(tensor.to(torch.float32)).all():
        raise CheckpointError(f"{path}: {name} contains NaN or infinite values")


def first_file(folder: Path, names: Iterable[str]) -> Path | None:
    """The first of these names that exists."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def number_field(path: Path, name: str, value: object, least: float | None = None) -> float:
    """A field that contains a finite number, optionally with a lower bound."""
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least:g}"
        raise CheckpointError(f"{path}: {name} is {quote(value)}, expected a number{bound}")
    return float(value)


def whole_number_field(path: Path, name: str, value: object, least: int = 0) -> int:
    """A field that contains a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise CheckpointError(
            f"{path}: {name} is {quote(value)}, expected a whole number of at least {least}"
        )
    return value


def text_list_field(path: Path, name: str, value: object) -> tuple[str, ...]:
    """A field that contains a list of strings, or is not set."""
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise CheckpointError(f"{path}: {name} is {quote(value)}, expected a list of strings")
    return tuple(value)


def flag_field(path: Path, name: str, value: object) -> bool:
    """A field that contains true or false; null counts as false."""
    if value is not None and not isinstance(value, bool):
        raise CheckpointError(f"{path}: {name} is {quote(value)}, expected true or false")
    return bool(value)


def refuse_unknown(path: Path | str, document: Mapping[str, Any], known: Iterable[str], of: str) -> None:
    """Refuse fields with unknown effect, unless they are not set (null, false, empty).

    Args:
        path: path that is named in the message.
        document: contents of the file.
        known: names of fields that are read, or known to have no effect.
        of: library and version that define the fields.
    """
    known = set(known)
    for name, value in document.items():
        if name not in known and (value or (value in (0, 0.0) and value is not False)):
            raise UnknownField(
                f"{path} has the field {quote(name)}, {quote(value)}, which {of} does not have, so its "
                "effect is unknown"
            )


def unsupported(folder: Path, what: str, supported: Iterable[str] = ()) -> CheckpointError:
    """The error for a feature that this project does not support; it lists what is supported."""
    instead = ", ".join(supported)
    more = f"; supported are {instead}" if instead else ""
    return Unsupported(f"checkpoint {folder} has {what}, which is not supported{more}")


def first_of(names: Sequence[str]) -> str:
    """The first of some names and the number of the others, for a message."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def refuse_other_shape(
    name: str, stored: Sequence[int], needed: Sequence[int], place: str, model: str
) -> None:
    """Refuse a tensor of another shape than its place in the model."""
    if list(stored) != list(needed):
        raise CheckpointError(f"{place}: {name} has shape {list(stored)}, {model} needs {list(needed)}")


def refuse_other_tensors(
    stored: Set[str], targets: Set[str], empty: Set[str], said: str, on_base: str, lacks_head: bool
) -> None:
    """Refuse tensors that do not make a model whole, or do not belong to it.

    Args:
        stored: names of the tensors of a checkpoint.
        targets: names of the model's parameters.
        empty: those that the base does not fill.
        said: what to call the checkpoint in the message.
        on_base: what to call the base.
        lacks_head: whether the checkpoint has no prediction head.
    """
    if lacking := sorted(empty - stored):
        if lacks_head:
            raise CheckpointError(
                f"{said} contains no prediction head, and {on_base} has none that fits either; its "
                "predictions would be random"
            )
        raise CheckpointError(
            f"neither {said} nor {on_base} has {first_of(lacking)}; these weights would be random"
        )
    if unknown := sorted(stored - targets):
        raise CheckpointError(f"{said} contains {unknown[0]}, which the model on {on_base} does not have")


def refuse_full(out: Path) -> None:
    """Refuse to overwrite a checkpoint."""
    if any((out / name).exists() for name in (DESCRIPTION, DELTA, CONFIG, "config.json")):
        raise CheckpointError(f"{out} already contains a checkpoint; choose another folder")
