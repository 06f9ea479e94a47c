"""How long the program takes before it does anything: `--help`, and `figures` on an ablation of 12 layers.

python benchmarks/start_up.py [--times 10]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from cases import Case, prepare
from environments import HERE, SCRATCH, variables
from report import processor, spread, store

RESULTS = HERE / "results"
THREADS = 1
PROGRAM = "from adapter_probe.cli.main import main; main()"
# The program as it is, and a last line that tells whether torch was loaded along the way.
WATCHED = f"""
import sys
try:
    {PROGRAM}
finally:
    print("torch" in sys.modules, file=sys.stderr)
"""
SHAPE = {"layers": 12, "hidden": 64, "texts": 16, "shortest": 4, "longest": 12, "adapters": True}


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--tiny", action="store_true", help="once each")
    options = parser.parse_args()
    times = 1 if options.tiny else options.times
    commands = {"--help": ["--help"], "figures": ["figures", str(ablation())]}
    rows = {name: measure(arguments, times) for name, arguments in commands.items()}
    record = {"machine": {"processor": processor()}, "times": times, "commands": rows}
    store(record, options.results, "tiny-start-up" if options.tiny else "start-up")
    print(
        "### start-up\n\n| adapter-probe | best, s | median, s | loads torch |\n| --- | ---: | ---: | --- |"
    )
    for command, row in rows.items():
        seconds = row["seconds"]
        print(f"| {command} | {seconds['least']:.2f} | {seconds['median']:.2f} | {row['loads_torch']} |")
    print(flush=True)


def ablation() -> Path:
    """A results folder, made once."""
    case = Case("start-up", "random", (), SHAPE)
    prepare(case, {}, None, {}, THREADS)
    out = SCRATCH / "start-up-results"
    if not (out / "spans.csv").exists():
        shutil.rmtree(out, ignore_errors=True)
        arguments = ["--base", str(case.folder / "model"), "--data", str(case.folder / "texts.tsv")]
        run(PROGRAM, ["ablate", str(case.folder / "adapter"), *arguments, "--out", str(out)])
    return out


def run(program: str, arguments: list[str]) -> str:
    """Run to the end; what it wrote to standard error.

    Raises:
        RuntimeError: it failed.
    """
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=variables(THREADS), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"adapter-probe {' '.join(arguments)} failed:\n{done.stderr}")
    return done.stderr


def measure(arguments: list[str], times: int) -> dict[str, Any]:
    """Seconds of a command, and whether it loads torch."""
    loads_torch = run(WATCHED, arguments).splitlines()[-1] == "True"  # also fills the file cache
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        run(PROGRAM, arguments)
        seconds.append(time.perf_counter() - start)
    return {"seconds": spread(seconds), "loads_torch": loads_torch}


if __name__ == "__main__":
    main()
