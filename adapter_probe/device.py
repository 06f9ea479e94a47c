"""The device and the number of threads that torch uses, and the memory that there is."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from adapter_probe.errors import ModelError, must_be

if TYPE_CHECKING:
    import torch

_OUT_OF_MEMORY = ("allocate memory", "not enough memory", "out of memory")
_LARGE = 1 << 28  # parameters
_alone = SimpleNamespace(lock=threading.Lock(), n=0, threads=1)
_LIMIT = Path("/sys/fs/cgroup/memory.max")  # as a container sees its own


def choose_device(name: str) -> torch.device:
    """The device to run on; ``auto`` is the accelerator if there is one.

    Raises:
        ModelError: this machine has no such device.
    """
    import torch

    count = {"cpu": 1}
    if torch.accelerator.is_available():  # of any kind that this PyTorch was built for: CUDA, XPU, MPS, ...
        accelerator = torch.accelerator.current_accelerator()
        count = {accelerator.type: torch.accelerator.device_count(), **count}
    kind, _, index = name.partition(":")
    if name == "auto":
        kind = next(iter(count))
    elif not (index == "" or index.isdigit()) or int(index or 0) >= count.get(kind, 0):
        here = ", ".join([*count, *(f"{kind}:{n - 1}" for kind, n in count.items() if n > 1)])
        raise ModelError(f"--device {name!r} is not available on this machine; choose from auto, {here}")
    return torch.device(kind, int(index)) if index else torch.device(kind)


def devices_like(device: torch.device) -> list[torch.device]:
    """All devices of the kind of one, that one first."""
    import torch

    if device.type == "cpu":
        return [device]
    first = device.index or 0
    count = torch.get_device_module(device).device_count()
    return [torch.device(device.type, n) for n in sorted(range(count), key=lambda n: (n != first, n))]


def check_precision(device: torch.device, *names: str, option: str = "--precision") -> None:
    """Refuse a precision that a device does not compute in, such as float64 on Apple's GPUs.

    Args:
        names: precisions, of which "mixed" is bfloat16 with float32.
        option: the option that was given.

    Raises:
        ModelError: a product of two small matrices is not possible.
    """
    import torch

    for name in names if device.type != "cpu" else ():
        dtype = getattr(torch, {"mixed": "bfloat16"}.get(name, name))
        try:
            one = torch.ones(8, 8, dtype=dtype, device=device)
            (one @ one).sum().item()
        except (RuntimeError, TypeError) as error:
            other = f"{option} float32, or --device cpu" if name != "float32" else "--device cpu"
            raise ModelError(
                f"{option} {name} is not possible on {device}, which does not compute in it; give {other}"
            ) from error


def size_for(sizes: Mapping[str, int], kind: str) -> int:
    """Of sizes for "cpu" and "accelerator", that of a type of device."""
    return sizes.get(kind, sizes["accelerator"])


@contextmanager
def own_draws(device: torch.device) -> Iterator[None]:
    """Inside, random numbers are drawn without any consequence for those that are drawn afterwards."""
    import torch

    with torch.random.fork_rng(devices=[]):
        if device.type in ("cpu", "meta"):
            yield
            return
        module = torch.get_device_module(device)
        place = () if device.type == "mps" else (device,)  # of which there is one
        state = module.get_rng_state(*place)
        try:
            yield
        finally:
            module.set_rng_state(state, *place)


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


@contextmanager
def threads_for_few_rows(model: torch.nn.Module) -> Iterator[None]:
    """While a model that is not large runs on few positions at a time: one thread of PyTorch's.

    Several wait for one another after every step, for longer than the step takes where another program has
    one of their cores. A thread of the program that first uses PyTorch inside keeps one.
    """
    import torch

    if sum(p.numel() for p in model.parameters()) > _LARGE:
        yield
        return
    with _alone.lock:  # what is put back is the number before the first of those that overlap
        if not _alone.n:
            _alone.threads = torch.get_num_threads()
        _alone.n += 1
    torch.set_num_threads(1)
    try:
        yield
    finally:
        with _alone.lock:
            _alone.n -= 1
        torch.set_num_threads(_alone.threads)


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
    """Bytes that are free on a device; 0 if nobody can tell, so that nothing is spent."""
    if device.type != "cpu":
        import torch

        module = torch.get_device_module(device)
        if hasattr(module, "mem_get_info"):
            return int(module.mem_get_info(device)[0])
        if hasattr(module, "recommended_max_memory"):  # Apple's GPUs share the host's memory
            return max(0, int(module.recommended_max_memory() - module.driver_allocated_memory()))
        return 0
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


def peak_memory(device: torch.device, begin: bool = False) -> int | None:
    """The most bytes of tensors so far on an accelerator; None where that is not counted.

    Args:
        begin: whether to count from now on.
    """
    import torch

    module = torch.get_device_module(device)
    if not hasattr(module, "max_memory_allocated") or device.type == "cpu":
        return None
    if begin:
        module.reset_peak_memory_stats(device)
    return int(module.max_memory_allocated(device))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device, or the host, had no memory for a tensor."""
    import torch

    said = str(error)
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(words in said for words in _OUT_OF_MEMORY)
    )


def return_memory(device: torch.device) -> None:
    """Let the accelerator have the memory back that PyTorch keeps of freed tensors."""
    import torch

    if device.type != "cpu":
        torch.get_device_module(device).empty_cache()


def resident_memory() -> int:
    """Bytes that this process has in memory, on Linux."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def bfloat16_speed(device: torch.device, size: int = 512) -> float:
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
