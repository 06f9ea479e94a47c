"""Read untrusted files: bounded in memory, only JSON (without torch) and tensors."""

from __future__ import annotations

import io
import json
import math
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapter_probe.errors import CheckpointError, reason_of
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
    parts = "*/config.json" if makes_embeddings(folder) else f"*/{CONFIG}"
    found = _files_in(folder, [path.parent for path in folder.glob(parts)])
    above = folder.absolute().parent
    shared = _files_in(above, ()) if (above / CONFIG).is_file() else {}
    return found | {f"../{name}": path for name, path in shared.items()}


MODULES, OF_MODULES = "modules.json", "config_sentence_transformers.json"
"""The list of modules that sentence-transformers writes, and its settings of the whole."""
VOCABULARIES = (
    "tokenizer.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.txt", "vocab.json"
)  # fmt: skip
"""The files of which one makes a folder's tokenizer; others only have its settings."""


def makes_embeddings(folder: Path) -> bool:
    """Whether sentence-transformers wrote a folder for embeddings, and not for a cross-encoder."""
    return (folder / MODULES).is_file() and not is_cross_encoder(folder)


def is_cross_encoder(folder: Path) -> bool:
    """Whether sentence-transformers 6 wrote a cross-encoder: a model with a head, also listed as modules."""
    about = folder / OF_MODULES
    return about.is_file() and read_json_file(about).get("model_type") == "CrossEncoder"


def base_files(folder: Path) -> dict[str, Path]:
    """The files of a base by name, with further chat templates; of its weights only safetensors are read."""
    found = _files_in(folder, folder.glob("*_templates"))
    return {name: path for name, path in found.items() if path.suffix.lower() not in _OTHER_WEIGHTS}


def _files_in(folder: Path, below: Iterable[Path]) -> dict[str, Path]:
    """The files in a folder and in some of its subfolders, by their names relative to it."""
    places = (folder, *sorted(below))
    found = (path for place in places for path in sorted(place.iterdir()) if path.is_file())
    return {path.relative_to(folder).as_posix(): path for path in found}


def cached_base(name: str, revision: str | None) -> Path | None:
    """The folder of a base in the cache of the hub, ``snapshots/<commit>``; None if it is not there."""
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(name, "config.json", revision=revision)
    except ValueError:  # not a name that the hub allows
        return None
    return Path(found).parent if isinstance(found, str) else None


def folder_of_base(name: str, commit: str | None) -> Path | None:
    """The folder of a base, also in the cache of the hub; None if finding it requires access to the hub."""
    folder: Path | None = Path(name).expanduser()
    if folder and not folder.is_dir():
        folder = cached_base(name, commit) if commit and COMMIT.fullmatch(commit) else None
    return folder and folder.resolve()


class Unsupported(CheckpointError):
    """A feature that is not supported, in a file that may be sound."""


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


def read_whole(path: Path) -> bytes:
    """The bytes of a file."""
    refuse_irregular(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {reason_of(error)}") from error


def read_json_file(path: Path) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        document = json.loads(read_whole(path).decode("utf-8"))
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
        as_stored: allow whole numbers, and keep every tensor's type; otherwise all become float32.

    Raises:
        CheckpointError: the file cannot be read, holds something else, is compressed, or holds tensors that
            are no finite real numbers.
    """
    import safetensors.torch
    import torch

    data = read_whole(path)
    try:
        if path.suffix == ".safetensors":
            tensors = safetensors.torch.load(data)
        else:
            if zipfile.is_zipfile(io.BytesIO(data)):  # torch never compresses: it may be a decompression bomb
                with zipfile.ZipFile(io.BytesIO(data)) as archive:
                    if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                        raise CheckpointError(f"{path} is compressed, which files written by torch never are")
            tensors = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except Exception as error:  # damage shows in many ways
        raise CheckpointError(f"{path} is damaged, or contains more than tensors") from error
    if not isinstance(tensors, Mapping) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in tensors.items()
    ):
        raise CheckpointError(f"{path} does not contain named tensors")
    for name, tensor in sorted(tensors.items()):
        if tensor.numel() > len(data):  # a view that repeats few stored numbers
            raise CheckpointError(
                f"{path}: {name} has shape {list(tensor.shape)}, more than the file contains"
            )
        whole = not (tensor.is_floating_point() or tensor.is_complex()) and tensor.layout == torch.strided
        if not (as_stored and whole and not tensor.is_meta):
            check_values(path, name, tensor)
    return {name: tensor if as_stored else tensor.float() for name, tensor in sorted(tensors.items())}


def check_values(path: Path, name: str, tensor: Tensor) -> None:
    """Refuse tensors that a cast would change silently, and values that are not finite."""
    import torch

    if not tensor.dtype.is_floating_point or tensor.layout != torch.strided or tensor.is_meta:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise CheckpointError(f"{path}: {name} contains {kind} values, expected floating-point numbers")
    if not is_finite(tensor.float() if tensor.dtype == torch.float64 else tensor):  # as it will be held
        raise CheckpointError(f"{path}: {name} contains NaN or infinite values")


def is_finite(tensor: Tensor) -> bool:
    """Whether floats hold neither NaN nor an infinity, in an eighth of the time of ``isfinite().all()``."""
    wide = tensor if tensor.element_size() > 1 else tensor.float()
    return not wide.numel() or all(bool(end.isfinite()) for end in wide.aminmax())


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
        known: names of fields that are read, or known to have no effect.
        of: library and version that define the fields.
    """
    known = set(known)
    for name, value in document.items():
        if name not in known and (value or (value in (0, 0.0) and value is not False)):
            raise Unsupported(
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


def refuse_random(lacking: Sequence[str], said: str, on_base: str, lacks_head: bool) -> None:
    """Refuse a checkpoint that leaves parameters of the model at random values.

    Args:
        lacks_head: whether the reason is that the checkpoint has no prediction head.
    """
    if lacking and lacks_head:
        raise CheckpointError(
            f"{said} contains no prediction head, and {on_base} has none that fits either; its predictions "
            "would be random"
        )
    if lacking:
        raise CheckpointError(
            f"neither {said} nor {on_base} has {first_of(lacking)}; these weights would be random"
        )


def refuse_full(out: Path) -> None:
    """Refuse to overwrite a checkpoint."""
    if any((out / name).exists() for name in (DESCRIPTION, DELTA, CONFIG, "config.json")):
        raise CheckpointError(f"{out} already contains a checkpoint; choose another folder")
