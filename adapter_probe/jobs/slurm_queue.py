"""Communication with SLURM through its command line programs.

Only ``sbatch``, ``squeue``, ``scancel`` and ``scontrol`` are required; ``sacct`` is used if available,
because many clusters have no accounting. A question without an answer is a `TrainingError`.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterable, Sequence

from adapter_probe.errors import TrainingError

_SECONDS = 60  # limit for a busy controller
_QUESTIONS = 3  # for a controller that does not answer
_USUAL_REASONS = {"None", "Priority", "Resources", "JobArrayTaskLimit", "BeginTime", "Dependency"}
_OF_A_JOB = ("SLURM_", "SLURMD_", "SRUN_")


def submit(options: Sequence[str], script: str) -> str:
    """Submit a batch script; returns the job's id.

    Raises:
        TrainingError: SLURM refuses it.
    """
    answer = _ask("sbatch", "--parsable", *options, stdin=script, complaint="SLURM refused the jobs")
    return answer.strip().split(";")[0]


def tasks_called(name: str) -> dict[str, str]:
    """The states of all queued or running tasks with a job name, by ``job_index``.

    A state is a word such as ``running``, with a reason that waiting alone may not resolve:
    ``pending (QOSMaxJobs)``.
    """
    answer = _ask("squeue", "--noheader", "--array", f"--name={name}", "--format=%i|%T|%r")
    states = {}
    for line in filter(None, map(str.strip, answer.splitlines())):
        task, state, reason = line.split("|", 2)
        unusual = state == "PENDING" and reason not in _USUAL_REASONS
        states[task] = state.lower() + (f" ({reason})" if unusual else "")
    return states


def still_wanted(task: str) -> bool:
    """Whether SLURM still considers a task as running that has received a signal to end.

    A cancelled or requeued task is already completing. A task that ends voluntarily in the grace period of a
    preemption would not be requeued by SLURM.
    """
    for _ in range(_QUESTIONS):
        with contextlib.suppress(TrainingError):
            state = _ask("squeue", "--noheader", f"--jobs={task}", "--format=%T").strip()
            return state in ("RUNNING", "SIGNALING")  # the latter until the signal's receipt
        time.sleep(1)
    return False


def requeue(task: str) -> None:
    """Requeue a running task, which ends it."""
    _ask("scontrol", "requeue", task)


def ending_of(task: str) -> str:
    """How a task that has left the queue ended, as a short text."""
    for question, pattern in (
        (("scontrol", "show", "job", task), r"JobState=(\w+).*?ExitCode=(\d+):(\d+)"),
        (("sacct", "-n", "-P", "-X", "-j", task, "-o", "State,ExitCode"), r"(\w+)[^|]*\|(\d+):(\d+)"),
    ):
        with contextlib.suppress(TrainingError):
            if found := re.search(pattern, _ask(*question), re.DOTALL):
                # Killed: by SLURM itself, or, as srun tells it, its process.
                hint = " (SIGKILL: out of memory?)" if found[2] == "137" or found[3] == "9" else ""
                return f"SLURM reports {found[1]}, exit code {found[2]}:{found[3]}{hint}"
    return "SLURM does not report how"


def cancel(tasks: Iterable[str]) -> None:
    """Cancel tasks."""
    _ask("scancel", *tasks)


def longest_array() -> int:
    """The maximum number of tasks in an array on this cluster."""
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
            f"{command[0]} was not found; run --slurm on a machine from which SLURM jobs can be submitted"
        ) from None
    except subprocess.TimeoutExpired:
        raise TrainingError(f"SLURM does not answer: {command[0]} took longer than {_SECONDS} s") from None
    if done.returncode != 0:
        raise TrainingError(f"{complaint}: {' '.join(done.stderr.split()) or 'no message'}")
    return done.stdout
