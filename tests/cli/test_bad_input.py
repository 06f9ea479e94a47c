"""Bad input to the real program: one line that names file, value and what is allowed, and exit code 2."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from refusals import names
from tiers import slow_unless


@pytest.fixture
def check(program) -> Callable[..., str]:
    """``check(arguments..., named=[...])``: the refusal, which names all of `named`."""

    def run(*arguments: object, named: list[object], **options: object) -> str:
        refusal = program(*arguments, **options).refusal
        assert names(refusal, *map(str, named)), refusal
        return refusal

    return run


@pytest.fixture
def task_arguments(train_arguments, tmp_path) -> list[object]:
    """A training without its data."""
    place = train_arguments.index("--task")
    return [*train_arguments[:place], *train_arguments[place + 2 :], "--out", tmp_path / "out"]


# --- data: the many kinds of bad files are in tests/data


def test_a_bad_file(check, task_arguments, trained, tiny_task, tmp_path):
    file, named = tmp_path / "latin1.jsonl", ["line 3", "UTF-8", "0xe9"]
    good = '{"text": "a kind cat", "label": "positive"}\n{"text": "a cold dog", "label": "negative"}\n'
    file.write_bytes(good.encode() + '{"text": "café", "label": "positive"}'.encode("latin-1"))
    files = ("--train-file", file, "--validation-file", tiny_task / "validation.jsonl")
    check(*task_arguments, *files, named=[file, *named])
    assert not (tmp_path / "out").exists()
    check("ablate", trained, "--data", file, named=[file, *named])
    assert not list(trained.glob("ablation*"))


def test_data_that_are_not_there(check, trained, task_arguments, tmp_path):
    none = tmp_path / "none.jsonl"
    check("ablate", trained, "--data", none, named=[none])
    check(*task_arguments, "--task", none, named=[none])
    check(*task_arguments, named=["folder"])


def test_a_task_without_validation(check, task_arguments, tiny_task, tmp_path):
    arguments = (*task_arguments, "--train-file", tiny_task / "train.jsonl")
    check(*arguments, named=["validation", "train"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("columns", ["text=colour,label", "text,label=colour"])
def test_a_column_that_is_not_there(columns, check, train_arguments, tmp_path):
    named = ["'colour'", "'text', 'label'", "train.jsonl"]
    check(*train_arguments, "--out", tmp_path / "out", "--columns", columns, named=named)


# --- options


@pytest.mark.parametrize(
    ("command", "options", "named"),
    [
        ("train", "--size 0", ["adapter size", "from 1 to 16,384", "0"]),
        ("train", "--epochs 0", ["--epochs", "at least 1", "0"]),
        ("train", "--max-length 1", ["max_length", "at least 3", "1"]),
        ("train", "--metric bleu", ["'bleu'", "accuracy, mcc"]),
        ("train", "--device tpu", ["'tpu'", "auto, cpu"]),
        ("train", "--kind regression", ["'positive'", "line 1"]),
        ("ablate", "--tokens-per-pass 0", ["--tokens-per-pass", "at least 1", "0"]),
        ("ablate", "--max-examples 0", ["at least 1", "0"]),
        ("ablate", "--split test", ["'test'", "train, validation"]),
        ("ablate", "--metric bleu", ["'bleu'", "accuracy, mcc"]),
        ("ablate", "--device tpu", ["'tpu'", "auto, cpu"]),
        ("ablate", "--sites other", ["--sites", "'other'", "attention, ffn"]),
        ("ablate", "--strength 1,0.5", ["--strength", "2", "3 layers"]),
        ("ablate", "--strength none.json", ["--strength", "none.json"]),
        ("ablate", "--adapter one,two", ["--adapter", "'one'"]),
        ("ablate", "--tolerance -1", ["tolerance", "-1"]),
        ("prune", "", ["--span", "--within"]),
        ("prune", "--span 0-1 --within 1", ["--span", "--within", "one"]),
        ("prune", "--span 1-0", ["'1-0'", "0-4"]),
        ("prune", "--span low", ["'low'"]),
        ("prune", "--span 0-3", ["0-3", "0 to 2"]),
    ],
)
def test_a_bad_option(command, options, named, check, train_arguments, trained, tmp_path):
    arguments = train_arguments[:5] if command == "train" else (command, trained)  # without other options
    check(*arguments, "--out", tmp_path / "out", *options.split(), named=named)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        (("ablate", "x", "--by"), "module"),
        (("ablate", "x", "--layernorm"), "pretrained"),
        (("ablate", "x", "--precision"), "bfloat16"),
        (("convert", "x", "y", "--to"), "adapterhub"),
        (("figures", "x", "--column"), "half"),
    ],
)
def test_a_choice_that_there_is_not(asked, allowed, program):
    outcome = program(*asked, "other", COLUMNS="200")
    assert (outcome.code, outcome.stdout) == (2, "")
    for part in (asked[-1], "other", allowed):
        assert part in outcome.stderr


# --- checkpoints and bases; their many kinds of damage are tested beside the code that opens them


def test_a_base_of_no_use_to_train_on(check, task_arguments, tiny_task, tmp_path):
    place = task_arguments.index("--base") + 1
    for base, named in (
        ("no-such-model", ["'no-such-model'", "Hub", "folder"]),
        ("/no/such/folder", ["base /no/such/folder"]),
        (tiny_task, [tiny_task, "config.json"]),
    ):
        arguments = [*task_arguments, "--task", tiny_task]
        arguments[place] = base
        check(*arguments, named=named)
    assert not (tmp_path / "out").exists()


# --- output folders


@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_an_output_folder_that_cannot_be(below, check, train_arguments, trained, tmp_path):
    (tmp_path / "file").write_text("mine")
    out = tmp_path / "file" / below
    for arguments in (("ablate", trained), train_arguments):
        check(*arguments, "--out", out, named=[tmp_path / "file"])
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_with_another_study(check, program, train_arguments, trained, tmp_path):
    out = tmp_path / "out"
    assert program.undrawn("ablate", trained, "--out", out, "--max-examples", 4).code == 0
    content = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    named = [out, "settings.sites: both -> ffn", "--out"]
    check("ablate", trained, "--out", out, "--max-examples", 4, "--sites", "ffn", named=named)
    check("ablate", trained, "--out", out, "--max-examples", 5, named=[out, "data.n_examples: 4 -> 5"])
    check(*train_arguments, "--out", out, named=[out])  # an ablation is no place for a checkpoint
    assert content == {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}


WAIT = """
import os, time
import adapter_probe.results.rundir as rundir
import adapter_probe.training.loop as loop
import adapter_probe.figures.gallery as gallery
gallery.write_gallery = lambda *_: []
loop.SECONDS_BETWEEN_SAVES = 0.0
original = rundir.RunDirectory.write_part
def write_part(self, *arguments):
    open(os.environ["STARTED"], "w").close()
    while not os.path.exists(os.environ["GO_ON"]): time.sleep(0.01)
    return original(self, *arguments)
