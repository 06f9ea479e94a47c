"""Output of the sweep commands: the estimated cost of a study, or its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapter_probe.studies.summaries import columns, duration, file_lists, method_text

from .console import show, show_json

if TYPE_CHECKING:
    from adapter_probe.jobs.running import Resources
    from adapter_probe.jobs.trials import Trial
    from adapter_probe.studies.init_sweep import InitSweep
    from adapter_probe.studies.tradeoff import Tradeoff


def show_sweep(study: InitSweep | Tradeoff, figures: Mapping[str, str], json: bool) -> None:
    """Print the points of a finished study and the paths of its files."""
    from adapter_probe.results import schema
    from adapter_probe.studies.sweeps import plain_rows

    names = (schema.TRIALS_CSV, schema.SWEEP_CSV, schema.TRADEOFF_CSV, schema.SIZES_CSV, schema.AGGREGATE_CSV)
    paths = [path for name in names if (path := study.folder / name).is_file()]
    files = {**{path.stem: str(path) for path in paths}, **figures}
    if json:
        show_json({"points": plain_rows(study.table), "files": files})
    else:
        show(f"{columns(study.rows())}\n\n{file_lists([files.values()])}")


def show_sweep_plan(trials: Sequence[Trial], out: Path, resources: Resources, json: bool) -> None:
    """Print the trials, which of them are done, and a measured estimate of the time for the rest."""
    from adapter_probe.studies.sweeps import plan_sweep

    plan = plan_sweep(trials, out, resources)
    show_json(plan) if json else show(plan_text(plan))


def plan_text(plan: dict[str, Any]) -> str:
    """The trials of a sweep and the estimated time left, as text."""
    rows = []
    for line in plan["trials"]:
        method = method_text(line["method"])
        state = "done" if line["done"] else f"about {duration(line['seconds'])}"
        if line["learning_rate"] is not None:
            method += f"; lr {line['learning_rate']:g}, {line['epochs']} epochs, seed {line['seed']}"
        rows.append((line["trial"], f"{line['task']}: {method}: {state}"))
    rows += [
        ("trials", f"{len(plan['trials'])}, {plan['done']} done, {plan['workers']} in parallel"),
        ("time left, estimated", duration(plan["seconds_left"])),
        ("folder", plan["folder"]),
    ]
    return columns(rows)
