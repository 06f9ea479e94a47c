"""A device that is out of memory: fewer rows per pass with the same results, or one line with what helps."""

from __future__ import annotations

import numpy as np
import pytest
from refusals import naming

import adapter_probe as ap
from adapter_probe.errors import ModelError, TrainingError


def most_used(devices, call) -> tuple[object, int]:
    """What a call returns, and the bytes that it needs beside what was in use before."""
    with devices() as machine:
        before = machine.used[0]
        machine.peak[0] = before
        return call(), machine.peak[0] - before


@pytest.mark.parametrize("name", ["classes", "tokens"])
@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_fewer_rows_pass_together_with_the_same_results(
    name, precision, stored, devices, tmp_path, capsys, monkeypatch
):
    folder, data = stored[name]
    monkeypatch.setattr("adapter_probe.device.bfloat16_speed", lambda *_: 2.0)  # which needs 8 MiB
    given = {"data": data, "precision": precision}
    few = {**given, "tokens_per_pass": 1}
    whole, needed = most_used(devices, lambda: ap.ablate(folder, out=tmp_path / "whole", **given))
    _, least = most_used(devices, lambda: ap.ablate(folder, out=tmp_path / "few", **few))
    assert least < 0.7 * needed
    assert "out of memory" not in capsys.readouterr().err
    with devices(spare=(needed + 2 * least) // 3):
        found = ap.ablate(folder, out=tmp_path / "limited", **given)
    atol = 1e-5 if precision == "float32" else 0.1
    np.testing.assert_allclose(found.results.outputs, whole.results.outputs, atol=atol)
    said = capsys.readouterr().err
    assert "out of memory, so" in said
    assert "tokens_per_pass=" in said


@pytest.mark.parametrize("name", ["classes", "tokens"])
def test_what_does_not_fit_at_all_ends_in_one_line(name, stored, devices, tmp_path):
    folder, data = stored[name]
    facts = naming("does not fit", "pretend", "device_map='auto'", "precision='bfloat16'")
    with devices(spare=10_000), pytest.raises(ModelError, match=facts):
        ap.ablate(folder, data=data, out=tmp_path, progress=False)


@pytest.mark.slow
def test_a_training_that_does_not_fit_ends_in_one_line(tiny_base, short_task, devices, tmp_path):
    given = {"data": short_task, "method": "lora:r=2", "epochs": 1, "progress": False}
    base = tiny_base("bert")
    _, needed = most_used(devices, lambda: ap.train(base, out=tmp_path / "whole", **given))
    facts = naming("pretend", "out of memory", "batch_size=", "accumulate=")
    with devices(spare=needed // 2), pytest.raises(TrainingError, match=facts):
        ap.train(base, out=tmp_path / "limited", **given)
