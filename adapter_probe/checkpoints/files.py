"""Read files that somebody else wrote: bounded in memory, nothing but JSON (without torch) and tensors."""

from __future__ import annotations

import json
import math
import pickle
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from adapter_probe.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

_POINTER = b"version https://git-lfs.github.com/spec/"
_MOST_SHOWN = 40
_DAMAGE = (
    SafetensorError,
    pickle.UnpicklingError,
    RuntimeError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
)


def refuse_pointer(path: Path) -> None:
    """Refuse a file of git-LFS that was never downloaded: a few lines of text in place of the contents.

    Raises:
        CheckpointError: it is one.
    """
    try:
        with path.open("rb") as file:
            start = file.read(len(_POINTER))
    except OSError:  # whoever reads it in full says so
        return
    if start == _POINTER:
        raise CheckpointError(f"{path} is a git-LFS pointer, not the file itself; run `git lfs pull` there")


def read_json_file(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        CheckpointError: the file cannot be read, or holds something else.
    """
    refuse_pointer(path)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{path} holds {shown(document)}, expected an object")
    return document


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or of a torch file, of which nothing but tensors is loaded.

    They come by name: safetensors has an order of its own in every process, and the order of a method's parts
    is part of its identity.

    Raises:
        CheckpointError: the file cannot be read, holds something else, is compressed, or holds tensors that
            are no finite real numbers.
    """
    import safetensors.torch
    import torch

    refuse_pointer(path)
    try:
        size = path.stat().st_size
        if path.suffix == ".safetensors":
            tensors = safetensors.torch.load(path.read_bytes())
        else:
            _refuse_compressed(path)
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    except CheckpointError:
        raise
    except _DAMAGE as error:
        raise CheckpointError(f"{path} is damaged, or holds more than tensors") from error
    if not isinstance(tensors, Mapping) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in tensors.items()
    ):
        raise CheckpointError(f"{path} does not hold named tensors")
    return {name: _checked(path, name, tensor, size) for name, tensor in sorted(tensors.items())}


def _refuse_compressed(path: Path) -> None:
    """Torch never compresses: an archive that is compressed was made to unpack to something else."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise CheckpointError(f"{path} is compressed, which torch's files are not")


def _checked(path: Path, name: str, tensor: Tensor, file_size: int) -> Tensor:
    """One tensor in float32.

    Raises:
        CheckpointError: see `read_tensors`.
    """
    if tensor.numel() > file_size:  # a view that repeats the few numbers that there are
        raise CheckpointError(f"{path}: {name} has shape {list(tensor.shape)}, more than the file holds")
    check_values(path, name, tensor)
    return tensor.float()


def check_values(path: Path, name: str, tensor: Tensor) -> None:
    """Refuse what a cast would change in silence, and what is no number.

    Raises:
        CheckpointError: the tensor is not of finite floating-point numbers.
    """
    import torch

    if not tensor.dtype.is_floating_point or tensor.layout != torch.strided or tensor.is_meta:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise CheckpointError(f"{path}: {name} holds {kind} values, expected floating-point numbers")
    if not torch.isfinite(tensor.to(torch.float32)).all():
        raise CheckpointError(f"{path}: {name} holds NaN or infinite values")


def first_file(folder: Path, names: Iterable[str]) -> Path | None:
    """The first of these names that is there."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def number(path: Path, name: str, value: object, least: float | None = None) -> float:
    """A field that holds a finite number, perhaps at least so great.

    Raises:
        CheckpointError: it holds something else.
    """
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least:g}"
        raise CheckpointError(f"{path}: {name} is {shown(value)}, expected a number{bound}")
    return float(value)


def whole_number(path: Path, name: str, value: object, least: int = 0) -> int:
    """A field that holds a whole number of at least `least`.

    Raises:
        CheckpointError: it holds something else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise CheckpointError(
            f"{path}: {name} is {shown(value)}, expected a whole number of at least {least}"
        )
    return value


def texts(path: Path, name: str, value: object) -> tuple[str, ...]:
    """A field that holds strings, or nothing.

    Raises:
        CheckpointError: it holds something else.
    """
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise CheckpointError(f"{path}: {name} is {shown(value)}, expected a list of strings")
    return tuple(value)


def flag(path: Path, name: str, value: object) -> bool:
    """A field that holds true or false; null counts as false.

    Raises:
        CheckpointError: it holds something else.
    """
    if value is not None and not isinstance(value, bool):
        raise CheckpointError(f"{path}: {name} is {shown(value)}, expected true or false")
    return bool(value)


def refuse_unknown(path: Path, document: Mapping[str, Any], known: Iterable[str], of: str) -> None:
    """Refuse a field whose effect is not known; one that is not set (null, false, empty) has none.

    Args:
        path: for the message.
        document: what the file holds.
        known: names of the fields that are read, or known to change nothing.
        of: whose fields these are, with the version.

    Raises:
        CheckpointError: one line with the first such field.
    """
    known = set(known)
    for name, value in document.items():
        if name not in known and (value or (value in (0, 0.0) and value is not False)):
            raise CheckpointError(
                f"{path} has the field {shown(name)}, {shown(value)}, which {of} does not have: what it "
                "changes is not known"
            )


def shown(value: object, most: int = _MOST_SHOWN) -> str:
    """A value from a file, in few characters."""
    try:
        text = json.dumps(value, ensure_ascii=True)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= most else f"{text[: most - 1]}…"
