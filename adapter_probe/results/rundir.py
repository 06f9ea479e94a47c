"""The folder of a run: its identity, its division into parts, and the finished parts.

``manifest.json`` is written first and never changed. Parts appear atomically, so a run that is killed at any
instant can be resumed after its last part, but only with the same identity.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adapter_probe.errors import ResultsError
from adapter_probe.results.atomic import (
    claim_folder,
    make_folder,
    read_arrays,
    remove_leftovers,
    write_arrays,
    write_json,
)
from adapter_probe.results.fingerprints import (
    canonical_json,
    hash_json,
    installed_versions,
    refuse_changes,
    to_plain,
)
from adapter_probe.results.manifests import SCHEMA, manifest_checksum, read_manifest
from adapter_probe.results.schema import MANIFEST
from adapter_probe.version import __version__

if TYPE_CHECKING:
    from typing_extensions import Self

PARTS = "parts"
_PART_NAME = re.compile(r"part-(\d{5}|[1-9]\d{5,})\.npz")
_VERSIONS_NOTED = ("numpy", "torch", "transformers", "peft", "bitsandbytes", "torchao")
_SEAL = "sealed_for"


class RunDirectory:
    """The folder of one run, claimed by this process for the duration of a ``with`` block.

    Attributes:
        identity: everything that determines the numbers, as plain JSON.
        plan: division of the work into parts. The first run's plan is stored and used by later runs, so that
            a resumed run has the same parts.
        created_with: library versions of the first run.
        damaged: parts that are damaged, or of another number or run; they count as missing and are computed
            again.
    """

    def __init__(self, path: str | Path, identity: Mapping[str, object], plan: Mapping[str, object]) -> None:
        self.path = Path(path)
        self.identity: Any = to_plain(identity)
        self.plan = to_plain(plan)
        self.created_with: dict[str, str] = {}
        self.damaged: list[Path] = []
        self._finished: set[int] = set()
        self._claim: ExitStack | None = None

    def __enter__(self) -> Self:
        """Claims the folder and checks its contents.

        Raises:
            ResultsError: another run holds the folder, it belongs to a run of another identity, its manifest
                is damaged or newer than this version, or it cannot be written.
        """
        with ExitStack() as stack:
            stack.enter_context(claim_folder(self.path))
            self._open_manifest()
            remove_leftovers(make_folder(self.path / PARTS))
            self.damaged, self._finished = [], set()
            for index, path in self._stored_parts():
                try:
                    self.read_sealed(index, path)
                    self._finished.add(index)
                except ResultsError:
                    self.damaged.append(path)
            self._claim = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        held, self._claim = self._claim, None
        if held is not None:
            held.close()

    def finished(self) -> set[int]:
        """Indices of the parts on disk, each verified when the folder was opened."""
        return set(self._finished)

    def write_part(self, index: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Stores part `index`, replacing an existing one.

        Raises:
            ResultsError: it cannot be written.
        """
        if self._claim is None:
            raise RuntimeError("a part can only be written inside `with RunDirectory(...)`")
        write_arrays(self._part_path(index), {**arrays, _SEAL: np.array(self._seal(index))})
        self._finished.add(index)

    def read_part(self, index: int) -> dict[str, np.ndarray]:
        """The arrays of part `index`.

        Raises:
            ResultsError: the part is missing, or was damaged since the folder was opened.
        """
        path = self._part_path(index)
        if not path.exists():
            raise ResultsError(f"{path} is missing; run the same command again to compute it")
        try:
            return self.read_sealed(index, path)
        except ResultsError as error:
            self._finished.discard(index)
            self.damaged.append(path)
            raise ResultsError(f"{error}; run the same command again to recompute it") from error

    def read_sealed(self, index: int, path: Path) -> dict[str, np.ndarray]:
        """The arrays of a file that a run with this identity and plan wrote as its part `index`.

        Raises:
            ResultsError: it is damaged, or another part, or of another run.
        """
        arrays = read_arrays(path)
        seal = arrays.pop(_SEAL, None)
        if seal is None or str(seal) != self._seal(index):
            raise ResultsError(f"{path} is not part {index} of the run in {self.path}")
        return arrays

    def _seal(self, index: int) -> str:
        run = {"identity": self.identity, "plan": self.plan}
        return canonical_json({"kind": "part", "number": index, "run_sha256": hash_json(run)})

    def _part_path(self, index: int) -> Path:
        return self.path / PARTS / f"part-{index:05d}.npz"

    def _stored_parts(self) -> Iterator[tuple[int, Path]]:
        for path in sorted((self.path / PARTS).glob("part-*.npz")):
            if name := _PART_NAME.fullmatch(path.name):
                yield int(name[1]), path

    def _open_manifest(self) -> None:
        path = self.path / MANIFEST
        if path.exists():
            stored = read_manifest(path)
            refuse_changes(
                stored["identity"], self.identity, f"{self.path} contains the results of another run",
                ". Choose another --out or remove the folder",
            )  # fmt: skip
            self.plan, self.created_with = stored["plan"], stored["created_with"]
        elif any(self._stored_parts()):
            raise ResultsError(
                f"{self.path} contains parts of a run but no {MANIFEST} that identifies it;"
                " choose another --out or remove the folder"
            )
        else:
            own = {"adapter-probe": __version__, "python": platform.python_version()}
            self.created_with = {**own, **installed_versions(_VERSIONS_NOTED)}  # not part of the identity
            sections = {"created_with": self.created_with, "identity": self.identity, "plan": self.plan}
            write_json(path, {"schema": SCHEMA, **sections, "checksum": manifest_checksum(sections)})
