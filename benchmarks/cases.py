"""The cases: which model and texts, who contends, and how much of each contender's work is measured."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from environments import HERE, OWN, SCRATCH, python_of, variables

PREPARING = HERE / "preparing"
PEERS_OF_ADAPTERS = ("tree", "loop", "hooks", "adapters", "adapters-sorted")
PEERS_OF_LORA = ("tree", "loop", "peft-sorted")
ROWS, TRAIN = 1000, 1000  # of MNLI; sentences to train on where no checkpoint is given


class Absent(Exception):
    """A case cannot be made here; the message says what it needs."""


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        name: of its folder and its results.
        kind: random, lora or real; which script makes it.
        contenders: names of `contest.PLAYERS`.
        spec: what the script is told.
        every: contenders that run one variant after the other are measured on every k-th; 1 for all.
    """

    name: str
    kind: str
    contenders: tuple[str, ...]
    spec: dict[str, Any] = field(default_factory=dict)
    every: int = 1

    @property
    def folder(self) -> Path:
        """Where model, adapter and texts lie."""
        return SCRATCH / "cases" / self.name

    def tiny(self) -> Case:
        """The same with next to no work, to see whether everything runs."""
        if self.kind == "real":
            small = {"rows": 8, "train": 32}
        else:
            small = {"layers": 3, "hidden": 64, "texts": 8, "shortest": 4, "longest": 12}
        return replace(self, name=f"tiny-{self.name}", spec={**self.spec, **small}, every=min(self.every, 2))


def _random(layers: int, hidden: int, texts: int) -> dict[str, Any]:
    """What `random_case.py` is told; texts have 8 to 60 tokens."""
    shape = {"layers": layers, "hidden": hidden, "texts": texts, "shortest": 8, "longest": 60}
    return {**shape, "adapters": True}


def _real(name: str, rows: int | None) -> Case:
    return Case(name, "real", PEERS_OF_ADAPTERS, {"task": name, "rows": rows, "train": TRAIN}, every=6)


CASES: dict[str, Case] = {
    "bert-base": Case("bert-base", "random", PEERS_OF_ADAPTERS, _random(12, 768, 64)),
    "cola": _real("cola", rows=None),
    "mnli": _real("mnli", rows=ROWS),
    "bert-large": Case("bert-large", "random", PEERS_OF_ADAPTERS, _random(24, 1024, 16), every=20),
    "lora": Case("lora", "lora", PEERS_OF_LORA, _random(12, 768, 32) | {"adapters": False}, every=3),
}


def prepare(
    case: Case,
    environments: Mapping[str, Path],
    real: Path | None,
    checkpoints: Mapping[str, Path],
    threads: int,
) -> dict[str, Any]:
    """Make a case's folder, unless it is there, and return what is known of it.

    Args:
        case: which.
        environments: see `python_of`.
        real: folder with ``weights/gte-small`` and ``data/``, for real cases.
        checkpoints: trained ones, by case.
        threads: processor threads.

    Raises:
        Absent: what a real case needs is not there.
    """
    spec = _real_spec(case, real, checkpoints) if case.kind == "real" else case.spec
    known_file = case.folder / "case.json"
    if known_file.exists() and (known := json.loads(known_file.read_text()))["spec"] == spec:
        return known
    known_file.unlink(missing_ok=True)
    print(f"preparing {case.name}", file=sys.stderr)
    script = "real_case.py" if case.kind == "real" else "random_case.py"
    _run(python_of(OWN, {}), script, [str(case.folder), json.dumps(spec)], threads)
    if case.kind == "lora":
        _run(python_of("peft", environments), "lora_case.py", [str(case.folder)], threads)
    return json.loads(known_file.read_text())


def _run(python: Path, script: str, arguments: list[str], threads: int) -> None:
    command = [str(python), str(PREPARING / script), *arguments]
    subprocess.run(command, check=True, env=variables(threads), stdout=subprocess.DEVNULL)


def _real_spec(case: Case, real: Path | None, checkpoints: Mapping[str, Path]) -> dict[str, Any]:
    """The script's spec with its paths; a case's short task name is a folder of ``data/``."""
    name = case.spec["task"]
    if real is None:
        raise Absent(f"{case.name} needs real data and weights: give their folder with --real")
    task, base = real / "data" / name, real / "weights" / "gte-small"
    for folder in (task, base):
        if not folder.is_dir():
            raise Absent(f"{case.name} needs {folder}, which is not there")
    given = checkpoints.get(name)
    checkpoint = None if given is None else str(given.resolve())
    return {**case.spec, "task": str(task), "base": str(base), "checkpoint": checkpoint}
