"""What a study of many layers and examples costs after the model has run: memory and time of its tables.

    python benchmarks/scaling.py --layers 80 --examples 5000 20000

Predictions are random, of a binary task; each size runs in a process of its own, so that its peak is its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.study_records import ablation_record
from adapter_probe.probe.plan import count_work
from adapter_probe.spans import span_variants


def tables(n_layers: int, n_examples: int) -> dict[str, float]:
    """Seconds of processor time and peak memory of the tables of all spans."""
    variants, generator = span_variants(n_layers), np.random.default_rng(0)
    n_variants = len(variants.masks)
    labels = generator.integers(0, 2, n_examples)
    logits = generator.normal(size=(n_variants, n_examples, 2)).astype(np.float32)
    logits[:, np.arange(n_examples), labels] += 1
    spans = np.array([(-1, -1) if span is None else (span.first, span.last) for span in variants.spans])
    settings = {"task": "random", "split": "validation", "sites": "both", "site_parameters": None}
    start = time.process_time()
    fields = (variants.masks, spans, variants.names, logits, labels, "accuracy", "classification")
    ablation_record(AblationResults(*fields, ("no", "yes"), {}, settings), Path("none"))
    seconds = time.process_time() - start
    shared, separate = count_work(variants.masks, np.ones(1, dtype=int)).layer_evaluations
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"variants": n_variants, "attention": shared, "ffn": separate, "seconds": seconds, "peak": peak}


def main() -> None:
    """Print a Markdown row a size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[12, 30, 80])
    parser.add_argument("--examples", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--one", action="store_true", help="the first size alone, as JSON")
    sizes = parser.parse_args()
    if sizes.one:
        print(json.dumps(tables(sizes.layers[0], sizes.examples[0])))
        return
    print("| layers | variants | passes: attention, FFN | examples | tables, s | peak memory, GiB |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for n_layers in sizes.layers:
        for n_examples in sizes.examples:
            size = ["--layers", str(n_layers), "--examples", str(n_examples)]
            command = [sys.executable, __file__, "--one", *size]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            passes = f"{found['attention']:,}, {found['ffn']:,}"
            cost = f"{found['seconds']:.1f} | {found['peak'] / 2**30:.1f}"
            print(f"| {n_layers} | {found['variants']:,} | {passes} | {n_examples:,} | {cost} |", flush=True)


if __name__ == "__main__":
    main()