rundir.RunDirectory.write_part = write_part
"""


@pytest.mark.parametrize("command", ["ablate", pytest.param("train", marks=pytest.mark.slow)])
def test_two_runs_on_one_folder(command, check, program, train_arguments, trained, tmp_path):
    arguments = ("ablate", trained) if command == "ablate" else train_arguments
    arguments, started, go_on = (*arguments, "--out", tmp_path / "out"), tmp_path / "started", tmp_path / "go"
    first = program.start(*arguments, before=WAIT, STARTED=str(started), GO_ON=str(go_on))
    while not started.exists() and not first.ended:
        time.sleep(0.01)
    try:
        check(*arguments, named=[tmp_path / "out", "in use", f"pid {first.pid}"])
    finally:
        go_on.touch()
    assert first.result().code == 0


# --- what is not the user's fault


@pytest.mark.parametrize(
    "error",
    slow_unless(
        "OSError(9, 'boom')".__eq__, ["ZeroDivisionError('boom')", "OSError(9, 'boom')", "KeyError('boom')"]
    ),
)
def test_a_bug_keeps_its_traceback(error, program, trained, tmp_path):
    before = f"""
import adapter_probe.probe.runners as general
def broken(*_, **__): raise {error}
general.ModelRunner.outputs = broken
"""
    outcome = program("ablate", trained, "--out", tmp_path / "out", before=before)
    assert outcome.code == 1
    assert "Traceback (most recent call last)" in outcome.stderr
    assert "in broken" in outcome.stderr


# --- the command line itself


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ablate", "x", "--max-examples", "many"], ["--max-examples", "'many'", "ablate --help"]),
        (["figures", "x", "--style", "nature"], ["--style", "'nature'", "'icml'", "figures --help"]),
        (["figures", "x", "--tolerance=much"], ["--tolerance", "'much'"]),
        (["ablate"], ["Missing", "CHECKPOINT"]),
        (["ablate", "x", "--nope"], ["--nope"]),
        (["figures", "x", "--style"], ["--style", "adapter-probe --help"]),
        (["ablation"], ["'ablation'"]),
        (["ablate", "x", "--split", "validation", "--split=train"], ["--split", "'validation'", "'train'"]),
        (["report", "x", "--tolerance", "1", "--tolerance", "2"], ["--tolerance", "'1'", "'2'"]),
        (["init-sweep", "--base", "a", "--base", "b", "--dry-run"], ["--base", "'a'", "'b'"]),
        (
            ["ablate", "none", "--split", "train", "--split", "train", "--json", "--json"],
            ["none"],
        ),  # the same
        (["tradeoff", "--base", "b", "--task", "t", "--out", "o", "--sizes", "2,,8"], ["--sizes", "'2,,8'"]),
    ],
)
def test_the_command_line(arguments, words, check):
    check(*arguments, named=words)


@pytest.mark.parametrize(
    "option", ["--layers", "--metric", "--sites", "--label-names", "--device", "--spans"]
)
def test_a_value_of_many_words_does_not_fill_the_terminal(option, program, trained, tmp_path):
    refusal = program("ablate", trained, option, "many words " * 300).refusal
    assert len(refusal) < 600
    assert "many words" in refusal
