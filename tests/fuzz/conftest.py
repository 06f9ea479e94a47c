"""The unchanged inputs, which the program makes: it has everything loaded before it forks."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from language_models import make_model, write_rows
from program import Program, program  # noqa: F401 (fixture)
from subjects import SWEEP, TRADEOFF


@pytest.fixture(scope="session")
def sources(
    program: Program,  # noqa: F811
    tiny_base: Callable[..., Path],
    tiny_task: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """Unchanged inputs: a checkpoint with its base and a few rows, two ablations, an initialisation sweep."""
    folder = tmp_path_factory.mktemp("sources")
    shutil.copytree(tiny_base("bert"), folder / "base")
    shutil.copytree(tiny_task, folder / "task")
    lines = sorted((tiny_task / "validation.jsonl").read_text().splitlines(keepends=True), key=len)
    few = [[line for line in lines if f'"{label}"' in line][:3] for label in ("positive", "negative")]
    (folder / "rows.jsonl").write_text("".join(few[0] + few[1]))
    for family in ("llama", "gpt2", "grown"):
        make_model(family, folder / f"causal-{family}")
    write_rows(folder / "choices.jsonl", "choices")
    llama = folder / "causal-llama"
    causal = ["--base", llama / "base", "--data", folder / "choices.jsonl"]
    place = ["--base", folder / "base", "--task", folder / "task"]
    rows = ["--base", folder / "base", "--data", folder / "rows.jsonl"]
    for arguments in (
        ["train", *place, "--size", 4, "--init-std", 0.2, "--learning-rate", 0.01, "--epochs", 2,
         "--out", folder / "trained"],
        ["train", *place, "--size", 4, "--init-std", 0.2, "--learning-rate", 0.01, "--epochs", 2, "--seed", 1,
         "--out", folder / "again"],
        ["ablate", folder / "again", *rows, "--out", folder / "seed1"],
        ["ablate", folder / "trained"],
        ["ablate", folder / "trained", *rows, "--out", folder / "out"],
        ["ablate", folder / "trained", *rows, "--layernorm", "pretrained", "--out", folder / "other"],
        [*SWEEP, *place, "--out", folder / "sweep"],
        [*TRADEOFF, *place, "--out", folder / "tradeoff"],
        ["ablate", llama / "checkpoint", *causal, "--out", folder / "causal-out"],
        ["figures", folder / "out", "--format", "svg", "--out", folder / "figures"],
        ["compare", folder / "out", folder / "other", "--format", "svg", "--out", folder / "figures"],
        ["report", folder / "out", folder / "sweep", "-o", folder / "report.html"],
        ["report", folder / "tradeoff", "-o", folder / "report.html"],
    ):  # fmt: skip
        assert program(*arguments).code == 0
    return folder
