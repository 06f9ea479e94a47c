from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from refusals import refuses

from adapter_probe.errors import ResultsError
from adapter_probe.results.atomic import (
    claim_folder,
    read_arrays,
    read_json,
    write_arrays,
    write_bytes,
    write_csv,
    write_json,
    write_text,
)

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX")


def fail_with(code: int) -> Callable:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


# ------------------------------------------------------------------ files, whole or not at all


@given(st.binary(max_size=200))
def test_bytes_round_trip(tmp_path_factory: pytest.TempPathFactory, data: bytes):
    path = tmp_path_factory.mktemp("bytes") / "file"
    write_bytes(path, b"before")
    write_bytes(path, data)
    assert path.read_bytes() == data
    assert os.listdir(path.parent) == ["file"]


def test_a_file_is_on_disk_before_it_takes_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls = []
    for name in ("write", "fsync", "replace"):
        real = getattr(os, name)

        def spy(*args: object, name: str = name, real: Callable = real) -> object:
            is_folder = name == "fsync" and stat.S_ISDIR(os.fstat(args[0]).st_mode)
            calls.append(f"{name} folder" if is_folder else name)
            return real(*args)

        monkeypatch.setattr(os, name, spy)
    write_bytes(tmp_path / "file", b"data")
    assert calls == ["write", "fsync", "replace", "fsync folder"]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:7]))
    data = bytes(range(256))
    write_bytes(tmp_path / "file", data)
    assert (tmp_path / "file").read_bytes() == data


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO])
def test_a_failing_system_call_is_one_line_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
):
    path = tmp_path / "spans.csv"
    write_text(path, "before")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail_with(code))
        refuses(ResultsError, (path, os.strerror(code)), write_text, path, "after")
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["spans.csv"]


def test_a_folder_that_cannot_be_synced_is_no_failure_but_a_full_disk_is(tmp_path, monkeypatch):
    real = os.fsync

    def fail_on_folders(code: int) -> Callable:
        return lambda fd: fail_with(code)() if stat.S_ISDIR(os.fstat(fd).st_mode) else real(fd)

    monkeypatch.setattr(os, "fsync", fail_on_folders(errno.EINVAL))
    write_text(tmp_path / "file", "data")
    assert (tmp_path / "file").read_text() == "data"
    monkeypatch.setattr(os, "fsync", fail_on_folders(errno.ENOSPC))
    file = tmp_path / "file"
    refuses(ResultsError, (file, os.strerror(errno.ENOSPC)), write_text, file, "data")


def _write_beyond_the_limit(path: Path, answer: multiprocessing.connection.Connection) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    try:
        write_bytes(path, b"x" * 100_000)
    except ResultsError as error:
        answer.send(str(error))


@needs_fork
def test_a_write_that_the_kernel_cuts_off_half_way(tmp_path: Path):
    path = tmp_path / "file"
    write_bytes(path, b"before")
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_write_beyond_the_limit, args=(path, theirs))
    child.start()
    assert ours.poll(20)
    assert ours.recv() == f"cannot write {path}: {os.strerror(errno.EFBIG)}"
    child.join()
    assert path.read_bytes() == b"before"
    assert os.listdir(tmp_path) == ["file"]


def test_impossible_places(tmp_path: Path):
    (tmp_path / "file").write_text("a file, not a folder")
    (tmp_path / "folder").mkdir()
    for place, code in (
        ("file/spans.csv", errno.ENOTDIR), ("missing/spans.csv", errno.ENOENT), ("folder", errno.EISDIR)
    ):  # fmt: skip
        refuses(ResultsError, (tmp_path / place, os.strerror(code)), write_text, tmp_path / place, "x")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_an_interrupt_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    write_text(tmp_path / "file", "before")
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_text(tmp_path / "file", "after")
    assert (tmp_path / "file").read_text() == "before"
    assert os.listdir(tmp_path) == ["file"]


@needs_fork
def test_permissions_follow_the_umask(tmp_path: Path):
    previous = os.umask(0o027)
    try:
        write_text(tmp_path / "file", "shared with the group")
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


# ------------------------------------------------------------------ JSON and CSV

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON))
def test_json_round_trips(tmp_path_factory: pytest.TempPathFactory, value: dict):
    path = tmp_path_factory.mktemp("json") / "file.json"
    write_json(path, value)
    assert read_json(path) == value == json.loads(path.read_text("ascii"))
    assert path.read_bytes().endswith(b"}\n")


