"""Wall time of one init sweep: one local worker, two, and a SLURM cluster of two nodes.

    python benchmarks/sweep_wall_time.py [--train 1200] [--seeds 2] [--keep FOLDER]

Needs root, Debian's slurm-wlm and munge, and the extras demo and slurm; nothing else should run meanwhile.
The cluster is the one of the tests: two nodes of one processor each, on this machine. The tables of the
three runs must be equal, byte for byte; the Markdown table goes to stdout.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from environments import demo_base

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "fixtures"))

from slurm_cluster import start_cluster  # noqa: E402

from adapter_probe.data.demo import write_demo  # noqa: E402

PROGRAM = [sys.executable, "-c", "from adapter_probe.cli.main import main; main()"]
PLACES = {
    "1 local worker": ["--workers", "1"],
    "2 local workers": ["--workers", "2"],
    "2 nodes": ["--slurm", "--time", "60"],
}


def main() -> None:
    """Run the sweep in each place and print the table."""
    arguments = parse()
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="sweep-wall-time-"))
    write_demo(folder / "data", arguments.train, 300)
    sweep = [
        *PROGRAM, "init-sweep", "--base", str(demo_base()), "--task", str(folder / "data"),
        "--stds", "1e-3,1e-2,1e-1,1", "--size", "64", "--seeds", str(arguments.seeds), "--epochs", "1",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        cluster = start_cluster(Path(name))
        try:
            environment = {**os.environ, **cluster.environment, "OMP_NUM_THREADS": "1"}
            seconds = {
                place: timed([*sweep, "--out", str(folder / place.replace(" ", "-")), *options], environment)
                for place, options in PLACES.items()
            }
        finally:
            cluster.stop()
    tables = {(folder / place.replace(" ", "-") / "trials.csv").read_bytes() for place in PLACES}
    assert len(tables) == 1, f"the tables under {folder} differ"
    first = next(iter(seconds.values()))
    print(f"{4 * arguments.seeds} trials on {arguments.train} sentences, {os.cpu_count()} processors\n")
    print("| where | wall time, s | of one worker's |\n| --- | ---: | ---: |")
    for place, taken in seconds.items():
        print(f"| {place} | {taken:.0f} | {taken / first:.2f} |")


def parse() -> argparse.Namespace:
    """The command's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", type=int, default=1200, help="sentences to train on")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each of the four stds")
    parser.add_argument("--keep", type=Path, help="folder for the runs, to be kept; must be new")
    return parser.parse_args()


def timed(command: list[str], environment: dict[str, str]) -> float:
    """Seconds that a command takes."""
    start = time.monotonic()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - start


if __name__ == "__main__":
    main()
