"""Training the top k layers with and without keeping what the frozen layers below make of each example.

    python benchmarks/top_layers_cache.py [--real FOLDER] [--sentences 500] [--rounds 2]

Three epochs for every k of the paper's grid, the two in turn. Without the cache the frozen layers run anew in
every epoch.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from environments import HERE, SCRATCH
from report import processor, spread, spread_text, store
from training import prepare

from adapter_probe.data.tasks import find_task
from adapter_probe.models.methods import TopLayers
from adapter_probe.results.rundir import RunDirectory
from adapter_probe.training import loop
from adapter_probe.training.request import TrainingInputs, TrainingRequest, build_model, load_inputs
from adapter_probe.training.settings import TrainingSettings

GRID = (0, 1, 2, 3, 5, 7, 9, 11, 12)  # of the paper's figures; those above the base's depth are left out
EPOCHS = 3


def main() -> None:
    """Measure, print, store."""
    options = parse()
    torch.set_num_threads(options.threads)
    sentences, rounds = (64, 1) if options.tiny else (options.sentences, options.rounds)
    folder = SCRATCH / "cases" / "top-layers-cache"
    base, what = prepare(folder, options.real, sentences)
    task = find_task(train=[folder / "train.tsv"], validation=[folder / "validation.tsv"])
    request = TrainingRequest(str(base), task, TopLayers(0), TrainingSettings(epochs=EPOCHS))
    inputs = load_inputs(request)
    grid = [k for k in GRID if k <= inputs.base.identity.n_layers]
    grid = grid[:2] if options.tiny else grid
    rows = {}
    for k in grid:
        rows[k] = compare(replace(request, method=TopLayers(k)), inputs, rounds)
        print(f"top-layers-cache: k = {k} is done", file=sys.stderr)
    record = {
        "machine": {"processor": processor(), "threads": options.threads},
        "sentences": sentences,
        "epochs": EPOCHS,
        "source": what,
        "k": {str(k): row for k, row in rows.items()},
        "grid_seconds": {
            way: sum(row[way]["median"] for row in rows.values()) for way in ("with", "without")
        },
    }
    store(record, options.results, "tiny-top-layers-cache" if options.tiny else "top-layers-cache")
    print(table(rows, record), flush=True)


def parse() -> argparse.Namespace:
    """The command's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--real", type=Path, help="folder with data/cola and weights/gte-small")
    parser.add_argument("--sentences", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--tiny", action="store_true", help="64 sentences, two values of k, once")
    return parser.parse_args()


def compare(request: TrainingRequest, inputs: TrainingInputs, rounds: int) -> dict[str, Any]:
    """Seconds with and without the cache, and their ratio, paired within the round."""
    seconds: dict[str, list[float]] = {"with": [], "without": []}
    uncached = mock.patch.object(loop, "feature_bytes", return_value=0)  # no room to keep anything
    for number in range(rounds):
        for way in ("with", "without") if number % 2 == 0 else ("without", "with"):
            with uncached if way == "without" else nullcontext():
                seconds[way].append(train(request, inputs))
    ratios = [slow / fast for fast, slow in zip(seconds["with"], seconds["without"])]
    return {**{way: spread(values) for way, values in seconds.items()}, "ratio": spread(ratios)}


def train(request: TrainingRequest, inputs: TrainingInputs) -> float:
    """Seconds of one training, its validations and saving included."""
    base = replace(inputs.base, model=deepcopy(inputs.base.model))
    model = build_model(request, base, torch.device("cpu"))
    with (
        tempfile.TemporaryDirectory(dir=SCRATCH) as folder,
        RunDirectory(Path(folder) / "run", {}, plan={}) as run,
    ):
        trainer = loop.Trainer(
            model, inputs.objective, settings=request.settings, run=run, report=lambda progress: None
        )
        start = time.perf_counter()
        trainer.train()
        return time.perf_counter() - start


def table(rows: dict[int, dict[str, Any]], record: dict[str, Any]) -> str:
    """Markdown."""
    total = record["grid_seconds"]
    lines = [
        f"### top layers\n\n{EPOCHS} epochs on {record['sentences']} sentences ({record['source']})\n",
        "| k | with the cache, s | without, s | without over with (range) |",
        "| --- | ---: | ---: | ---: |",
    ]
    for k, row in rows.items():
        both = f"{row['with']['median']:.1f} | {row['without']['median']:.1f}"
        lines.append(f"| {k} | {both} | {spread_text(row['ratio'], 2)} |")
    whole = f"{total['with']:.1f} | {total['without']:.1f} | {total['without'] / total['with']:.2f}"
    return "\n".join([*lines, f"| whole grid | {whole} |", ""])


if __name__ == "__main__":
    main()