def test_nan_is_null(tmp_path: Path):
    write_json(tmp_path / "summary.json", {"score": float("nan")})
    assert (tmp_path / "summary.json").read_text() == '{\n  "score": null\n}\n'


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b'{"a": 1', b'{"a": "\xff"}', b"[1, 2]", b"nonsense", b"[" * 100_000),
        *(b'{"a": [1, ' + number + b"]}" for number in (b"NaN", b"Infinity", b"-Infinity", b"1e999")),
    ],
)
def test_damaged_json_is_one_line(tmp_path: Path, data: bytes):
    path = tmp_path / "manifest.json"
    path.write_bytes(data)
    refuses(ResultsError, (path, "damaged"), read_json, path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes in folders")
def test_a_pipe_or_a_folder_is_no_json(tmp_path: Path):
    """Nobody writes into the pipe: whoever opened it would wait."""
    os.mkfifo(tmp_path / "pipe")
    for path, facts in ((tmp_path / "pipe", ("pipe",)), (tmp_path, ())):
        refuses(ResultsError, (path, "cannot read", *facts), read_json, path)


def test_missing_json_is_one_line(tmp_path: Path):
    refuses(ResultsError, (tmp_path / "no.json", os.strerror(errno.ENOENT)), read_json, tmp_path / "no.json")


@given(st.lists(st.floats(allow_nan=False), min_size=1))
def test_csv_floats_are_exact_and_shortest(tmp_path_factory: pytest.TempPathFactory, values: list[float]):
    path = tmp_path_factory.mktemp("csv") / "file.csv"
    write_csv(path, pd.DataFrame({"value": values, "row": range(len(values))}))
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["value", "row"]
    assert [float(row[0]) for row in rows[1:]] == values
    assert all(len(row[0]) <= len(repr(value)) for row, value in zip(rows[1:], values))
    assert b"\r" not in path.read_bytes()


# ------------------------------------------------------------------ arrays

ARRAYS = st.dictionaries(
    st.text("abcfilepicwow_", min_size=1),  # `file` and `allow_pickle` would be np.savez's own arguments
    hnp.arrays(
        hnp.boolean_dtypes() | hnp.integer_dtypes() | hnp.floating_dtypes() | hnp.unicode_string_dtypes(),
        hnp.array_shapes(min_dims=0, min_side=0, max_side=4),
    ),
    max_size=3,
)


@given(ARRAYS)
def test_arrays_round_trip(tmp_path_factory: pytest.TempPathFactory, arrays: dict[str, np.ndarray]):
    path = tmp_path_factory.mktemp("arrays") / "part.npz"
    write_arrays(path, arrays)
    with np.load(path, allow_pickle=False) as theirs:  # NumPy alone reads the file too
        everything = {name: theirs[name] for name in theirs.files}
    for read in (read_arrays(path), everything):
        assert read.keys() == arrays.keys()
        for name, array in arrays.items():
            assert (read[name].dtype, read[name].shape) == (array.dtype, array.shape)
            assert read[name].tobytes() == array.tobytes()


def test_equal_arrays_give_equal_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    a, b = np.arange(6.0).reshape(2, 3), np.array(["x", "yz"])
    write_arrays(tmp_path / "first.npz", {"a": a, "b": b})
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: 2e9)
        patch.setattr(time, "localtime", lambda *_: time.gmtime(2e9))
        write_arrays(tmp_path / "second.npz", {"b": b, "a": np.asfortranarray(a)})
    assert (tmp_path / "first.npz").read_bytes() == (tmp_path / "second.npz").read_bytes()
    with zipfile.ZipFile(tmp_path / "first.npz") as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert archive.testzip() is None


def test_every_flipped_byte_and_every_truncation_is_noticed(tmp_path: Path):
    path = tmp_path / "part.npz"
    write_arrays(path, {"logits": np.arange(5, dtype=np.float32), "n": np.int64(3)})
    whole = path.read_bytes()
    flips = np.random.default_rng(0).integers(1, 256, size=len(whole))
    for at, flip in enumerate(flips):
        flipped = whole[:at] + bytes([whole[at] ^ int(flip)]) + whole[at + 1 :]
        for damaged in (flipped, whole[:at] if at % 3 else whole + whole[: at + 1]):
            copy = tmp_path / "copy.npz"  # a new file each time: some file systems sync one that is rewritten
            copy.write_bytes(damaged)
            refuses(ResultsError, ("copy.npz",), read_arrays, copy)
            copy.unlink()
    assert read_arrays(path)["n"] == 3


def with_checksum(data: bytes) -> bytes:
    """A file that the checksum takes for ours, whatever it holds."""
    from hashlib import sha256

    return data + sha256(data).hexdigest().encode()


class Trap:
    """Writes a file if anybody unpickles it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def test_a_pickle_is_never_loaded(tmp_path: Path):
    sprung = tmp_path / "sprung"
    trap = np.empty(1, dtype=object)
    trap[0] = Trap(sprung)
    buffer = io.BytesIO()
    np.savez(buffer, logits=trap)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.comment = b"0" * 64
    path = tmp_path / "part.npz"
    path.write_bytes(with_checksum(buffer.getvalue()[:-64]))
    refuses(ResultsError, (path, "arrays"), read_arrays, path)
    assert not sprung.exists()
    np.load(path, allow_pickle=True)["logits"]
    assert sprung.exists()  # the trap works, so the above means something


@pytest.mark.parametrize("data", [b"", b"hello", b"PK\x03\x04", b"\x93NUMPY\x01\x00", bytes(100)])
def test_foreign_files_with_a_right_checksum_are_one_line(tmp_path: Path, data: bytes):
    path = tmp_path / "part.npz"
    path.write_bytes(with_checksum(data))
    refuses(ResultsError, (path, "arrays"), read_arrays, path)


def sealed_archive(path: Path, compression: int, content: bytes, names: tuple[str, ...] = ("a.npy",)) -> None:
    """A file with the right checksum whose members hold `content`."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.comment = b"0" * 64
        for name in names:
            archive.writestr(name, content)
    data = bytearray(buffer.getvalue())
    data[-64:] = hashlib.sha256(data[:-64]).hexdigest().encode()
    path.write_bytes(data)


