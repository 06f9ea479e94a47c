"""`adapter-probe inspect` against a count by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from refusals import names
from safetensors.numpy import load_file

HIDDEN, LAYERS, SIZE, LABELS = 32, 3, 4, 2
ADAPTERS = 2 * LAYERS * (2 * HIDDEN * SIZE + HIDDEN + SIZE)
NORMS = (2 * LAYERS + 1) * 2 * HIDDEN
POOLER = HIDDEN * HIDDEN + HIDDEN
HEAD = HIDDEN * LABELS + LABELS


def n_parameters(base: Path) -> int:
    return sum(tensor.size for tensor in load_file(base / "model.safetensors").values())


def test_the_numbers(program, trained, tiny_base):
    outcome = program("inspect", trained, "--json")
    facts = json.loads(outcome.stdout)
    base = n_parameters(tiny_base("bert"))
    assert outcome.stderr == ""
    assert facts["parameters"] == {
        "adapters": ADAPTERS,
        "layernorms": NORMS,
        "pooler": POOLER,
        "head": HEAD,
        "base": base - NORMS - POOLER,
    }
    trained_count = ADAPTERS + NORMS + HEAD
    assert facts["trained_parameters"] == trained_count
    assert facts["trained_parameters_without_head"] == trained_count - HEAD
    assert facts["percent_of_base"] == pytest.approx(100 * (trained_count - HEAD) / base)
    assert facts["adapters_percent_of_base"] == pytest.approx(100 * ADAPTERS / base)
    assert (facts["n_layers"], facts["n_sites"], facts["hidden_size"]) == (LAYERS, 2 * LAYERS, HIDDEN)
    assert (facts["family"], facts["base"]) == ("bert", str(tiny_base("bert")))
    assert facts["method"]["size"] == SIZE

    delta = load_file(trained / "delta.safetensors")
    assert sum(tensor.size for tensor in delta.values()) == trained_count


def test_a_base_without_pooler(
    program, train_arguments: tuple, tiny_base: Callable[..., Path], tmp_path: Path
):
    arguments = list(train_arguments)
    arguments[arguments.index("--base") + 1] = base = tiny_base("bert", pooler=False)
    assert program(*arguments, "--epochs", 1, "--out", tmp_path / "c").code == 0
    facts = json.loads(program("inspect", tmp_path / "c", "--json").stdout)
    trained_count = ADAPTERS + NORMS + HEAD + POOLER
    assert facts["trained_parameters"] == trained_count
    assert facts["parameters"]["base"] == n_parameters(base) - NORMS
    # The pooler is no part of such a base: it came with the task, as the head did.
    assert facts["percent_of_base"] == pytest.approx(100 * (ADAPTERS + NORMS) / n_parameters(base))


def test_the_text_gives_the_same_numbers(program, trained, tiny_base):
    outcome = program("inspect", trained)
    base = n_parameters(tiny_base("bert"))
    for number in (ADAPTERS, NORMS, POOLER, HEAD, base - NORMS - POOLER, ADAPTERS + NORMS + HEAD):
        assert f" {number:,} parameters" in outcome.stdout
    shares = f"{ADAPTERS + NORMS:,} without", f"{100 * (ADAPTERS + NORMS) / base:.1f}%"
    assert any(names(line, *shares) for line in outcome.stdout.splitlines())
    for part in (
        str(tiny_base("bert")),
        "3, adapters at 6 sites, hidden size 32",
        "adapters, size 4, init std 0.2, activation gelu",
    ):
        assert part in outcome.stdout


def test_an_undefined_score_can_be_shown(program, trained, tmp_path):
    # A regression whose predictions are constant has no correlation; its checkpoint says null.
    import shutil

    folder = shutil.copytree(trained, tmp_path / "c")
    description = json.loads((folder / "adapter_probe.json").read_text())
    description["scores"] = {"accuracy": None}
    (folder / "adapter_probe.json").write_text(json.dumps(description))
    outcome = program("inspect", folder)
    assert outcome.code == 0
    assert "undefined accuracy" in outcome.stdout
    description["scores"] = {"accuracy": 0.6, "mcc": 0.25}
    (folder / "adapter_probe.json").write_text(json.dumps(description))
    assert "60.0% accuracy, Matthews correlation 0.250" in program("inspect", folder).stdout


def test_inspect_writes_nothing(program, trained):
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
    assert program("inspect", trained).code == 0
    assert before == {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
