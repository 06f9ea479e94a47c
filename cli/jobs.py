"""Jobs of a study on their way: side by side on this machine, or on a cluster, with one progress bar."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapter_probe.errors import TrainingError
from adapter_probe.models.device import check_threads, choose_device
from adapter_probe.progress import progress_bar

from .console import say
from .slurm import detached, reason_and_log, say_submission

if TYPE_CHECKING:
    from adapter_probe.jobs.executor import Executor
    from adapter_probe.jobs.slurm import SlurmArray
    from adapter_probe.jobs.worker_process import Failure

    from .slurm import Cluster


@dataclass(frozen=True)
class Place:
    """Where a study's jobs run.

    Attributes:
        workers: processes on this machine; 0 for one a core, or one on an accelerator.
        threads: of each process; 0 for torch's own choice.
        device: where each computes; on a cluster, that of the node.
        cluster: in place of this machine.
    """

    workers: int
    threads: int
    device: str
    cluster: Cluster | None = None

    def __post_init__(self) -> None:
        if self.cluster is None or self.threads < 0:
            check_threads(self.threads)
        if self.cluster is not None and self.workers:
            raise TrainingError("--workers is for this machine; with --slurm give --max-parallel")

    def at_a_time(self, n_jobs: int) -> int:
        """How many jobs run side by side, at most."""
        if self.cluster is not None:
            return self.cluster.options.max_parallel or max(1, n_jobs)
        on_cpu = choose_device(self.device).type == "cpu"
        return self.workers or (max(1, (os.cpu_count() or 1) // max(1, self.threads)) if on_cpu else 1)


@dataclass(frozen=True)
class Outcome:
    """What came of some jobs: which failed, or, where nobody waited for them, where they stand."""

    failures: Sequence[Failure] = ()
    detached: dict[str, Any] | None = None


def run_jobs(steps: Mapping[Path, int], total: int, kind: str, unit: str, out: Path, place: Place) -> Outcome:
    """Run jobs, or send them where nobody waits.

    Args:
        steps: how many each job has to do, by its folder.
        total: jobs of the study, with those that are done.
        kind: what the jobs are called.
        unit: what the steps are called.
        out: folder of the study, claimed by this process.
        place: where they run.

    Raises:
        TrainingError: SLURM refuses the jobs.
        KeyboardInterrupt: the person pressed Ctrl-C.
    """
    jobs = list(steps)
    say(f"{kind}: {total}, {total - len(jobs)} done, {place.at_a_time(len(jobs))} at a time")
    if place.cluster is None:
        with _bar(steps, kind, unit) as (progress, _):
            failures = _local(place, out).run(jobs, progress)
        return _told(failures)
    executor = _slurm(place, place.cluster, out)
    submission = executor.submit(jobs)
    say_submission(submission)
    if place.cluster.detach:
        return Outcome(detached=detached(submission, total, out))
    try:
        with _bar(steps, kind, unit) as (progress, watch):
            failures = executor.wait(jobs, progress, watch)
    except KeyboardInterrupt:
        say(f"the jobs stay in the queue; `scancel --name={submission.name}` ends them")
        raise
    return _told(failures)


def _told(failures: Sequence[Failure]) -> Outcome:
    """Name several failures one by one; a single one stands in the command's last line, see `failed`."""
    for failure in failures if len(failures) > 1 else ():
        say(f"{failure.folder.name} failed: {reason_and_log(failure)}")
    return Outcome(failures)


@contextmanager
def _bar(
    steps: Mapping[Path, int], kind: str, unit: str
) -> Iterator[tuple[Callable[[Path, int], None], Callable[[str], None]]]:
    """A bar of all steps: what to call with a job's steps done, and with a word on the whole."""
    done, word = dict.fromkeys(steps, 0), ""
    with progress_bar(kind, sum(steps.values()), unit) as bar:

        def progress(folder: Path, step: int) -> None:
            bar.update(step - done[folder])
            done[folder] = step
            finished = sum(done[f] == steps[f] for f in steps)
            bar.set_postfix_str(f"{finished} of {len(steps)} {kind} done{word}", refresh=False)

        def watch(text: str) -> None:
            nonlocal word
            word = f"; {text}"
            for folder in list(steps)[:1]:
                progress(folder, done[folder])
            bar.refresh()

        yield progress, watch


def _program(device: str, threads: int) -> list[str]:
    """The worker, as this interpreter calls it; it stands under the same path on a cluster's nodes."""
    code = "from adapter_probe.cli.main import main; main()"
    return [sys.executable, "-c", code, "worker", "--device", device, "--threads", str(threads)]


def _environment(threads: int) -> dict[str, str]:
    return {"TOKENIZERS_PARALLELISM": "false", **({"OMP_NUM_THREADS": str(threads)} if threads else {})}


def _local(place: Place, out: Path) -> Executor:
    from adapter_probe.jobs.executor import LocalProcesses

    device = str(choose_device(place.device))
    program = _program(device, place.threads)
    return LocalProcesses(program, place.at_a_time(1), _environment(place.threads), out / "logs")


def _slurm(place: Place, cluster: Cluster, out: Path) -> SlurmArray:
    from adapter_probe.jobs.slurm import SlurmArray

    return SlurmArray(
        _program(place.device, place.threads),
        _environment(place.threads),
        out / "slurm",
        cluster.options,
        cpus_per_task=max(1, place.threads),
    )


def failed(failures: Sequence[Failure], lost: Sequence[Path], total: int, kind: str) -> str:
    """The line about jobs without a result.

    Args:
        failures: why, as far as it is known.
        lost: the jobs without a result.
        total: jobs of the study.
        kind: what the jobs are called.
    """
    known = {failure.folder.resolve(): failure for failure in failures}
    first = next((known[folder.resolve()] for folder in lost if folder.resolve() in known), None)
    if first is None:  # a file system over the network may show late what a node wrote
        reason = f"{lost[0].name} first: it was done, but its result is not to be seen yet"
    else:
        reason = f"{first.folder.name} first: {reason_and_log(first)}"
    return (
        f"{len(lost)} of {total} {kind} failed, {reason}; what was finished is kept, the same command tries "
        "the others again"
    )
