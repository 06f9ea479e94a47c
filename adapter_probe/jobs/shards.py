"""An ablation divided into shards that can be computed on any node, and joined again.

A shard is a folder with ``shard.json``, which contains paths and settings, and the computed parts, in the
same layout as in an ablation's folder. The examples of a part depend only on the ablation, so a part has the
same contents on every node and is identified by its number.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from adapter_probe.errors import AdapterProbeError, ResultsError
from adapter_probe.probe.ablation_arguments import AblationArguments
from adapter_probe.probe.request import AblationRequest, prepare_ablation
from adapter_probe.probe.resumable import AblationRun
from adapter_probe.records import from_record
from adapter_probe.results.atomic import make_folder, read_json, write_json
from adapter_probe.results.fingerprints import refuse_changes
from adapter_probe.results.rundir import MANIFEST, PARTS, RunDirectory
from adapter_probe.results.schema import GUARD

from .resources import SlurmOptions
from .running import Jobs, Resources, run_jobs

SHARDS, SHARD, DONE = "shards", "shard.json", "done.json"
_USUAL_SHARDS = 8  # each has start-up costs


def compute_in_shards(
    arguments: AblationArguments,
    request: AblationRequest,
    out: Path,
    resources: Resources,
    options: SlurmOptions,
) -> None:
    """Compute the missing parts of an ablation by jobs on a cluster, and collect them.

    Raises:
        TrainingError: jobs failed; the results of the others are kept.
        JobsDetached: the jobs were submitted and are not waited for.
        ResultsError: the folder is in use or belongs to another run.
    """
    on_gpu = options.gpus if resources.device == "auto" else not resources.device.startswith("cpu")
    with AblationRun(request, out, device_type="accelerator" if on_gpu else "cpu") as run:
        gather_shards(out, run)
        if run.missing():
            shards = write_shards(out, arguments, run, options.max_parallel or _USUAL_SHARDS)
            run_jobs(Jobs(out, shards, DONE, "shards", "tokens"), resources)
            gather_shards(out, run)
            if run.missing():
                raise ResultsError(
                    f"{out / SHARDS} lacks parts that its jobs have written; run the same command again"
                )
        shutil.rmtree(out / SHARDS, ignore_errors=True)


def write_shards(out: Path, arguments: AblationArguments, run: AblationRun, most: int) -> dict[Path, int]:
    """Distribute the missing parts of an ablation to shards.

    Existing shards keep their parts, because they may be running.

    Returns:
        The number of tokens that each shard has to compute, by folder; 0 if it is finished.
    """
    missing, total = run.missing(), run.parts_done()[1]
    there = len(list((out / SHARDS).glob("shard-*")))
    count = there or max(1, min(most, len(missing)))
    # Parts are sorted by length, so parts are dealt out in turn for equal work.
    shares = {
        out / SHARDS / f"shard-{number:03d}": [
            part for part in missing if part in range(number, total, count)
        ]
        for number in range(count)
    }
    for folder, parts in shares.items():
        asked = {"arguments": arguments.settled(), "plan": run.plan, "parts": parts}
        write_json(make_folder(folder) / SHARD, asked)
        if parts:
            (folder / DONE).unlink(missing_ok=True)
        else:
            write_json(folder / DONE, {"parts": parts})
    return {folder: sum(map(run.tokens_of, parts)) for folder, parts in shares.items()}


def run_shard(folder: Path, device: torch.device, report: Callable[[int], None]) -> None:
    """Compute the parts of a shard, or resume it.

    Args:
        folder: folder with ``shard.json``.
        report: called with the number of finished tokens after every batch.

    Raises:
        AdapterProbeError: the checkpoint or the data cannot be used, or the folder cannot be written.
    """
    path = folder / SHARD
    asked = read_json(path)
    try:
        arguments = from_record(AblationArguments, asked["arguments"], "arguments")
        plan, parts = dict(asked["plan"]), [int(part) for part in asked["parts"]]
    except (AdapterProbeError, KeyError, TypeError, ValueError) as error:
        raise ResultsError(f"{path} is damaged: {error}") from error
    request = prepare_ablation(arguments, device)
    with AblationRun(request, folder, plan=plan) as run:
        missing = sorted(set(parts) & set(run.missing()))
        done = sum(map(run.tokens_of, set(parts) - set(missing)))

        def count(tokens: int) -> None:
            nonlocal done
            done += tokens
            report(done)

        run.compute(count, missing)
        write_json(folder / DONE, {"parts": parts})


def gather_shards(out: Path, run: RunDirectory) -> None:
    """Collect the finished parts of all shards, including running ones; parts appear atomically.

    Raises:
        ResultsError: a shard was computed from other data or weights.
    """
    for folder in sorted((out / SHARDS).glob("shard-*")):
        if not (folder / MANIFEST).exists():
            continue
        identity: Any = read_json(folder / MANIFEST).get("identity", {})
        refuse_changes(identity, run.identity, f"{folder} is a shard of another run", "; remove it")
        if (folder / GUARD).exists() and not (out / GUARD).exists():
            write_json(out / GUARD, read_json(folder / GUARD))  # every shard measured the same sample
        for path in sorted((folder / PARTS).glob("part-*.npz")):
            number = int(path.stem.removeprefix("part-"))
            if number not in run.finished():
                try:
                    arrays = run.read_sealed(number, path)
                except ResultsError:  # damaged or another part: recomputed by the shard's job
                    continue
                run.write_part(number, arrays)
