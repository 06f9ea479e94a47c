"""What a study may use: processes and threads of this machine, its device, or a SLURM cluster."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import ClassVar

from adapter_probe.device import check_threads, choose_device
from adapter_probe.errors import AdapterProbeError, TrainingError
from adapter_probe.settings import OnDevice, setting

from .slurm_options import SlurmOptions


@dataclass(frozen=True, kw_only=True)
class Machine(OnDevice):
    """Where a study computes."""

    panel = "Running"

    threads: int = setting(
        0, "number of CPU threads, for the whole process (with a cluster: of CPUs per job); 0 uses PyTorch's "
        "default.",
    )  # fmt: skip
    cluster: SlurmOptions | None = setting(None, "SLURM cluster to compute on; by default this machine.")


@dataclass(frozen=True, kw_only=True)
class Resources(Machine):
    """Resources for the jobs of a study."""

    error: ClassVar[type[AdapterProbeError]] = TrainingError

    workers: int = setting(
        0,
        "number of parallel training processes; 0 uses one per CPU core, or one on an accelerator.",
        least=0,
    )
    threads: int = setting(
        1, "number of threads per process; 0 uses PyTorch's default. Results are reproducible for a fixed "
        "number.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cluster is None or self.threads < 0:
            check_threads(self.threads)
        if self.cluster is not None and self.workers:
            raise TrainingError("--workers applies only to this machine; with --slurm, use --max-parallel")

    def at_a_time(self, n_jobs: int) -> int:
        """Maximum number of parallel jobs."""
        if self.cluster is not None:
            return self.cluster.max_parallel or max(1, n_jobs)
        on_cpu = choose_device(self.device).type == "cpu"
        return self.workers or (max(1, (os.cpu_count() or 1) // max(1, self.threads)) if on_cpu else 1)
