"""Tokens a second in training: our loop against the `adapters` library with the transformers Trainer.

    python benchmarks/training.py [--real FOLDER] [--rounds 4] [--steps 30]

The same sentences (CoLA's, or generated) in batches of 32; adapters of size 64, LayerNorms and head train.
A token counts if it is no padding and in a step that was timed. The contenders take turns.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from environments import HERE, OWN, SCRATCH, demo_base, python_of
from preparing.demo_task import generate
from processes import Process
from report import processor, spread, spread_text, store

from adapter_probe.data.tasks import find_task, load_split

BATCH_SIZE, SIZE, WARM_UP = 32, 64, 4
N_VALIDATION = 8
DTYPES = ("float32", "bfloat16")
PLAYERS = {
    "own": (OWN, "train_own.py", {}),
    "adapters": ("adapters", "train_adapters.py", {"by_length": False}),
    "adapters-by-length": ("adapters", "train_adapters.py", {"by_length": True}),
}


def main() -> None:
    """Measure, print, store."""
    options = parse()
    steps, rounds = (2, 1) if options.tiny else (options.steps, options.rounds)
    folder = SCRATCH / "cases" / "training"
    base, sentences = prepare(folder, options.real, (WARM_UP + steps + 1) * BATCH_SIZE)
    environments = dict(pair.split("=", 1) for pair in options.env)
    common = {
        "case": str(folder),
        "base": str(base),
        "threads": options.threads,
        "batch_size": BATCH_SIZE,
        "size": SIZE,
        "warm_up": WARM_UP,
        "steps": steps,
    }
    given = {name: Path(path) for name, path in environments.items()}
    found, versions = measure(common, rounds, given, DTYPES[:1] if options.tiny else DTYPES)
    rows = summarise(found)
    record = {
        "machine": {"processor": processor(), "threads": options.threads},
        "sentences": sentences,
        "steps": steps,
        "versions": versions,
        "contenders": rows,
        "rounds": found,
    }
    store(record, options.results, "tiny-training" if options.tiny else "training")
    print(table(rows, sentences, steps), flush=True)


def parse() -> argparse.Namespace:
    """The command's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--real", type=Path, help="folder with data/cola and weights/gte-small")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=30, help="timed steps a measurement")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--env", action="append", default=[], metavar="PEER=FOLDER")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--tiny", action="store_true", help="two steps, once, in float32 alone")
    return parser.parse_args()


def prepare(folder: Path, real: Path | None, n_train: int) -> tuple[Path, str]:
    """Write train.tsv and validation.tsv; the base, and what the sentences are."""
    folder.mkdir(parents=True, exist_ok=True)
    if real is not None:
        task = find_task(real / "data" / "cola")
        rows = load_split(task, "train", n_train)
        pairs = [(task.label_names[n], text) for n, text in zip(rows.labels, rows.texts)]
        base, sentences = real / "weights" / "gte-small", "CoLA's"
    else:
        pairs = [(one.label, one.sentence) for one in generate(n_train + n_train % 2, 2, 0)["train"]][
            :n_train
        ]
        base, sentences = demo_base(), "generated"
    both = sorted(pairs[: 4 * N_VALIDATION])  # so many hold either label
    write(folder / "train.tsv", pairs)
    write(folder / "validation.tsv", [*both[: N_VALIDATION // 2], *both[-N_VALIDATION // 2 :]])
    return base, sentences


def write(path: Path, pairs: list[tuple[str, str]]) -> None:
    """Labels and sentences, tab-separated."""
    lines = [f"{label}\t{' '.join(text.split())}\n" for label, text in pairs]
    path.write_text("label\ttext\n" + "".join(lines), encoding="utf-8")


def measure(
    common: Mapping[str, Any], rounds: int, environments: Mapping[str, Path], dtypes: tuple[str, ...]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Every contender in every precision, taking turns; tokens a second by round, and versions."""
    names = [(player, dtype) for dtype in dtypes for player in PLAYERS]
    found: list[dict[str, Any]] = []
    with ExitStack() as stack:
        processes, versions = {}, {}
        for player, dtype in names:
            environment, script, own = PLAYERS[player]
            name = f"{player} {dtype}"
            scratch = SCRATCH / "running" / "training" / name.replace(" ", "-")
            python, log = python_of(environment, environments), scratch.with_suffix(".log")
            process = Process(name, python, f"{script}", common["threads"], log)
            processes[name] = stack.enter_context(process)
            told = process.ask("open", **common, dtype=dtype, scratch=str(scratch), **own)
            versions[player] = told["versions"]
        for number in range(rounds):
            turn = number % len(processes)
            order = [*processes][turn:] + [*processes][:turn]
            replies = {name: processes[name].ask("run", share=number, shares=rounds) for name in order}
            found.append({name: one["tokens"] / one["timed"] for name, one in replies.items()})
            print(f"training: round {number + 1} of {rounds} is done", file=sys.stderr)
        for process in processes.values():
            process.ask("close", out=None)
    return found, versions


def summarise(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Tokens a second, and ours over each in the same precision, paired within the round."""
    rows = {}
    for name in found[0]:
        ours = f"own {name.split()[1]}"
        rows[name] = {
            "tokens_per_second": spread([one[name] for one in found]),
            "ours_over_it": spread([one[ours] / one[name] for one in found]),
            "ours_over_its_float32": spread([one[ours] / one[f"{name.split()[0]} float32"] for one in found]),
        }
    return rows


def table(rows: Mapping[str, Any], sentences: str, steps: int) -> str:
    """Markdown."""
    lines = [
        f"### training\n\n{sentences} sentences, {steps} steps a measurement; ratios are of ours, paired\n",
        "| contender | tokens a second (range) | ours over it (range) | ours over its float32 (range) |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, row in rows.items():
        cells = [
            spread_text(row[key], digits)
            for key, digits in (("tokens_per_second", 0), ("ours_over_it", 2), ("ours_over_its_float32", 2))
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
