"""A run that ends at any system call and is started again leaves the same bytes as an undisturbed one.

The program is killed at random instants in tests/cli/test_kill_at_random.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from ablation_facts import changed, small_ablation

from adapter_probe.results.ablation_files import save_predictions, write_spans
from adapter_probe.results.rundir import RunDirectory
from adapter_probe.results.schema import SPANS_COLUMNS

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX")]

N_PARTS, PER_PART, SPANS = 2, 4000, ((-1, -1), (0, 0), (0, 1), (1, 1))
IDENTITY = {"data": {"fingerprint": "3f" * 32, "split": "validation"}, "dtype": "float32"}
PLAN = {"parts": N_PARTS}
KILLED_AT_A_CALL = 77


def run_job(folder: Path) -> None:
    """The whole of a small study, resumable. A part's index decides every bit of it."""
    with RunDirectory(folder, IDENTITY, PLAN) as run:
        for index in sorted(set(range(N_PARTS)) - run.finished()):
            generator = np.random.default_rng(index)
            run.write_part(index, {"logits": generator.normal(size=(4, PER_PART, 2)).astype(np.float32)})
        logits = np.concatenate([run.read_part(index)["logits"] for index in range(N_PARTS)], axis=1)
        found = changed(
            small_ablation(), masks=np.tri(4, dtype=bool), spans=np.array(SPANS), outputs=logits,
            row_names=("intact", "0-0", "0-1", "1-1"), scored_with=np.arange(logits.shape[1]) % 2,
        )  # fmt: skip
        save_predictions(folder, found)
        write_spans(folder, span_frame(logits))


def span_frame(logits: np.ndarray) -> pd.DataFrame:
    scores = logits.mean(axis=(1, 2), dtype=np.float64)
    rows = [
        (first, last, last - first + 1, score, 100 * (score - scores[0]), logits.shape[1])
        for (first, last), score in zip(SPANS[1:], scores[1:])
    ]
    return pd.DataFrame(rows, columns=list(SPANS_COLUMNS))


def contents(folder: Path) -> dict[str, str]:
    """Every file's digest by its path, the lock aside."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def start(target: object, *args: object) -> multiprocessing.Process:
    child = multiprocessing.get_context("fork").Process(target=target, args=args, daemon=True)
    child.start()
    return child


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What an undisturbed run leaves."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run_job(folder)
    files = contents(folder)
    assert len(files) == N_PARTS + 3
    return files


def die_before_call(number: int, folder: Path) -> None:
    """Runs the job, but is gone before its `number`-th system call that changes or syncs the disk."""
    calls = 0

    def counted(name: str) -> object:
        real = getattr(os, name)

        def call(*args: object, **options: object) -> object:
            nonlocal calls
            calls += 1
            if calls == number:
                os._exit(KILLED_AT_A_CALL)
            if name == "write":  # in small pieces, so that files are left half-written as well
                return real(args[0], args[1][: max(1, len(args[1]) // 2)] if calls + 1 == number else args[1])
            return real(*args, **options)

        return call

    for name in ("mkdir", "open", "write", "fsync", "replace", "unlink"):
        setattr(os, name, counted(name))
    run_job(folder)


def test_death_before_every_single_system_call(tmp_path: Path, undisturbed: dict[str, str]):
    files = undisturbed
    number = half_written = 0
    while True:
        number += 1
        folder = tmp_path / str(number)
        child = start(die_before_call, number, folder)
        child.join()
        if child.exitcode == 0:
            break
        assert child.exitcode == KILLED_AT_A_CALL
        half_written += any(path.stat().st_size for path in folder.rglob(".adapter-probe-*.tmp"))
        run_job(folder)
        assert contents(folder) == files
    # Seven calls for each of the files, and those for the folders.
    assert number > 7 * len(files)
    assert half_written >= len(files)
