"""Checkpoints as jobs: each folder contains its training request, and later the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from adapter_probe.checkpoints.files import DESCRIPTION
from adapter_probe.errors import TrainingError
from adapter_probe.results.atomic import claim_folder, make_folder, write_json
from adapter_probe.training.checkpoint import refuse_other
from adapter_probe.training.request import TrainingRequest

from .running import Jobs, Resources, describe_lost, run_jobs
from .trials import identify_trials

CHECKPOINT_REQUEST = "checkpoint-request.json"


def train_checkpoints(
    out: Path, requests: Mapping[Path, TrainingRequest], resources: Resources, progress: bool
) -> None:
    """Train what is missing of some checkpoints; those that are there have to be what is asked for.

    Args:
        out: folder of all checkpoints, which also holds the logs.

    Raises:
        JobsDetached: jobs were sent and not waited for.
        TrainingError: some failed; the line says how many, why the first did, and where its log is.
        ResultsError: the folder is in use or cannot be written, or one of them holds another checkpoint.
    """
    with claim_folder(out):
        steps = {}
        for folder, trial in zip(requests, identify_trials(requests.values())):
            if (folder / DESCRIPTION).exists():
                refuse_other(folder, trial.identity)
            else:
                write_json(make_folder(folder) / CHECKPOINT_REQUEST, trial.request.to_json())
                steps[folder] = trial.n_steps
        jobs = Jobs(out, steps, len(requests), "checkpoints", "steps")
        failures = run_jobs(jobs, resources, progress) if steps else []
    if lost := [folder for folder in steps if not (folder / DESCRIPTION).exists()]:
        raise TrainingError(describe_lost(jobs, failures, lost))
