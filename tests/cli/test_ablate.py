"""`adapter-probe ablate` end to end, against runs of the transformers model with hooks of their own."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from exact import assert_close_in_float32
from refusals import names
from sklearn.metrics import accuracy_score, matthews_corrcoef
from truth import native_logits

from adapter_probe.wording import ALL_OFF

SPANS = [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)]


def rows_of(file: Path) -> tuple[list[str], np.ndarray]:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [row["text"] for row in rows], np.array([row["label"] == "positive" for row in rows], dtype=int)


@dataclass
class Ablated:
    """What a finished ablation left."""

    summary: dict
    spans: list[dict[str, str]]
    arrays: dict[str, np.ndarray]
    about: dict


@pytest.fixture
def ablate(program, trained, tmp_path) -> Callable[..., Ablated]:
    """``ablate(options...)``: run on the trained checkpoint into a fresh folder, read what it wrote."""

    def run(*options: object, run: Callable = program.undrawn) -> Ablated:
        outcome = run("ablate", trained, "--out", tmp_path / "out", "--json", *options)
        assert outcome.code == 0, outcome.stderr
        with open(tmp_path / "out" / "spans.csv", newline="") as file:
            spans = list(csv.DictReader(file))
        with np.load(tmp_path / "out" / "predictions.npz") as archive:  # no pickle inside
            arrays = dict(archive)
        return Ablated(json.loads(outcome.stdout), spans, arrays, json.loads(str(arrays.pop("about"))))

    return run


def check_spans(ablated: Ablated, logits: np.ndarray, labels: np.ndarray, score: Callable) -> None:
    """Tables and summary against logits ``[intact and spans, examples, labels]``."""
    intact_score = score(labels, logits[0].argmax(1))
    assert list(ablated.spans[0]) == [
        "first", "last", "n_layers", "score", "delta_points", "n_examples", "ci_low_points", "ci_high_points",
        "p_value", "p_holm", "significant", "n_nonfinite", "bound_low_points", "interaction_points",
        "interaction_low_points", "interaction_high_points", "non_monotone",
    ]  # fmt: skip
    assert [(int(row["first"]), int(row["last"])) for row in ablated.spans] == SPANS
    for row, span, own in zip(ablated.spans, SPANS, logits[1:]):
        expected = score(labels, own.argmax(1))
        assert int(row["n_layers"]) == span[1] - span[0] + 1
        assert int(row["n_examples"]) == len(labels)
        assert float(row["score"]) == pytest.approx(expected, abs=1e-12)
        assert float(row["delta_points"]) == pytest.approx(100 * (expected - intact_score), abs=1e-9)
    assert len({row["score"] for row in ablated.spans}) > 2, "the ablation should matter"
    assert ablated.summary["intact_score"] == pytest.approx(intact_score)
    assert ablated.summary["removed_score"] == pytest.approx(score(labels, logits[3].argmax(1)))


@pytest.mark.parametrize(
    ("files", "metric", "score"),
    [
        (("validation", "train"), "mcc", matthews_corrcoef),
        pytest.param(("train",), None, accuracy_score, marks=pytest.mark.slow),
    ],
)
def test_every_example_under_every_span(files, metric, score, ablate, trained, tiny_base, tiny_task):
    """`tests/probe/test_ablation.py` has other variants; without a metric, a split of the task is scored."""
    paths = [tiny_task / f"{file}.jsonl" for file in files]
    texts, labels = (np.concatenate(both) for both in zip(*map(rows_of, paths)))
    spans = np.array([(-1, -1), *SPANS])
    wanted = native_logits(trained, tiny_base("bert"), texts.tolist(), spans)
    given = [part for path in paths for part in ("--data", path)] + ["--metric", metric]
    ablated = ablate(*(given if metric else ["--split", *files]))
    assert_close_in_float32(ablated.arrays["logits"], wanted, layers=3)
    assert np.array_equal(ablated.arrays["labels"], labels)
    assert ablated.arrays["spans"].tolist() == spans.tolist()
    check_spans(ablated, wanted, labels, score)
    assert ablated.summary["metric"] == metric or ablated.summary["majority_score"] == 0.5


def test_options_are_those_of_the_study(ablate):
    options = {"sites": "ffn", "layernorm": "pretrained", "precision": "float64"}
    given = [part for name, value in options.items() for part in (f"--{name}", value)]
    about = ablate("--max-examples", 4, "--complement", *given).about
    assert about["settings"].items() >= {**options, "complement": True}.items()


# --- where things go


@pytest.fixture
def own(trained, tmp_path) -> Path:
    """A checkpoint that the test may write into."""
    return shutil.copytree(trained, tmp_path / "own")


@pytest.mark.slow
def test_streams(own, program):
    text = program("ablate", own)
    assert text.code == 0
    for part in ("intact", ALL_OFF, "majority class", "single-layer", "within 0.5", "within 1", "within 2",
                 str(own / "ablation" / "spans.csv")):  # fmt: skip
        assert part in text.stdout
    assert "%|" not in text.stdout  # the bar is for the terminal
    assert "ablate:" in text.stderr
    assert "tokens" in text.stderr
    machine = program("ablate", own, "--json")
    found = json.loads(machine.stdout)
    assert set(found) >= {"intact_score", "removed_score", "majority_score", "files"}
    assert machine.stderr.splitlines() == found["question"] != []  # the rest was there


@pytest.mark.slow
def test_one_folder_a_study(own, program, tiny_task, tmp_path):
    other = shutil.copy(tiny_task / "train.jsonl", tmp_path / "other.jsonl")
    for options in ((), ("--sites", "ffn"), ("--split", "train"), ("--max-examples", 8), ("--data", other)):
        assert program.undrawn("ablate", own, *options).code == 0
    assert len(list(own.glob("ablation*"))) == 5


def test_dry_run_counts_and_writes_nothing(own, program, tree):
    before = tree(own)
    outcome = program("ablate", own, "--dry-run", "--json")
    plan = json.loads(outcome.stdout)
    assert tree(own) == before
    assert (plan["layer_evaluations"], plan["n_variants"], plan["n_examples"]) == ([7, 13], 7, 64)
    assert (plan["parts_done"], plan["parts"]) == (0, 1)
    assert plan["seconds_left"] > plan["seconds_computing"] + 1 > 1  # it has to start, and to draw
    assert program.undrawn("ablate", own).code == 0
    before = tree(own)
    text = program("ablate", own, "--dry-run")
    assert (tree(own), text.stderr) == (before, "")
    for part in ("7 (6 spans)", "64", "21 per batch", "1 of 1"):
        assert part in text.stdout


# --- what is read


@pytest.mark.slow
def test_files_in_another_encoding(trained, program, tmp_path):
    rows = "text,label\nthe café was warm,positive\na dim thé,negative\n"
    found = []
    for encoding in ("utf-8", "latin-1"):
        file = tmp_path / f"{encoding}.csv"
        file.write_bytes(rows.encode(encoding))
        ablate = ("ablate", trained, "--data", file, "--out", tmp_path / encoding, "--encoding", encoding)
        assert program.undrawn(*ablate).code == 0
        found.append(json.loads((tmp_path / encoding / "manifest.json").read_text())["identity"]["data"])
    assert found[0] == found[1]
    refused = program("ablate", trained, "--data", tmp_path / "latin-1.csv", "--out", tmp_path / "x").refusal
    assert names(refused, f"{tmp_path / 'latin-1.csv'} line 2", "UTF-8", "--encoding", "latin-1")


def test_an_encoding_without_files_is_refused(trained, program):
    refused = program("ablate", trained, "--encoding", "latin-1").refusal
    assert names(refused, "--encoding latin-1", "--data", "checkpoint")


def test_an_empty_base_is_not_the_remembered_one(trained, program):
    refused = program("ablate", trained, "--base", "").refusal
    assert names(refused, "base ''", "--base")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak memory from /proc")
def test_the_memory_of_statistics_and_figures_is_counted(trained, tmp_path):
    """What a dry run says is near what the system has counted when the study is done, in new processes."""
    code = (
        "import sys; from adapter_probe.cli.main import main\n"
        "try:\n    main()\nfinally:\n"
        "    print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0], file=sys.stderr)\n"
    )

    def peak(*more: str) -> tuple[dict, int]:
        arguments = ["ablate", trained, "--out", tmp_path / "out", "--json", *more]
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout), 1024 * int(done.stderr.split()[-1])

    told, planning = peak("--dry-run")
    _, taken = peak()
    assert taken > 1.1 * planning, "a model so small that what follows is what matters"
    assert taken / 1.3 < told["peak_memory_bytes"] < 1.3 * taken
