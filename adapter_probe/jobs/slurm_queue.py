"""What SLURM knows of its tasks, asked of its own programs.

Only ``squeue`` and ``scontrol`` are needed; ``sacct`` is asked where there is one, for many clusters keep no
accounts.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from adapter_probe.errors import TrainingError

_SECONDS = 60  # a busy controller may take long, but not for ever
_OF_A_JOB = ("SLURM_", "SLURMD_", "SRUN_")


@dataclass(frozen=True)
class Task:
    """A task that waits or runs.

    Attributes:
        state: such as PENDING or RUNNING.
        reason: why it waits.
    """

    state: str
    reason: str


def tasks_called(name: str) -> dict[str, Task]:
    """Every task that waits or runs under a job name, by ``job_index`` (``job`` outside an array).

    Raises:
        TrainingError: SLURM does not answer.
    """
    answer = _ask("squeue", "--noheader", "--array", f"--name={name}", "--format=%i|%T|%r")
    rows = (line.strip().split("|", 2) for line in answer.splitlines() if line.strip())
    return {identity: Task(state, reason) for identity, state, reason in rows}


def state_of(task: str) -> str:
    """What SLURM calls a task that waits or runs, such as RUNNING.

    Raises:
        TrainingError: SLURM does not answer.
    """
    return _ask("squeue", "--noheader", f"--jobs={task}", "--format=%T").strip()


def ending_of(task: str) -> str:
    """How a task that has left the queue ended, in a few words."""
    for question, pattern in (
        (("scontrol", "show", "job", task), r"JobState=(\w+).*?ExitCode=(\d+:\d+)"),
        (("sacct", "-n", "-P", "-X", "-j", task, "-o", "State,ExitCode"), r"(\w+)[^|]*\|(\d+:\d+)"),
    ):
        try:
            found = re.search(pattern, _ask(*question), re.DOTALL)
        except TrainingError:
            continue
        if found:
            # Killed: by SLURM itself, or, as srun tells it, its process.
            hint = " (out of memory?)" if found[2] == "137:0" or found[2].endswith(":9") else ""
            return f"SLURM says {found[1]}, exit code {found[2]}{hint}"
    return "SLURM does not say how"


def cancel(tasks: list[str]) -> None:
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


@contextlib.contextmanager
def outside_of_a_job() -> Iterator[None]:
    """Hides what SLURM tells the job in which this process may run: sbatch hands it on, and srun obeys it."""
    in_a_job = "SLURM_JOB_ID" in os.environ
    names = [name for name in os.environ if name.startswith(_OF_A_JOB) and name != "SLURM_CONF"]
    hidden = {name: os.environ.pop(name) for name in names if in_a_job}
    try:
        yield
    finally:
        os.environ.update(hidden)


def _ask(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except FileNotFoundError:
        raise TrainingError(
            f"there is no {command[0]} on this machine; --slurm needs one from which SLURM jobs can be sent"
        ) from None
    except subprocess.TimeoutExpired:
        raise TrainingError(f"SLURM does not answer: {command[0]} took longer than {_SECONDS} s") from None
    if done.returncode != 0:
        raise TrainingError(f"SLURM does not answer: {one_line(done.stderr)}")
    return done.stdout


def one_line(text: str) -> str:
    """What a program of SLURM complained of."""
    return " ".join(text.split()) or "no message"
