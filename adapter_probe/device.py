"""The device and the number of threads that torch uses, and the memory that there is."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from adapter_probe.errors import ModelError, must_be

if TYPE_CHECKING:
    import torch

_LIMIT = Path("/sys/fs/cgroup/memory.max")  # as a container sees its own


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


def memory_limit() -> int | None:
    """Bytes that this process may use by the limit of a SLURM job or a container; None without one."""
    given, found = os.environ, 0
    with suppress(OSError, ValueError):  # no container, or one without a limit
        if "SLURM_MEM_PER_NODE" in given:  # of this task alone, in MiB
            found = int(given["SLURM_MEM_PER_NODE"]) << 20
        elif "SLURM_MEM_PER_CPU" in given:
            found = int(given["SLURM_MEM_PER_CPU"]) * int(given.get("SLURM_CPUS_ON_NODE", 1)) << 20
        else:
            found = int(_LIMIT.read_text("ascii"))
    return found or None  # SLURM's 0 is all of the memory


def available_memory(device: torch.device) -> int:
    """Bytes that are free on a device."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.mem_get_info(device)[0])
    free = 0  # unknown: nothing is spent
    try:  # Linux
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        free = 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    except (OSError, StopIteration):
        if "SC_AVPHYS_PAGES" in getattr(os, "sysconf_names", {}):
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if (limit := memory_limit()) is not None:
        with suppress(OSError):
            free = min(free, max(0, limit - resident_memory()))
    return free


def resident_memory() -> int:
    """Bytes that this process has in memory, on Linux."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


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
