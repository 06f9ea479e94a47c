"""Atomic writing, safe against a kill at any instant, and claims that allow one run per folder.

A file is written under a temporary name next to its target, forced to disk and renamed: readers see the old
file or the new one, never a mixture. Arrays carry a checksum of the whole file, so that damage is detected.
What cannot be written, here or by a caller of this module, is a `ResultsError`.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import math
import os
import re
import secrets
import socket
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from filelock import FileLock, Timeout

from adapter_probe.errors import ResultsError, reason_of
from adapter_probe.results.fingerprints import to_plain

if TYPE_CHECKING:
    import pandas as pd

_TEMPORARY_PREFIX, _TEMPORARY_SUFFIX = ".adapter-probe-", ".tmp"
_LOCK, _HOLDER = ".lock", ".lock-holder"
_CHECKSUM_LENGTH = hashlib.sha256().digest_size * 2


def write_bytes(path: str | Path, data: bytes | memoryview) -> None:
    """Replaces `path` by a file of `data`, or leaves it untouched.

    Raises:
        ResultsError: the disk is full, the folder is missing or read-only, or the like.
    """
    path = Path(path)
    temporary = path.with_name(f"{_TEMPORARY_PREFIX}{secrets.token_hex(8)}{_TEMPORARY_SUFFIX}")
    try:
        _write_new(temporary, data)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise ResultsError(f"cannot write {path}: {reason_of(error)}") from error
    finally:
        with suppress(OSError):
            os.unlink(temporary)  # exists only after a failure or interruption


def write_text(path: str | Path, text: str) -> None:
    """Replaces `path` by `text` in UTF-8, with unchanged line ends. Raises as `write_bytes` does."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | Path, value: object) -> None:
    """Replaces `path` by indented ASCII JSON in the given order of keys; NaN is written as null.

    Raises:
        ResultsError: as `write_bytes` does.
        TypeError: `value` holds something that JSON cannot (see `to_plain`).
        ValueError: `value` holds an infinity.
    """
    write_text(path, json.dumps(to_plain(value), indent=2, allow_nan=False) + "\n")


