"""Measure what a study would take, without running it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapter_probe.errors import ResultsError
from adapter_probe.progress import activity
from adapter_probe.results.schema import MANIFEST
from adapter_probe.spans import effective_variants

from .gallery import BYTES_OF_DRAWING, SECONDS_OF_DRAWING
from .plans import AblationPlan, SweepPlan

if TYPE_CHECKING:
    from adapter_probe.jobs.running import Resources
    from adapter_probe.jobs.trials import Trial
    from adapter_probe.probe.request import AblationRequest

    from .training_arguments import SweepSettings

_CHOICES = (("all", 1), ("all", 3), ("single", 1), ("prefix", 1), ("suffix", 1))
"""Spans and group of the other choices whose cost is estimated too."""


def plan_ablation(
    parts: Sequence[tuple[AblationRequest, Path]], folder: Path, seconds_before: float = 0.0
) -> AblationPlan:
    """The estimated cost of an ablation, or of one for each strength; nothing is written.

    The time is measured with some of the variants on one small batch per lane, and scaled by tokens and layer
    passes. The peak memory is measured meanwhile, to which statistics and figures add theirs.

    Args:
        parts: the requests, which differ only in their strength, with their results folders.
        folder: the results folder of all.
        seconds_before: what opening the checkpoint took.

    Raises:
        ResultsError: a folder belongs to another run, or is in use.
    """
    from adapter_probe.probe.engine import Engine
    from adapter_probe.probe.plan import count_work
    from adapter_probe.probe.resumable import AblationRun

    request, _ = parts[0]
    runs = [AblationRun(one, place) for one, place in parts]
    for run, (_, place) in zip(runs, parts):
        if (place / MANIFEST).exists():
            with run:  # to see which parts are there, and how the examples are divided
                pass
    engine = Engine(request)
    per_token = engine.seconds_per_token()
    total = sum(run.tokens_total for run in runs)
    seconds = per_token * (total - sum(run.tokens_done for run in runs))
    done, n_parts = (sum(numbers) for numbers in zip(*(run.parts_done() for run in runs)))
    work = count_work(request.variants.masks, request.encoded.lengths, request.model.forks_early)
    per_pass = per_token * total / sum(work.layer_evaluations)
    return AblationPlan(
        **asdict(work),
        choices=_other_choices(request, per_pass),
        n_spans=sum(span is not None for span in request.variants.spans),
        parts_done=done,
        parts=n_parts,
        tokens_per_pass=engine.tokens_per_pass,
        seconds_left=seconds_before + seconds + SECONDS_OF_DRAWING,
        seconds_computing=seconds,
        peak_memory_bytes=_peak_memory(engine.peak_memory(), request),
        device=str(request.device),
        engine=f"{request.engine.name}: {request.engine.reason}",
        folder=folder,
        n_strengths=len(parts),
    )


def _peak_memory(computing: int | None, request: AblationRequest) -> int | None:
    """Peak memory of the whole study in bytes: of computing, or of the statistics and figures that follow.

    These run on the host: where an accelerator computes, `computing` is its memory, and is what is told.
    """
    from adapter_probe.analysis.resampling import N_RESAMPLES

    if computing is None or request.device.type != "cpu":
        return computing
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        resident = pages * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux
        resident = computing
    bootstrap = 2 * 8 * N_RESAMPLES * len(request.variants.masks)  # scores and their differences, float64
    return max(computing, resident + BYTES_OF_DRAWING + bootstrap)


def _other_choices(request: AblationRequest, seconds_per_pass: float) -> list[dict[str, Any]]:
    """Spans, group, number of spans, layer passes and seconds of other choices on the same examples."""
    from adapter_probe.probe.plan import count_work

    model, settings = request.model, request.settings
    found = []
    for spans, group in _CHOICES:
        if (spans, group) == (settings.spans, settings.group):
            continue
        try:
            variants = replace(settings, spans=spans, group=group).variants(model.stacks)
        except ResultsError:  # the model has fewer layers, or no such span is left
            continue
        variants = effective_variants(variants, model.has_adapter)
        passes = count_work(variants.masks, request.encoded.lengths, model.forks_early).layer_evaluations
        n_spans = sum(span is not None for span in variants.spans)
        seconds = seconds_per_pass * sum(passes)
        found.append({"spans": spans, "group": group, "n_spans": n_spans, "layer_evaluations": passes,
                      "seconds": seconds})  # fmt: skip
    return found


def plan_sweep(
    sweep: SweepSettings, trials: Sequence[Trial], out: Path, resources: Resources, progress: bool
) -> SweepPlan:
    """The trials that will be trained, which of them are done, and a measured estimate of the time left."""
    from adapter_probe.device import choose_device, use_threads
    from adapter_probe.jobs.trials import estimate_seconds, finished_trials, seconds_of_start

    from .tuning import foreseen_trials

    device = choose_device("auto" if resources.cluster else resources.device)
    if not resources.cluster:
        use_threads(resources.threads)
    trials = foreseen_trials(sweep, trials, out)
    done = finished_trials(out, trials)
    left = [trial for trial in trials if trial.id not in done]
    with activity("measuring a few training steps of each method", progress):
        seconds = estimate_seconds(left, device)
        start = seconds_of_start() if left else 0.0  # start-up of this program and of each worker
    count = min(resources.at_a_time(len(left)), max(1, len(left)))
    starts = len(left) if resources.cluster else count  # each task of a job array runs one trial
    wall = start + (sum(seconds.values()) + starts * start) / count + SECONDS_OF_DRAWING if left else 0.0
    rows = [_plan_row(trial, trial.id in done, seconds.get(trial.id)) for trial in trials]
    return SweepPlan(rows, len(done), len(left), resources.at_a_time(len(left)), wall, out)


def _plan_row(trial: Trial, done: bool, seconds: float | None) -> dict[str, Any]:
    from adapter_probe.models.methods import TfidfLinear

    request = trial.request
    alone = isinstance(request.method, TfidfLinear)  # has none of these
    names = ("learning_rate", "epochs", "seed")
    chosen = {name: None if alone else getattr(request.settings, name) for name in names}
    return {"trial": trial.id, "task": request.task.name, "method": request.method.to_json(), **chosen,
            "done": done, "seconds": seconds}  # fmt: skip
