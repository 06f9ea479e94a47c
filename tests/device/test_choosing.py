"""What a device is, has and cannot do, by PyTorch's interface for accelerators of every kind."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from refusals import naming, refuses

import adapter_probe as ap
from adapter_probe.device import available_memory, check_precision, choose_device, own_draws, peak_memory
from adapter_probe.errors import ModelError


def test_the_accelerator_is_chosen_by_itself_and_by_its_name_and_number(devices):
    assert choose_device("auto") == torch.device("pretend")
    with devices(2):
        assert choose_device("pretend:1") == torch.device("pretend", 1)
        with pytest.raises(ModelError, match=naming("'pretend:2'", "auto", "pretend", "pretend:1", "cpu")):
            choose_device("pretend:2")
    with devices(0):
        assert choose_device("auto") == torch.device("cpu")
        refuses(ModelError, ("'pretend'", "choose from auto, cpu"), choose_device, "pretend")


@pytest.mark.parametrize(
    ("name", "lacks", "other"),
    [("float64", torch.float64, "float32"), ("bfloat16", torch.bfloat16, "float32"),
     ("mixed", torch.bfloat16, "float32"), ("float32", torch.float32, "--device cpu")],
)  # fmt: skip
def test_a_precision_that_a_device_has_not_is_refused_by_name(devices, name, lacks, other):
    check_precision(torch.device("pretend"), name)
    with devices(lacks=(lacks,)):
        check_precision(torch.device("cpu"), name)
        with pytest.raises(ModelError, match=naming(f"--precision {name}", "pretend", other)):
            check_precision(torch.device("pretend"), name)


def test_without_float64_every_score_is_there(devices, stored, tmp_path):
    folder, data = stored["classes"]
    given = {"data": data, "progress": False}
    expected = ap.ablate(folder, out=tmp_path / "a", device="cpu", **given).results.outputs
    with devices(lacks=(torch.float64,)) as machine:
        found = ap.ablate(folder, out=tmp_path / "b", **given).results.outputs
        assert machine.copies["down"]
        np.testing.assert_allclose(found, expected, atol=1e-5)
        with pytest.raises(ModelError, match=naming("float64", "pretend", "device='cpu'")):
            ap.ablate(folder, out=tmp_path / "c", precision="float64", **given)
        refuses(ModelError, ("dtype float64", "pretend", "float32"), ap.open, folder, dtype="float64")
    assert not (tmp_path / "c").exists()


def test_memory_is_that_of_the_device(devices):
    place = torch.device("pretend", 0)
    with devices(spare=1 << 20):
        assert available_memory(place) == 1 << 20
        held = torch.zeros(1 << 18, dtype=torch.uint8, device=place)
        assert available_memory(place) == (1 << 20) - held.numel()
        before = peak_memory(place, begin=True)
        torch.zeros(1 << 19, dtype=torch.uint8, device=place)
        assert peak_memory(place) == before + (1 << 19)
        with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
            torch.zeros(1 << 20, dtype=torch.uint8, device=place)
    assert peak_memory(torch.device("cpu")) is None


def test_draws_inside_change_none_that_follow():
    place, found = torch.device("pretend", 0), []
    for draws in (0, 3):
        torch.manual_seed(0)
        with own_draws(place):
            torch.rand(draws, device=place)
        found.append(torch.rand(2, device=place).tolist())
    assert found[0] == found[1]
