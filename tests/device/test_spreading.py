"""Checkpoints spread over several devices by ``--device-map auto``: the same scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from refusals import naming
from transformers import AutoModelForCausalLM

import adapter_probe as ap
from adapter_probe.checkpoints import spreading
from adapter_probe.checkpoints.spreading import stored_bytes
from adapter_probe.errors import AdapterProbeError


@pytest.mark.parametrize("free", ["two devices", "devices, host and disk"])
def test_every_score_is_that_of_one_device(stored, free, devices, tmp_path, monkeypatch, capsys):
    folder, data = stored["tokens"]
    given = {"data": data, "precision": "float64"}
    expected = ap.ablate(folder, out=tmp_path / "one", device="cpu", **given)
    model = AutoModelForCausalLM.from_pretrained(folder.parent / "base", dtype=torch.float64)
    layer = stored_bytes(model.model.layers[0]) * 5 // 4
    ends = stored_bytes(model) - stored_bytes(model.model.layers)
    rooms = {"two devices": (2, 2, 0, 0), "devices, host and disk": (1, 1, 1, 1)}[free]
    names = ("pretend:0", "pretend:1", "cpu", "disk")
    room = {name: layer * n for name, n in zip(names, rooms)}
    room["pretend:0"] += ends
    monkeypatch.setattr("adapter_probe.probe.request.free_places", lambda device: room)
    with devices(2):
        found = ap.ablate(folder, out=tmp_path / "several", device_map="auto", **given)
    np.testing.assert_allclose(found.results.outputs, expected.results.outputs, atol=1e-6)
    assert np.ptp(found.results.outputs, axis=0).max() > 1e-3
    said = capsys.readouterr().err
    assert "The weights are on" in said
    assert [name in said for name in names] == [n > 0 for n in rooms]


def test_the_rooms_are_those_of_all_devices_of_the_kind(devices):
    with devices(2, spare=1 << 20):
        found = spreading.free_places(torch.device("pretend", 1))
    assert list(found) == ["pretend:1", "pretend:0", "cpu", "disk"]
    assert found["pretend:0"] <= 0.8 * (1 << 20)


def test_what_cannot_be_spread_is_refused_by_name(stored, devices, tmp_path):
    folder, data = stored["classes"]
    for options, words in [
        ({"device_map": "auto", "precision": "mixed"}, ("'mixed'", "this model", "float32")),
        ({"device_map": "balanced"}, ("device_map", "auto")),
    ]:
        with devices(2), pytest.raises(AdapterProbeError, match=naming(*words)):
            ap.ablate(folder, data=data, out=tmp_path, **options)
