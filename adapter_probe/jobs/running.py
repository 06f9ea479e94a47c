"""The jobs of a study, parallel on this machine or on a cluster, with one progress bar."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from adapter_probe.device import choose_device
from adapter_probe.errors import JobsDetached, TrainingError
from adapter_probe.progress import print_message, progress_bar

from .local import LocalProcesses
from .notes import Failure, OnStep
from .resources import Resources as Resources
from .resources import SlurmOptions
from .slurm import SlurmArray


@dataclass(frozen=True)
class Jobs:
    """The jobs of a study, each into a folder of its own, which is skipped once it has a result.

    Attributes:
        folder: folder of the study, claimed by this process.
        steps: number of steps of each job, by folder.
        result: name of the file that is the result of a job.
        kind: name of the jobs in messages.
        unit: name of the steps in messages.
    """

    folder: Path
    steps: Mapping[Path, int]
    result: str
    kind: str
    unit: str

    def left(self) -> list[Path]:
        """The jobs without a result, a file: a worker may have been killed after its last message."""
        return [job for job in self.steps if not (job / self.result).is_file()]

    def name_of(self, job: Path) -> str:
        """The name of a job in messages: its folder, relative to that of the jobs."""
        inside = os.path.relpath(job.resolve(), self.folder.resolve())
        return inside.removeprefix(f"{self.kind}{os.sep}")


def run_jobs(jobs: Jobs, resources: Resources) -> None:
    """Run the jobs that are left, or only submit them with ``--detach``.

    Raises:
        TrainingError: SLURM refuses the jobs, or some are lost; the message gives their number, the first
            cause, and its log file.
        JobsDetached: the jobs were submitted and are not waited for.
        KeyboardInterrupt: the user pressed Ctrl-C.
    """
    left = jobs.left()
    failures = _run(jobs, left, resources) if left else []
    # A single failure is part of the error.
    for failure in failures if len(failures) > 1 else ():
        print_message(f"{jobs.name_of(failure.job)} failed: {failure}", resources.progress)
    if not (left := jobs.left()):
        return
    known = {failure.job.resolve(): failure for failure in failures}
    # No known reason: a network file system may show files of a node late.
    unseen = Failure(left[0], "it finished, but its result is not visible yet (network file system?)")
    first = next((known[job.resolve()] for job in left if job.resolve() in known), unseen)
    raise TrainingError(
        f"{len(left)} of {len(jobs.steps)} {jobs.kind} failed, {jobs.name_of(first.job)} first: {first}; "
        f"finished {jobs.kind} are kept, and the same command runs the others again"
    )


def _run(jobs: Jobs, left: Sequence[Path], resources: Resources) -> list[Failure]:
    count, total, progress = resources.at_a_time(len(left)), len(jobs.steps), resources.progress
    print_message(f"{jobs.kind}: {total - len(left)} of {total} done, {count} in parallel", progress)
    if resources.cluster is not None:
        return _run_on_cluster(jobs, left, resources, resources.cluster)
    device = str(choose_device(resources.device))
    command, environment = _worker(device, resources.threads)
    executor = LocalProcesses(command, count, environment, jobs.folder / "logs")
    with _bar(jobs, left, progress) as (on_step, _):
        return executor.run(left, on_step)


def _run_on_cluster(
    jobs: Jobs, left: Sequence[Path], resources: Resources, options: SlurmOptions
) -> list[Failure]:
    command, environment = _worker(resources.device, resources.threads)
    progress = resources.progress
    cpus = max(1, resources.threads)
    array = SlurmArray(command, environment, jobs.folder / "slurm", options, cpus_per_task=cpus)
    submission = array.submit(left)
    sent, adopted = len(submission.sent), len(submission.adopted)
    for failure in submission.failed:
        print_message(f"{jobs.name_of(failure.job)} had failed and is submitted again: {failure}", progress)
    going = f"; submitted earlier and still queued or running: {adopted}" if adopted else ""
    print_message(f"jobs submitted: {sent}{going}; cancel them with `scancel --name={array.name}`", progress)
    if options.detach:
        total = len(jobs.steps)
        counts = {"jobs": total, "done": total - sent - adopted, "sent_now": sent}
        where = {"job_name": array.name, "folder": str(jobs.folder)}
        raise JobsDetached({**counts, "sent_earlier": adopted, **where})
    try:
        with _bar(jobs, left, progress) as (on_step, watch):
            return array.wait(left, on_step, watch)
    except KeyboardInterrupt:
        print_message(f"the jobs stay in the queue; cancel them with `scancel --name={array.name}`", progress)
        raise


def _worker(device: str, threads: int) -> tuple[list[str], dict[str, str]]:
    """The worker program and its variables; the interpreter must have the same path on cluster nodes."""
    command = [sys.executable, "-m", "adapter_probe.jobs.worker"]
    variables = {"TOKENIZERS_PARALLELISM": "false", **({"OMP_NUM_THREADS": str(threads)} if threads else {})}
    return [*command, "--device", device, "--threads", str(threads)], variables


@contextmanager
def _bar(jobs: Jobs, left: Sequence[Path], progress: bool) -> Iterator[tuple[OnStep, Callable[[str], None]]]:
    """A bar of all steps that are left: callbacks for a job's finished steps, and for a status message."""
    steps, done, word = {job: jobs.steps[job] for job in left}, dict.fromkeys(left, 0), ""
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
