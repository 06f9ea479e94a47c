"""`adapter-probe prune` as a user runs it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def ablated(program, trained, tmp_path_factory) -> Path:
    """A checkpoint with its ablation inside."""
    folder = shutil.copytree(trained, tmp_path_factory.mktemp("ablated") / "c")
    assert program("ablate", folder).code == 0
    return folder


def test_a_span(program, ablated, tmp_path):
    outcome = program("prune", ablated, "--span", "0-1", "--out", tmp_path / "p", "--json")
    assert outcome.code == 0, outcome.stderr
    report = json.loads(outcome.stdout)
    rows = (ablated / "ablation" / "spans.csv").read_text().splitlines()
    names = rows[0].split(",")
    row = next(dict(zip(names, line.split(","))) for line in rows if line.startswith("0,1,"))
    assert report["delta_points"] == pytest.approx(float(row["delta_points"]))
    assert report["delta_interval_points"] == pytest.approx(
        [float(row["ci_low_points"]), float(row["ci_high_points"])], abs=2.0
    )
    assert report["adapter_parameters_after"] * 3 == report["adapter_parameters_before"]
    assert program("inspect", tmp_path / "p").code == 0
    assert program("ablate", tmp_path / "p", "--json").code == 0


def test_within_a_tolerance(program, ablated, tmp_path):
    summary = json.loads((ablated / "ablation" / "summary.json").read_text())
    outcome = program("prune", ablated, "--within", 100, "--out", tmp_path / "p")
    assert outcome.code == 0, outcome.stderr
    assert f"adapters of layers 0-{summary['n_layers'] - 1}" in outcome.stdout
    for word in ("costs", "95 % interval", "saves", "time", str(tmp_path / "p")):
        assert word in outcome.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["--span", "--within"]),
        (("--span", "0-1", "--within", 1), ["either"]),
        (("--span", "1-0"), ["'1-0'", "0-4"]),
        (("--span", "low"), ["'low'"]),
        (("--span", "0-3"), ["0-3", "layers are 0 to 2"]),
        (("--within", -1), ["--within -1"]),
        (("--within", "nan"), ["--within nan"]),
    ],
)
def test_bad_input(arguments, words, program, ablated, tmp_path):
    refusal = program("prune", ablated, *arguments, "--out", tmp_path / "p").refusal
    for word in words:
        assert word in refusal
    assert not (tmp_path / "p").exists()


def test_no_ablation_to_go_by(program, trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "c")
    refusal = program("prune", folder, "--within", 1, "--out", tmp_path / "p").refusal
    for word in (str(folder / "ablation"), "adapter-probe ablate", "--span"):
        assert word in refusal


def test_a_checkpoint_is_not_overwritten(program, ablated):
    assert "holds a checkpoint already" in program("prune", ablated, "--span", "0", "--out", ablated).refusal
