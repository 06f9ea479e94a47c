"""The side-by-side measurement runs end to end with the environment at hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parents[1] / "benchmarks" / "run.py"


@pytest.mark.slow
def test_tree_against_loop(tmp_path):
    command = [
        sys.executable,
        str(RUN),
        "bert-base",
        "--contenders",
        "tree,loop",
        "--tiny",
        "--rounds",
        "2",
        "--threads",
        "1",
        "--every",
        "1",
        "--also",
        "hooks",
    ]
    done = subprocess.run([*command, "--results", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "| plain loop, own model | all |" in done.stdout
    record = json.loads((tmp_path / "tiny-bert-base.json").read_text())
    assert (record["variants"], record["examples"]) == (7, 8)
    tree = record["contenders"]["tree"]
    for name in ("loop", "hooks"):
        loop = record["contenders"][name]
        assert loop["agreement"]["compared"] == 7 * 8
        assert loop["agreement"]["differing"] == 0
        assert min(loop["agreement"]["class_shares"]) > 0  # equal predictions say something
        assert loop["agreement"]["largest_logit_difference"] < 1e-4
        assert tree["operations"] < loop["operations"]
        assert loop["times_at_equal_rate"]["least"] > 0
    assert tree["memory"]["peak_mib"] > tree["memory"]["loaded_mib"] > 0


@pytest.mark.slow
def test_an_unknown_case_is_refused():
    done = subprocess.run(
        [sys.executable, str(RUN), "bert-huge"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "'bert-huge'" in done.stderr


@pytest.mark.slow
def test_a_language_model_on_a_device(tiny_base, tmp_path):
    questions = [{"question": "which is warm", "choices": ["the house", "a cat", "old tree"], "answer": 0}]
    sentences = [{"sentence": f"a {word} house", "label": n} for n, word in enumerate(("foul", "warm"))]
    for file, rows in (("arc_easy/test", 8 * questions), ("sst2/validation", 4 * sentences)):
        (tmp_path / file).parent.mkdir()
        (tmp_path / f"{file}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    command = [sys.executable, "-m", "benchmarks.accelerator", str(tmp_path), str(tiny_base("bert"))]
    done = subprocess.run(
        [*command, "--device", "cpu", "--tiny", "--cases", "135M,bert-base"],
        cwd=RUN.parents[1], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    causal, classes = map(json.loads, done.stdout.splitlines())
    assert [found["variants"] for found in (causal, classes)] == [7, 7]
    assert max(causal["largest_difference"]) < 0.05 * causal["largest_score"]  # of bfloat16
    assert max(classes["largest_difference"]) < 0.05
    assert causal["texts"] == 24