def read_json(path: str | Path) -> dict:
    """The JSON object in `path`.

    Raises:
        ResultsError: the file cannot be read or does not hold one JSON object.
    """
    try:
        value = json.loads(_contents(path), parse_constant=_finite, parse_float=_finite)
    except OSError as error:
        raise ResultsError(f"cannot read {path}: {reason_of(error)}") from error
    except (ValueError, RecursionError) as error:
        raise ResultsError(f"{path} is damaged: it is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ResultsError(f"{path} is damaged: expected a JSON object, got a {type(value).__name__}")
    return value


def _contents(path: str | Path) -> bytes:
    """The bytes of a regular file; a pipe or device might never end."""
    if (place := Path(path)).exists() and not place.is_file() and not place.is_dir():
        raise OSError(errno.EINVAL, "it is a pipe, socket or device; a regular file is needed")
    return place.read_bytes()


def _finite(text: str) -> float:
    """A number of a JSON file; NaN and infinities, which Python's reader accepts, are refused."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a number")
    return value


def write_csv(path: str | Path, frame: pd.DataFrame) -> None:
    r"""Replaces `path` by the frame's columns, without its index, as UTF-8 CSV with ``\n`` line ends.

    Floats are written in the fewest digits that read back as the same number, NaN as an empty field.
    Raises as `write_bytes` does.
    """
    write_text(path, frame.to_csv(index=False, lineterminator="\n"))


def write_arrays(path: str | Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Replaces `path` by an uncompressed ``.npz`` that `np.load` reads and `read_arrays` also verifies.

    Equal arrays give equal bytes. The archive's comment is the SHA-256 of all the bytes before it.

    Raises:
        ResultsError: as `write_bytes` does.
        ValueError: an array holds Python objects, which only pickle could store.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.comment = b"0" * _CHECKSUM_LENGTH
        for name in sorted(arrays):
            entry = zipfile.ZipInfo(f"{name}.npy")  # constant date, 1980
            with archive.open(entry, "w", force_zip64=True) as member:
                array = np.asarray(arrays[name], order="C")
                np.lib.format.write_array(member, array, allow_pickle=False)
    data = buffer.getbuffer()
    data[-_CHECKSUM_LENGTH:] = _checksum(data)
    write_bytes(path, data)


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays that `write_arrays` stored.

    Raises:
        ResultsError: the file cannot be read, or has changed since it was written.
    """
    try:
        data = _contents(path)
    except OSError as error:
        raise ResultsError(f"cannot read {path}: {reason_of(error)}") from error
    if data[-_CHECKSUM_LENGTH:] != _checksum(data):
        raise ResultsError(f"{path} is damaged: its checksum does not match its {len(data)} bytes")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            _refuse_swollen(archive, len(data))
            return {
                info.filename.removesuffix(".npy"): _read_array(archive, info) for info in archive.infolist()
            }
    except Exception as error:  # a foreign file, for which zipfile and NumPy may raise many errors
        raise ResultsError(f"{path} is not a file of arrays ({type(error).__name__})") from error


def _refuse_swollen(archive: zipfile.ZipFile, size: int) -> None:
    """Refuse archives that `write_arrays` cannot have written: its members are not compressed."""
    entries = archive.infolist()
    if any(info.compress_type != zipfile.ZIP_STORED for info in entries):
        raise ValueError("compressed arrays")
    if sum(info.file_size for info in entries) > size:
        raise ValueError("arrays larger than their file")


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    """One array, whose size is checked against its bytes before memory is allocated."""
    content = io.BytesIO(archive.read(info))
    version = np.lib.format.read_magic(content)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    shape, _, dtype = read_header[version](content)
    if math.prod(shape) * dtype.itemsize != info.file_size - content.tell():
        raise ValueError("a header that does not fit its array")
    content.seek(0)
    return np.lib.format.read_array(content, allow_pickle=False)


def make_folder(path: str | Path) -> Path:
    """Creates the folder and its parents if they are missing.

    Raises:
        ResultsError: it cannot be created.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResultsError(f"cannot create the folder {path}: {reason_of(error)}") from error
    return Path(path)


def remove_leftovers(folder: str | Path) -> None:
    """Removes what killed writers left half-written in `folder`; call it only while holding its claim."""
    for leftover in leftover_files(folder):
        with suppress(OSError):
            leftover.unlink()


def leftover_files(folder: str | Path) -> list[Path]:
    """What killed writers left half-written in `folder`, and what one that is at work is writing."""
    return list(Path(folder).glob(f"{_TEMPORARY_PREFIX}*{_TEMPORARY_SUFFIX}"))


@contextmanager
def claim_folder(folder: str | Path) -> Iterator[Path]:
    """Creates `folder` if necessary, and claims it for this process until the block ends.

    The operating system releases the claim when the process ends, for any reason.

    Raises:
        ResultsError: another run has claimed the folder, or it cannot be created or locked.
    """
    folder = make_folder(folder)
    lock = FileLock(folder / _LOCK, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        advice = "wait for it to end, or give another --out"
        raise ResultsError(f"{folder} is in use by another run{_holder(folder)}; {advice}") from None
    except (OSError, NotImplementedError) as error:
        raise ResultsError(f"cannot lock {folder}: {reason_of(error)}") from error
    try:
        with suppress(OSError):  # it only serves the error message of other runs
            (folder / _HOLDER).write_text(f"pid {os.getpid()} on {socket.gethostname()}\n", encoding="utf-8")
        remove_leftovers(folder)
        yield folder
    finally:
        with suppress(OSError):
            (folder / _HOLDER).unlink()
        lock.release()


def _write_new(path: Path, data: bytes | memoryview) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    """Forces a rename to disk, if the system supports it."""
    if os.name == "nt":
        return  # Windows cannot open folders
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems do not support it
            raise
    finally:
        os.close(descriptor)


def _checksum(data: bytes | memoryview) -> bytes:
    return hashlib.sha256(memoryview(data)[:-_CHECKSUM_LENGTH]).hexdigest().encode("ascii")


def _holder(folder: Path) -> str:
    with suppress(OSError, ValueError):
        text = (folder / _HOLDER).read_text(encoding="utf-8")
        if signature := re.fullmatch(r"(pid \d+ on \S+)\n", text):
            return f" ({signature[1]})"
    return ""
