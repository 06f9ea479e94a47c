"""The device and the number of threads, refused in one line where this machine has not got them."""

from __future__ import annotations

import os

import pytest
import torch
from refusals import refuses

from adapter_probe import device
from adapter_probe.device import choose_device, threads_for_few_rows, use_threads
from adapter_probe.errors import ModelError


@pytest.mark.parametrize("name", ["gpu", "cpu:1", "cuda:99", "cpu:x", ""])
def test_a_device_that_is_not_here(name):
    refuses(ModelError, ("--device", repr(name), "auto", "cpu"), choose_device, name)


def test_devices():
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type in ("cpu", "cuda")


@pytest.mark.parametrize("threads", [-1, (os.cpu_count() or 1) + 1, 100_000])
def test_threads_that_are_not_here(threads):
    refuses(ModelError, ("--threads", "1", str(threads)), use_threads, threads)


def test_threads():
    before = torch.get_num_threads()
    try:
        use_threads(1)
        assert torch.get_num_threads() == 1
        use_threads(0)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_few_rows_have_one_thread_and_the_number_is_put_back(monkeypatch):
    before, model = torch.get_num_threads(), torch.nn.Linear(2, 2)
    try:
        torch.set_num_threads(2)
        first, second = threads_for_few_rows(model), threads_for_few_rows(model)
        first.__enter__()
        second.__enter__()
        assert torch.get_num_threads() == 1
        first.__exit__(None, None, None)  # as threads do that overlap
        second.__exit__(None, None, None)
        assert torch.get_num_threads() == 2
        with pytest.raises(ZeroDivisionError), threads_for_few_rows(model):
            raise ZeroDivisionError
        assert torch.get_num_threads() == 2
        monkeypatch.setattr(device, "_LARGE", 5)
        with threads_for_few_rows(model):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_slow_bfloat16_is_said_with_the_option_that_is_faster(monkeypatch):
    assert 0 < device.bfloat16_speed(torch.device("cpu"), size=64) < 1000
    for speed, words in ((0.25, ("0.2 times", "--dtype float32")), (1.0, ())):
        monkeypatch.setattr(device, "bfloat16_speed", lambda where, speed=speed: speed)
        said = device.say_slow_bfloat16(torch.device("cpu"), "--dtype float32")
        assert all(word in said for word in words)
        assert bool(said) == bool(words)


def test_free_memory_ends_where_a_job_or_a_container_has_its_limit(monkeypatch, tmp_path):
    cpu, limit = torch.device("cpu"), tmp_path / "memory.max"
    monkeypatch.setattr(device, "_LIMIT", limit)
    monkeypatch.setattr(device, "resident_memory", lambda: 300 << 20)
    free = device.available_memory(cpu)
    limit.write_text("max\n")
    assert device.memory_limit() is None
    limit.write_text(f"{500 << 20}\n")
    assert device.available_memory(cpu) == min(free, 200 << 20)
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "400")
    assert device.available_memory(cpu) == min(free, 100 << 20)
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "200")
    assert device.available_memory(cpu) == 0
    for value in ("0", "", "16G"):  # all of the memory, or what nobody can tell
        monkeypatch.setenv("SLURM_MEM_PER_NODE", value)
        assert device.memory_limit() is None


def test_another_error_of_a_device_is_no_lack_of_memory():
    for error, expected in [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (ValueError("out of memory"), False),
    ]:
        assert device.is_out_of_memory(error) is expected
