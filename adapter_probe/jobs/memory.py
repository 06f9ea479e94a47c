"""The most memory that a training uses."""

from __future__ import annotations

import contextlib
import gc
from pathlib import Path

import torch

from adapter_probe.probe.heap import return_all_free_memory

_PROCESS = Path("/proc/self")
_RESET_PEAK = "5"  # see clear_refs in proc(5)


class PeakMemory:
    """The peak of memory in use within the ``with`` block.

    Args:
        device: device of the training.

    Attributes:
        n_bytes: after the block, the peak in bytes: allocated tensors on a CUDA device; on the CPU the
            resident memory of this process, whose peak Linux resets and tells; None elsewhere.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self.n_bytes: int | None = None

    def __enter__(self) -> PeakMemory:
        gc.collect()
        return_all_free_memory()  # what an earlier trial of the same process left to the allocator
        self._known = self._device.type == "cuda"
        if self._known:
            torch.cuda.reset_peak_memory_stats(self._device)
        elif self._device.type == "cpu":
            with contextlib.suppress(OSError):
                (_PROCESS / "clear_refs").write_text(_RESET_PEAK)
                self._known = True
        return self

    def __exit__(self, *_: object) -> None:
        if not self._known:
            return
        if self._device.type == "cuda":
            self.n_bytes = torch.cuda.max_memory_allocated(self._device)
            return
        with contextlib.suppress(OSError, ValueError):
            lines = (_PROCESS / "status").read_text().splitlines()
            peak = dict(line.partition(":")[::2] for line in lines)["VmHWM"]
            self.n_bytes = int(peak.split()[0]) * 1024  # in kB
