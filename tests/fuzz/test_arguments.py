"""Odd arguments of the public functions: one line, or the right numbers; see `arguments`."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from arguments import calls, draw
from subjects import SUITE, lay_drawn
from test_fuzz import LIMITS, MOST_WAITED, ONLY, SEED, TOTAL, judge
from truth import assert_same

pytestmark = pytest.mark.slow

CODE = (
    LIMITS
    + """
import sys, warnings
sys.path[:0] = [{folder!r}]
warnings.simplefilter("ignore")
import arguments
arguments.run({name!r}, {seed!r})
"""
)


class Judge:
    """What is right of a call that went through: the intact logits, where all examples were scored."""

    @staticmethod
    def judge(place: Path, _done: str) -> None:
        if (place / "intact.npy").exists():
            found = np.load(place / "intact.npy")
            with np.load(place / "out" / "predictions.npz") as archive:
                right = archive["logits"][0]
            if found.shape == right.shape:
                assert_same(found, right, "intact logits")


@pytest.fixture(scope="module")
def original(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished results beside the checkpoint, its base and its task."""
    place = tmp_path_factory.mktemp("arguments")
    lay_drawn(place, sources)
    shutil.copytree(sources / "task", place / "task")
    (place / "suite.toml").write_text(SUITE)
    return place


@pytest.mark.parametrize("name", calls())
def test_one_line_or_the_right_numbers(name: str, original: Path, program, tmp_path: Path):
    failures, n = [], max(1, round(TOTAL / 60))
    for number in range(n) if not ONLY else map(int, ONLY.split(",")):
        seed = f"{SEED}/arguments/{name}/{number}"
        _, done = draw(name, random.Random(seed))
        place = shutil.copytree(original, tmp_path / str(number))
        code = CODE.format(folder=str(Path(__file__).parent), name=name, seed=seed)
        outcome = program.start(folder=place, before=code).result(MOST_WAITED)
        verdict = judge(Judge, place, outcome, done)
        if verdict.kind == "failure":
            failures.append(f"{number}: {done}: {verdict.words}")
        else:
            shutil.rmtree(place)
    assert not failures, "\n".join([f"{len(failures)} of {n} calls of {name}:", *failures])
