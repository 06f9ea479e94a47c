"""The program, and a checkpoint that it trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from program import Program, program  # noqa: F401 (fixture)
from trainings import tree  # noqa: F401 (fixture)


@pytest.fixture(scope="session")
def train_arguments(tiny_base: Callable[..., Path], tiny_task: Path) -> tuple[object, ...]:
    """A training of two short epochs; add ``--out``."""
    return ("train", "--base", tiny_base("bert"), "--task", tiny_task, "--size", 4, "--epochs", 2,
            "--init-std", 0.2, "--learning-rate", 0.01)  # fmt: skip


@pytest.fixture(scope="session")
def trained(
    program: Program,  # noqa: F811
    train_arguments: tuple,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A checkpoint that the program trained, for all tests: copy it before changing or writing into it."""
    folder = tmp_path_factory.mktemp("trained") / "checkpoint"
    outcome = program(*train_arguments, "--out", folder)
    assert outcome.code == 0, outcome.stderr
    return folder


@pytest.fixture(scope="session")
def short_sweep(tiny_base: Callable[..., Path], tiny_task: Path) -> Callable[..., tuple[object, ...]]:
    """``short_sweep(**options)``: a sweep of trials of one epoch; add ``--out``."""

    def sweep(**options: object) -> tuple[object, ...]:
        usual = {"stds": "0.1", "size": 2, "seeds": 1, "epochs": 1, "learning_rates": 0.01}
        asked = [(f"--{name.replace('_', '-')}", value) for name, value in {**usual, **options}.items()]
        return ("init-sweep", "--base", tiny_base("bert"), "--task", tiny_task, *sum(asked, ()))

    return sweep


@pytest.fixture(scope="module")
def undisturbed(
    program: Program,  # noqa: F811
    sweep: tuple,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The folder of a module's `sweep`, by one worker."""
    folder = tmp_path_factory.mktemp("undisturbed")
    outcome = program(*sweep, "--out", folder, "--workers", 1)
    assert outcome.code == 0, outcome.stderr
    return folder
