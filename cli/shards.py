"""`adapter-probe ablate` on a cluster: its parts in shards, each a job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapter_probe.errors import TrainingError

from .jobs import failed, run_jobs

if TYPE_CHECKING:
    from adapter_probe.jobs.shards import AblationOrder
    from adapter_probe.jobs.slurm_options import SlurmOptions
    from adapter_probe.probe.request import AblationRequest

    from .jobs import Place

_USUAL_SHARDS = 8  # each pays for its start


def compute_in_shards(
    order: AblationOrder, request: AblationRequest, out: Path, place: Place, options: SlurmOptions
) -> dict[str, Any] | None:
    """Have what an ablation lacks computed by jobs, and take it over.

    Args:
        order: what is asked, as jobs are told.
        request: the same, opened here.
        out: the ablation's folder.
        place: where the jobs run.
        options: what a job gets.

    Returns:
        Where the jobs stand, if nobody waited for them; None once every part is there.

    Raises:
        TrainingError: jobs failed; what the others computed is kept.
        ResultsError: the folder is in use or belongs to another run.
    """
    from adapter_probe.jobs.shards import gather_shards, remove_shards, write_shards
    from adapter_probe.probe.ablation import AblationRun

    on_gpu = bool(options.gpus_per_task) if place.device == "auto" else place.device.startswith("cuda")
    with AblationRun.folder(request, out, "cuda" if on_gpu else "cpu") as run:
        ablation = AblationRun(request, run)
        gather_shards(out, run)
        if ablation.missing():
            shards = write_shards(out, order, run, ablation, options.max_parallel or _USUAL_SHARDS)
            left = {folder: tokens for folder, tokens in shards.items() if tokens}
            outcome = run_jobs(left, len(shards), "shards", "tokens", out, place)
            if outcome.detached is not None:
                return outcome.detached
            gather_shards(out, run)
            if ablation.missing():
                lost = [f for f, tokens in write_shards(out, order, run, ablation, 1).items() if tokens]
                raise TrainingError(failed(outcome.failures, lost, len(shards), "shards"))
        remove_shards(out)
    return None
