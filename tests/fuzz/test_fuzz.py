"""Mutated inputs to the real program: one line and exit code 2, or the right numbers, and nothing else.

Every file that a user can hand in is changed at random, in a child process with a limit on time and memory.
What is right is found in `truth`, without the code under test. ``make test-all`` draws a few mutations for
each kind of input; for more, and for others:

    ADAPTER_PROBE_FUZZ=2000 ADAPTER_PROBE_FUZZ_SEED=1 .venv/bin/python -m pytest tests/fuzz -n 2

Failures are listed with the number that draws them again: ``ADAPTER_PROBE_FUZZ_ONLY=17,20``.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from mutations import mutate
from subjects import SUBJECTS, Subject

pytestmark = pytest.mark.slow

TOTAL = int(os.environ.get("ADAPTER_PROBE_FUZZ", "120"))
SEED = int(os.environ.get("ADAPTER_PROBE_FUZZ_SEED", "0"))
ONLY = os.environ.get("ADAPTER_PROBE_FUZZ_ONLY", "")
SECONDS = 120  # of processor time, so that a busy machine is no failure
MOST_WAITED = 10 * SECONDS
LIMITS = f"""
import resource
resource.setrlimit(resource.RLIMIT_CPU, ({SECONDS}, {SECONDS}))
resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
"""
PROGRESS = re.compile(r"\w[\w -]*: +\d+%\|")


@dataclass(frozen=True)
class Verdict:
    """``refused``, ``right`` or, with the reason, ``failure``."""

    kind: str
    words: str = ""


def said(outcome, place: Path) -> list[str]:
    """The lines of standard error without progress, and without the folder of the input."""
    lines = outcome.stderr.replace("\r", "\n").replace(str(place), "").split("\n")
    return [line for line in lines if line.strip() and not PROGRESS.match(line.strip())]


def judge(subject: Subject, place: Path, outcome, done: str, notes: Sequence[str] = ()) -> Verdict:
    """The class of an outcome; `notes` are lines that the input as it was has, too."""
    lines = [line for line in said(outcome, place) if line not in notes]
    last = lines[-1][:300] if lines else ""
    if any(ord(sign) < 32 and sign not in "\n\r\t" for sign in outcome.stdout + outcome.stderr):
        return Verdict("failure", f"control characters reach the terminal: {last!r}")
    if outcome.code is None:
        return Verdict("failure", f"not ended after {MOST_WAITED} s")
    if outcome.code == 2:
        if len(lines) != 1 or not lines[0].startswith("adapter-probe: ") or outcome.stdout:
            return Verdict("failure", f"{len(lines)} lines: {lines[:3]}")
        return Verdict("refused", last)
    if outcome.code != 0:
        return Verdict("failure", f"exit code {outcome.code}: {last}")
    try:
        subject.judge(place, done)
    except AssertionError as error:
        return Verdict("failure", f"WRONG: {str(error)[:300]}")
    except Exception as error:  # the reference itself finds no sense in the input
        return Verdict(
            "failure", f"ACCEPTED, but the reference says {type(error).__name__}: {str(error)[:300]}"
        )
    return Verdict("right")


def run(subject: Subject, program, place: Path):
    """A command on an input, with limits."""
    started = program.start(*subject.command, folder=place, before=LIMITS + subject.before)
    return started.result(MOST_WAITED)


@pytest.fixture(scope="module", params=SUBJECTS, ids=lambda subject: subject.name)
def subject(request: pytest.FixtureRequest) -> Subject:
    return request.param


@pytest.fixture(scope="module")
def original(subject, program, sources, tmp_path_factory) -> tuple[Path, list[str]]:
    """The input as it is, ablated once: copied for every mutation; and what was said of it."""
    place = tmp_path_factory.mktemp(subject.name)
    subject.lay(place, sources)
    outcome = run(subject, program, place)
    assert outcome.code == 0, outcome
    subject.judge(place, "")
    shutil.copytree(place / "out", place / "undisturbed")
    return place, said(outcome, place)


def test_one_line_or_the_right_numbers(subject, original, program, tmp_path):
    counts: dict[str, int] = {"refused": 0, "right": 0, "failure": 0}
    failures = []
    undisturbed, notes = original
    n = max(1, round(TOTAL * subject.share / sum(one.share for one in SUBJECTS)))
    began = time.monotonic()
    for number in range(n) if not ONLY else map(int, ONLY.split(",")):
        draw = random.Random(f"{SEED}/{subject.name}/{number}")
        place = tmp_path / str(number)
        shutil.copytree(undisturbed, place)
        stale = draw.random() < 0.3 or subject.on_results
        if not stale:
            shutil.rmtree(place / "out")
        files = sorted(path for pattern in subject.files for path in place.glob(pattern))
        file = draw.choice(files)
        done = mutate(file, draw)
        if subject.reseal:
            subject.reseal(place, draw)
        outcome = run(subject, program, place)
        verdict = judge(subject, place, outcome, done, notes)
        counts[verdict.kind] += 1
        if os.environ.get("ADAPTER_PROBE_FUZZ_LOG"):
            with open(os.environ["ADAPTER_PROBE_FUZZ_LOG"], "a") as log:
                print(json.dumps([subject.name, number, stale, done, verdict.kind, verdict.words]), file=log)
        if verdict.kind == "failure":
            failures.append(f"{number}: {done}{' (stale results there)' * stale}: {verdict.words}")
        if not ONLY:
            shutil.rmtree(place)
    print(f"{subject.name}: {n} mutations, {counts}, {time.monotonic() - began:.0f} s")
    assert not failures, "\n".join([f"{len(failures)} of {n} mutations of {subject.name}:", *failures])
    if n >= 20:
        assert counts["refused"], f"nothing was refused: the mutations of {subject.name} miss what is read"
