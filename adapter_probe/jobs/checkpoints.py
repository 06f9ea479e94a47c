"""Checkpoints as jobs: each folder says what to train in it, and holds the checkpoint afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from adapter_probe.checkpoints.description import DESCRIPTION
from adapter_probe.errors import AdapterProbeError, ResultsError, TrainingError
from adapter_probe.results.atomic import claim, make_folder, read_json, write_json
from adapter_probe.training.checkpoint import train_checkpoint
from adapter_probe.training.request import TrainingRequest

from .running import Jobs, Resources, describe_lost, run_jobs
from .trials import plan_trials

ORDER = "checkpoint-request.json"


def train_checkpoints(
    out: Path, requests: Mapping[Path, TrainingRequest], resources: Resources, progress: bool
) -> None:
    """Train what is missing of some checkpoints.

    Args:
        out: folder of them all, for logs.
        requests: what to train, by the checkpoint's folder.
        resources: what it runs on.
        progress: whether to show it.

    Raises:
        JobsDetached: jobs were sent and not waited for.
        TrainingError: some failed; the line says how many, why the first did, and where its log is.
        ResultsError: the folder is in use or cannot be written.
    """
    with claim(out):
        left = {folder: one for folder, one in requests.items() if not (folder / DESCRIPTION).exists()}
        steps = {}
        for folder, request in left.items():
            (trial,) = plan_trials([request])
            write_json(make_folder(folder) / ORDER, trial.request.to_json())
            steps[folder] = trial.n_steps
        jobs = Jobs(out, steps, len(requests), "checkpoints", "steps")
        failures = run_jobs(jobs, resources, progress) if left else []
    if lost := [folder for folder in left if not (folder / DESCRIPTION).exists()]:
        raise TrainingError(describe_lost(jobs, failures, lost))


def run_order(folder: Path, device: torch.device, report: Callable[[int], None]) -> None:
    """Train the checkpoint of one folder, or go on with it.

    Raises:
        AdapterProbeError: the request, the base or the data cannot be used, or the folder cannot be written.
    """
    path = folder / ORDER
    try:
        request = TrainingRequest.from_json(read_json(path))
    except ResultsError:
        raise
    except AdapterProbeError as error:
        raise ResultsError(f"{path}: {error}") from error
    train_checkpoint(request, folder, device, lambda now: report(now.step))
