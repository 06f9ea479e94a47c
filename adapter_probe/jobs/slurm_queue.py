"""What SLURM is asked and told, by its own programs.

Only ``sbatch``, ``squeue``, ``scancel`` and ``scontrol`` are needed; ``sacct`` is asked where there is one,
for many clusters keep no accounts.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from adapter_probe.errors import TrainingError

_SECONDS = 60  # a busy controller may take long, but not for ever
_QUESTIONS = 3  # to a controller that does not answer
_OF_A_JOB = ("SLURM_", "SLURMD_", "SRUN_")


@dataclass(frozen=True)
class ArrayTask:
    """A task that waits or runs.

    Attributes:
        state: such as PENDING or RUNNING.
        reason: why it waits.
    """

    state: str
    reason: str


def submit(options: Sequence[str], script: str) -> str:
    """Send a batch script; the job's number.

    Raises:
        TrainingError: SLURM refuses it.
    """
    answer = _ask("sbatch", "--parsable", *options, stdin=script, complaint="SLURM refuses the jobs")
    return answer.strip().split(";")[0]


def tasks_called(name: str) -> dict[str, ArrayTask]:
    """Every task that waits or runs under a job name, by ``job_index``.

    Raises:
        TrainingError: SLURM does not answer.
    """
    answer = _ask("squeue", "--noheader", "--array", f"--name={name}", "--format=%i|%T|%r")
    rows = (line.strip().split("|", 2) for line in answer.splitlines() if line.strip())
    return {identity: ArrayTask(state, reason) for identity, state, reason in rows}


def still_wanted(task: str) -> bool:
    """Whether SLURM holds this task, which has been told to end, for a running one.

    One that was cancelled is completing by now, and so is one that somebody put back into the queue. One
    that ends by itself during the grace of a preemption would not be queued again by SLURM.
    """
    for _ in range(_QUESTIONS):
        with contextlib.suppress(TrainingError):
            state = _ask("squeue", "--noheader", f"--jobs={task}", "--format=%T").strip()
            return state in ("RUNNING", "SIGNALING")  # the latter until the signal's receipt
        time.sleep(1)
    return False


def requeue(task: str) -> None:
    """Put a running task back into the queue, which ends it.

    Raises:
        TrainingError: SLURM does not answer.
    """
    _ask("scontrol", "requeue", task)


def ending_of(task: str) -> str:
    """How a task that has left the queue ended, in a few words."""
    for question, pattern in (
        (("scontrol", "show", "job", task), r"JobState=(\w+).*?ExitCode=(\d+):(\d+)"),
        (("sacct", "-n", "-P", "-X", "-j", task, "-o", "State,ExitCode"), r"(\w+)[^|]*\|(\d+):(\d+)"),
    ):
        with contextlib.suppress(TrainingError):
            if found := re.search(pattern, _ask(*question), re.DOTALL):
                # Killed: by SLURM itself, or, as srun tells it, its process.
                hint = " (SIGKILL: out of memory?)" if found[2] == "137" or found[3] == "9" else ""
                return f"SLURM says {found[1]}, exit code {found[2]}:{found[3]}{hint}"
    return "SLURM does not say how"


def cancel(tasks: Iterable[str]) -> None:
    """Take tasks out of the queue.

    Raises:
        TrainingError: SLURM does not answer.
    """
    _ask("scancel", *tasks)


def longest_array() -> int:
    """The most tasks that an array of this cluster may have.

    Raises:
        TrainingError: SLURM does not answer.
    """
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", _ask("scontrol", "show", "config"), re.MULTILINE)
    return max(1, int(found[1])) if found else 1000


def _ask(*command: str, stdin: str = "", complaint: str = "SLURM does not answer") -> str:
    # As outside of a job in which this process may run: sbatch would hand on what that was given.
    hidden = _OF_A_JOB if "SLURM_JOB_ID" in os.environ else ()
    environment = {n: v for n, v in os.environ.items() if not n.startswith(hidden) or n == "SLURM_CONF"}
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, errors="surrogateescape", timeout=_SECONDS,
            env=environment,
        )  # fmt: skip
    except FileNotFoundError:
        raise TrainingError(
            f"there is no {command[0]} on this machine; --slurm needs one from which SLURM jobs can be sent"
        ) from None
    except subprocess.TimeoutExpired:
        raise TrainingError(f"SLURM does not answer: {command[0]} took longer than {_SECONDS} s") from None
    if done.returncode != 0:
        raise TrainingError(f"{complaint}: {' '.join(done.stderr.split()) or 'no message'}")
    return done.stdout
