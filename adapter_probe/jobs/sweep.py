"""The trials of a sweep, and their training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from adapter_probe.progress import print_message
from adapter_probe.results.atomic import claim_folder
from adapter_probe.results.schema import TRIAL
from adapter_probe.results.trial_files import (
    claim_study,
    read_trials,
    trial_frame,
    write_trial,
    write_trials,
)

if TYPE_CHECKING:
    from adapter_probe.jobs.running import Resources
    from adapter_probe.jobs.trials import Trial


def run_trials(
    study: str,
    trials: Sequence[Trial],
    out: Path,
    resources: Resources,
) -> pd.DataFrame:
    """Run the missing trials; write and return the table of all trials in the folder.

    Raises:
        JobsDetached: the jobs were submitted and are not waited for.
        TrainingError: trials failed.
        ResultsError: the folder is in use or contains another study.
    """
    from adapter_probe.jobs.running import Jobs, run_jobs
    from adapter_probe.jobs.trials import finished_trials, shared_settings, told_of, write_requests

    with claim_folder(out):
        claim_study(out, study, *shared_settings(trials), told_of(trials))
        write_requests(out, trials)
        done = finished_trials(out, trials)
        for trial in trials:  # which may have another name now
            record, name = done.get(trial.id), trial.request.task.name
            if record is not None and record.task != name:
                write_trial(trial.folder(out), replace(record, task=name))
        steps = {trial.folder(out): trial.n_steps for trial in trials}
        jobs = Jobs(out, steps, TRIAL, "trials", "steps")
        if jobs.left() and resources.progress:
            say_slow_bfloat16(trials, resources)
        try:
            run_jobs(jobs, resources)
        finally:
            frame = trial_frame(read_trials(out))
            write_trials(out, frame)
    return frame


def say_slow_bfloat16(trials: Sequence[Trial], resources: Resources) -> None:
    """Print a line where trials in bfloat16 on this machine would be faster in float32, as `train` does."""
    from adapter_probe import device

    if resources.cluster is not None or trials[0].request.settings.dtype != "bfloat16":
        return
    if slow := device.say_slow_bfloat16(device.choose_device(resources.device), "--dtype float32"):
        print_message(slow)
