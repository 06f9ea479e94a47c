"""Files that hold what nobody expects: refused in one line, within bounded time and memory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from changed_files import LACKS, edit

# A gigabyte more than the libraries take; what asks for more is a failure, not a refusal.
LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_AS, (14 << 30, 14 << 30))"


@pytest.fixture
def refused(program) -> Callable[..., str]:
    """``refused(arguments..., named=words)``: the one line, which must hold every word.

    With ``seconds=30`` it has a process of its own, with limits on time and memory.
    """

    def run(*arguments: object, named: tuple[object, ...] = (), seconds: float | None = None) -> str:
        if seconds is None:
            refusal = program(*arguments).refusal
        else:
            refusal = program.start(*arguments, before=LIMIT).result(seconds).refusal
        for part in named:
            assert str(part) in refusal
        return refusal

    return run


@pytest.fixture
def base(tiny_base, tmp_path) -> Path:
    """A copy of the base that `trained` stands on."""
    return shutil.copytree(tiny_base("bert"), tmp_path / "base")


# --- bases


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 10**9},
        pytest.param({"hidden_size": 10**7}, marks=pytest.mark.slow),
        pytest.param({"vocab_size": 10**12}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_base_larger_than_any_memory(changes, refused, trained, base):
    edit(base / "config.json", **changes)
    refused("ablate", trained, "--base", base, named=(base,), seconds=60)


# --- data and tables


def test_data_in_a_pipe_that_nobody_writes(refused, trained, train_arguments, tmp_path):
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    refused("ablate", trained, "--data", pipe, named=(pipe,), seconds=30)
    place = train_arguments.index("--task")
    arguments = [*train_arguments[:place], *train_arguments[place + 2 :], "--out", tmp_path / "out"]
    refused(*arguments, "--train-file", pipe, "--validation-file", pipe, named=(pipe,), seconds=30)


@pytest.fixture
def results(program, trained, tmp_path) -> Path:
    out = tmp_path / "results"
    assert program.undrawn("ablate", trained, "--out", out, "--max-examples", 8).code == 0
    return out


def test_a_table_with_a_million_layers(refused, results):
    file = results / "spans.csv"
    text = file.read_text()
    file.write_text(text + text.splitlines()[-1].replace("2,2,", "1000000,1000000,", 1) + "\n")
    refused("figures", results, named=("spans.csv",), seconds=60)
    refused("report", results, "-o", results / "report.html", named=("spans.csv",), seconds=60)


# --- options


def test_more_threads_than_there_can_be(refused, trained):
    refused("ablate", trained, "--threads", 10**30, named=("threads", str(10**30)), seconds=60)


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 100_000,
        pytest.param("[" + "a." * 50_000 + "b]", marks=pytest.mark.slow),
        "a = {" * 10_000,
    ],
)
def test_toml_nested_deep(text, refused, tmp_path):
    file = tmp_path / "suite.toml"
    file.write_text(text)
    refused("suite", file, "--out", tmp_path / "out", named=(file,), seconds=60)


def test_no_control_characters_reach_the_terminal(program, trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "native")
    names = {"task.name": "red\x1b[31m", "task.label_names.0": "\x1b]0;title\x07"}
    edit(folder / "adapter_probe.json", names, head_sha256=LACKS)
    for command in ("inspect", "ablate"):
        outcome = program(command, folder)
        assert "\x1b" not in outcome.stdout + outcome.stderr
        assert "\x07" not in outcome.stdout + outcome.stderr
        assert "Traceback" not in outcome.stderr