def npy(array: np.ndarray, shape: tuple[int, ...]) -> bytes:
    """An array's bytes under a header that claims another shape."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": array.dtype.str, "fortran_order": False, "shape": shape}
    )
    return buffer.getvalue() + array.tobytes()


@pytest.mark.parametrize(
    ("compression", "shape"),
    [(zipfile.ZIP_DEFLATED, (1 << 22,)), (zipfile.ZIP_STORED, (1 << 40,)), (zipfile.ZIP_STORED, (5,))],
)
def test_arrays_larger_than_their_file_are_refused_before_room_is_made(tmp_path, compression, shape):
    content = npy(np.zeros(1 << 22 if compression else 4, np.uint8), shape)
    sealed_archive(tmp_path / "a.npz", compression, content)
    tracemalloc.start()
    refuses(ResultsError, (tmp_path / "a.npz", "arrays"), read_arrays, tmp_path / "a.npz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_object_arrays_are_refused_before_anything_is_written(tmp_path: Path):
    with pytest.raises(ValueError, match="Object arrays"):
        write_arrays(tmp_path / "part.npz", {"a": np.array([{}])})
    assert os.listdir(tmp_path) == []


def test_unreadable_arrays_are_one_line(tmp_path: Path):
    part = tmp_path / "part.npz"
    refuses(ResultsError, (part, os.strerror(errno.ENOENT)), read_arrays, part)
    if sys.platform != "win32":
        refuses(ResultsError, (tmp_path, os.strerror(errno.EISDIR)), read_arrays, tmp_path)


HOLD = """
import sys
from adapter_probe.results.atomic import claim_folder
with claim_folder(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen]:
    """Another program that holds the folder until its stdin closes."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "out")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_process_is_told_who_holds_the_folder(tmp_path, holder):
    out = tmp_path / "out"
    for _ in range(2):  # being refused must not disturb what the next one is told
        refuses(ResultsError, (out, "in use", f"pid {holder.pid}", "--out"), claim_folder(out).__enter__)
    holder.communicate()
    with claim_folder(out):
        pass


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX")
def test_kill_9_lets_go_of_the_folder(tmp_path: Path, holder: subprocess.Popen):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    out = tmp_path / "out"
    with claim_folder(out):
        refuses(ResultsError, (out, f"pid {os.getpid()}"), claim_folder(out).__enter__)


@pytest.mark.parametrize("text", [None, b"", b"pid 12", b"pid 12 on host", b"\xff\xfe", b"pid 12 on a\nb\n"])
def test_an_unreadable_holder_is_left_out(tmp_path: Path, text: bytes | None):
    with claim_folder(tmp_path):
        signature = tmp_path / ".lock-holder"
        signature.unlink() if text is None else signature.write_bytes(text)
        said = refuses(ResultsError, (tmp_path, "in use", "wait"), claim_folder(tmp_path).__enter__)
        assert "pid" not in said


def test_an_error_inside_lets_go_and_passes_through(tmp_path: Path):
    with pytest.raises(ZeroDivisionError), claim_folder(tmp_path):
        raise ZeroDivisionError
    with claim_folder(tmp_path):
        pass


def test_leftovers_of_killed_writers_go_and_nothing_else(tmp_path: Path):
    (tmp_path / ".adapter-probe-0123456789abcdef.tmp").write_bytes(b"half")
    for name in ("notes.tmp", ".adapter-probe-notes", "spans.csv"):
        (tmp_path / name).write_bytes(b"kept")
    with claim_folder(tmp_path):
        left = set(os.listdir(tmp_path)) - {".lock", ".lock-holder"}
    assert left == {"notes.tmp", ".adapter-probe-notes", "spans.csv"}
    assert ".lock-holder" not in os.listdir(tmp_path)


def test_folders_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").write_text("a file, not a folder")
    for out in (tmp_path / "file", tmp_path / "file" / "out"):
        refuses(ResultsError, (out, "folder"), claim_folder(out).__enter__)


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(errno.EACCES, os.strerror(errno.EACCES)),
        OSError(errno.EROFS, os.strerror(errno.EROFS)),
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        NotImplementedError("no locks\nhere"),
    ],
)
def test_folders_that_cannot_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(filelock.FileLock, "acquire", fail)
    reason = getattr(error, "strerror", None) or "no locks here"
    said = refuses(ResultsError, (), claim_folder(tmp_path).__enter__)
    assert said == f"cannot lock {tmp_path}: {reason}"
