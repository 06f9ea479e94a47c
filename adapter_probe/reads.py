"""The files that a computation reads: readers report them here, and whoever wants to know records them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Reads:
    """What was read while it was recorded.

    Attributes:
        base: name and commit of the base model, as the checkpoint or the user gives them.
        files: paths by role: ``checkpoint/NAME``, ``base/NAME``, ``data/PATH``.
        state: what the file system said of each file just before it was read. It changes when a file is
            rewritten, because it includes the change time of the inode, which programs cannot set.
        known: whether nothing was read but files, at places that are known without a network.
    """

    base: tuple[str, str | None] | None = None
    files: dict[str, Path] = field(default_factory=dict)
    state: dict[str, tuple[int, ...] | None] = field(default_factory=dict)
    known: bool = True

    @property
    def rewritten(self) -> bool:
        """Whether a file has been written since it was read."""
        return any(_state_of(path) != self.state[name] for name, path in self.files.items())

    def of_model(self) -> Reads:
        """The same without the data."""
        files = {name: path for name, path in self.files.items() if not name.startswith("data/")}
        return Reads(self.base, files, {name: self.state[name] for name in files}, self.known)


_recording: list[Reads] = []


@contextmanager
def recorded(earlier: Reads | None = None) -> Iterator[Reads]:
    """Record what is read inside the block, in addition to `earlier`."""
    reads = Reads() if earlier is None else earlier
    _recording.append(reads)
    try:
        yield reads
    finally:
        _recording.remove(reads)


def report(role: str, files: Callable[[], Mapping[str, Path]]) -> None:
    """Report files that are about to be read; those of `role` are listed only while someone records.

    Args:
        role: ``checkpoint``, ``base`` or ``data``.
    """
    for reads in _recording:
        for name, path in files().items():
            reads.files.setdefault(f"{role}/{name}", path)
            reads.state.setdefault(f"{role}/{name}", _state_of(path))


def report_base(name: str, commit: str | None) -> None:
    """Report which base is about to be read; a later report of the same base says nothing new."""
    for reads in _recording:
        reads.base = reads.base or (name, commit)


def report_unknown() -> None:
    """Report that something is about to be read which is no file at a known place."""
    for reads in _recording:
        reads.known = False


def _state_of(path: Path) -> tuple[int, ...] | None:
    try:
        said = path.stat()
    except OSError:  # the reader will say so
        return None
    return said.st_dev, said.st_ino, said.st_size, said.st_mtime_ns, said.st_ctime_ns
