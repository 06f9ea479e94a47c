"""The device and the number of threads that torch uses."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from adapter_probe.errors import ModelError, must_be

if TYPE_CHECKING:
    import torch


def choose_device(name: str) -> torch.device:
    """The device to run on; ``auto`` is the accelerator if there is one.

    Raises:
        ModelError: this machine has no such device.
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    count = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if kind not in count or not (index == "" or index.isdigit()) or int(index or 0) >= count[kind]:
        here = ", ".join(kind for kind, n in count.items() if n)
        raise ModelError(f"--device {name!r} is not available on this machine; choose from auto, {here}")
    return torch.device(kind if index == "" else name)


def check_threads(threads: int) -> None:
    """Refuse more threads than this machine has processors; torch crashes on some such numbers.

    Raises:
        ModelError: the number is not allowed.
    """
    most = os.cpu_count() or 1
    if not 0 <= threads <= most:
        words = f"a number from 1 to {most}, the processors of this machine, or 0 for PyTorch's default"
        raise ModelError(must_be("--threads", words, threads))


def use_threads(threads: int) -> None:
    """Use this many threads from now on; 0 uses PyTorch's default."""
    check_threads(threads)
    if threads:
        import torch

        torch.set_num_threads(threads)


def bfloat16_speed(device: torch.device, size: int = 1024) -> float:
    """Measured speed of a matrix product in bfloat16 relative to float32 on a device."""
    import torch

    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        matrix = torch.ones(size, size, dtype=dtype, device=device)
        times = []
        for _ in range(4):  # the first run includes set-up costs
            start = time.perf_counter()
            (matrix @ matrix).sum().item()
            times.append(time.perf_counter() - start)
        seconds[dtype] = min(times)
    return seconds[torch.float32] / seconds[torch.bfloat16]


def say_slow_bfloat16(device: torch.device, instead: str) -> str:
    """One line where bfloat16 is slower than float32, as without instructions for it; else empty.

    Args:
        device: where the work runs.
        instead: the option that is faster.
    """
    if (speed := bfloat16_speed(device)) >= 1:
        return ""
    found = f"bfloat16 matrix products are {speed:.1g} times as fast as float32 on this machine"
    return f"{found}; {instead} would be faster"
