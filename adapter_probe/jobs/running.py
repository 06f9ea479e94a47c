"""The jobs of a study: side by side on this machine, or on a cluster, with one progress bar."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from adapter_probe.errors import JobsDetached, TrainingError
from adapter_probe.models.device import check_threads, choose_device
from adapter_probe.progress import progress_bar, say

from .job import Failure, OnStep
from .local import LocalProcesses
from .slurm import SlurmArray
from .slurm_options import SlurmOptions


@dataclass(frozen=True)
class Resources:
    """What the jobs of a study run on.

    Attributes:
        workers: processes on this machine; 0 for one a core, or one on an accelerator.
        threads: of each process; 0 for torch's own choice.
        device: where each computes; on a cluster, that of the node.
        cluster: a SLURM cluster in place of this machine.
    """

    workers: int = 0
    threads: int = 1
    device: str = "auto"
    cluster: SlurmOptions | None = None

    def __post_init__(self) -> None:
        if self.cluster is None or self.threads < 0:
            check_threads(self.threads)
        if self.workers < 0:
            raise TrainingError(f"--workers {self.workers} is not allowed; give 0 or more")
        if self.cluster is not None and self.workers:
            raise TrainingError("--workers is for this machine; with --slurm give --max-parallel")

    def at_a_time(self, n_jobs: int) -> int:
        """How many jobs run side by side, at most."""
        if self.cluster is not None:
            return self.cluster.max_parallel or max(1, n_jobs)
        on_cpu = choose_device(self.device).type == "cpu"
        return self.workers or (max(1, (os.cpu_count() or 1) // max(1, self.threads)) if on_cpu else 1)


@dataclass(frozen=True)
class Jobs:
    """What a study has left to do.

    Attributes:
        folder: of the study, claimed by this process.
        steps: how many each job has to do, by its folder.
        total: jobs of the study, with those that are done.
        kind: what the jobs are called.
        unit: what the steps are called.
    """

    folder: Path
    steps: Mapping[Path, int]
    total: int
    kind: str
    unit: str

    @property
    def folders(self) -> list[Path]:
        """The jobs' folders."""
        return list(self.steps)


def run_jobs(
    jobs: Jobs, resources: Resources, progress: bool, look: Callable[[], None] = lambda: None
) -> list[Failure]:
    """Run jobs, or send them where nobody waits.

    Args:
        jobs: what is left to do.
        resources: where it is done.
        progress: whether to show it.
        look: called in this thread again and again while the jobs run.

    Raises:
        TrainingError: SLURM refuses the jobs.
        JobsDetached: nobody waits for them.
        KeyboardInterrupt: the person pressed Ctrl-C.
    """
    left = len(jobs.steps)
    count = resources.at_a_time(left)
    say(f"{jobs.kind}: {jobs.total}, {jobs.total - left} done, {count} at a time", progress)
    if resources.cluster is None:
        device = str(choose_device(resources.device))
        command, environment = _worker(device, resources.threads, min(count, left))
        executor = LocalProcesses(command, count, environment, jobs.folder / "logs")
        with _bar(jobs, progress) as (on_step, _):
            failures = executor.run(jobs.folders, on_step, look)
    else:
        failures = _run_on_cluster(jobs, resources, resources.cluster, progress)
    # A single one stands in the error, see `describe_lost`.
    for failure in failures if len(failures) > 1 else ():
        say(f"{failure.job.name} failed: {failure}", progress)
    return failures


def _run_on_cluster(jobs: Jobs, resources: Resources, options: SlurmOptions, progress: bool) -> list[Failure]:
    command, environment = _worker(resources.device, resources.threads, workers=1)
    cpus = max(1, resources.threads)
    array = SlurmArray(command, environment, jobs.folder / "slurm", options, cpus_per_task=cpus)
    submission = array.submit(jobs.folders)
    sent, adopted = len(submission.sent), len(submission.adopted)
    for failure in submission.failed:
        say(f"{failure.job.name} had failed, sent again: {failure}", progress)
    going = f"; sent earlier and waiting or running: {adopted}" if adopted else ""
    say(f"jobs sent: {sent}{going}; `scancel --name={array.name}` ends them", progress)
    if options.detach:
        counts = {"jobs": jobs.total, "done": jobs.total - sent - adopted, "sent_now": sent}
        where = {"job_name": array.name, "folder": str(jobs.folder)}
        raise JobsDetached({**counts, "sent_earlier": adopted, **where})
    try:
        with _bar(jobs, progress) as (on_step, watch):
            return array.wait(jobs.folders, on_step, watch)
    except KeyboardInterrupt:
        say(f"the jobs stay in the queue; `scancel --name={array.name}` ends them", progress)
        raise


def _worker(device: str, threads: int, workers: int) -> tuple[list[str], dict[str, str]]:
    """The worker program and its variables; the interpreter has the same path on a cluster's nodes."""
    command = [sys.executable, "-m", "adapter_probe.jobs.worker", "--workers", str(workers)]
    variables = {"TOKENIZERS_PARALLELISM": "false", **({"OMP_NUM_THREADS": str(threads)} if threads else {})}
    return [*command, "--device", device, "--threads", str(threads)], variables


@contextmanager
def _bar(jobs: Jobs, progress: bool) -> Iterator[tuple[OnStep, Callable[[str], None]]]:
    """A bar of all steps: what to call with a job's steps done, and with a word on the whole."""
    steps, done, word = jobs.steps, dict.fromkeys(jobs.steps, 0), ""
    with progress_bar(jobs.kind, sum(steps.values()), jobs.unit, enabled=progress) as bar:

        def show() -> None:
            finished = sum(done[job] == steps[job] for job in steps)
            bar.set_postfix_str(f"{finished} of {len(steps)} {jobs.kind} done{word}", refresh=False)

        def on_step(job: Path, step: int) -> None:
            bar.update(step - done[job])
            done[job] = step
            show()

        def watch(text: str) -> None:
            nonlocal word
            word = f"; {text}"
            show()
            bar.refresh()

        yield on_step, watch


def describe_lost(jobs: Jobs, failures: Sequence[Failure], lost: Sequence[Path]) -> str:
    """The line about jobs without a result.

    Args:
        jobs: all that were run.
        failures: why, as far as it is known.
        lost: the jobs without a result.
    """
    known = {failure.job.resolve(): failure for failure in failures}
    first = next((known[job.resolve()] for job in lost if job.resolve() in known), None)
    # Without a reason: a file system over the network may show late what a node wrote.
    reason = "it was done, but its result is not to be seen yet" if first is None else str(first)
    name = (lost[0] if first is None else first.job).name
    return (
        f"{len(lost)} of {jobs.total} {jobs.kind} failed, {name} first: {reason}; what was finished is kept, "
        "the same command tries the others again"
    )
