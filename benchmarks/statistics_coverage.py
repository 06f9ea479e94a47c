"""Do the intervals cover what they say, and do the tests cry wolf? By simulation, with the truth known.

    python -m benchmarks.statistics_coverage [--only WORD,WORD] [--sizes N ...] [--minutes 50]

The cases, in `statistics_coverage_cases`, are ways to make scores of an intact model and of variants whose
true changes are known; the checks of them are in `statistics_coverage_checks`. Of each statistic are written,
to ``benchmarks/results/statistics_coverage.csv``, how often the 95% interval covers the truth, with the
standard error of that over the simulations, how often the truth lies below it (a drop is understated), its
mean width, and how often p is below 0.05 (false alarms where the truth is no change, else power), for 30 to
10,000 examples; for whole maps also how often anything at all is wrong in them.

Every case is simulated once, then 20 times in order of cost, then until its verdict is clear by two standard
errors or the time is over. A run goes on from the simulations that earlier ones kept in a file beside the
table; delete it to begin anew. With `--only` and `--sizes`, the rows of other cases stay. The draws of
intervals are 1,000, by which the least coverage of a quantile of draws is 94.8% where that of the draws of a
study is 95.0%.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .statistics_coverage_checks import NOT_TAKEN, Check, Found, checks

OUT = Path(__file__).parent / "results" / "statistics_coverage.csv"
KEPT = OUT.with_suffix(".jsonl.tmp")  # a simulation a line
MOST_WRONG = 0.055  # of maps, anything
FEWEST, FEWEST_MAPS = 20, 100  # simulations before a verdict


@dataclass
class Cell:
    """A case at a number of examples, with the simulations so far."""

    case: str
    n: int
    check: Check
    least: float
    found: list[Found] = field(default_factory=list)
    commits: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def simulate(self, commit: str) -> None:
        """Add a simulation, and keep it."""
        seed, start = [len(self.found), self.n, zlib.crc32(self.case.encode())], time.process_time()
        self.add(self.check(np.random.default_rng(seed), self.n), commit, time.process_time() - start)
        with KEPT.open("a") as file:
            file.write(
                json.dumps([self.case, self.n, self.found[-1], commit, time.process_time() - start]) + "\n"
            )

    def add(self, found: Found, commit: str, seconds: float) -> None:
        """Add a simulation that was made."""
        self.found.append(found)
        self.commits.append(commit)
        self.seconds += seconds

    @property
    def turn(self) -> tuple[bool, bool, float]:
        """The least is simulated next."""
        size = len(self.found)
        return size > 0, size >= FEWEST, self.seconds if size >= FEWEST else self.seconds / max(size, 1)

    def rows(self) -> list[dict[str, Any]]:
        """A row of the table for each statistic."""
        size, rows = len(self.found), []
        for statistic in self.found[0]:
            own = pd.DataFrame([one[statistic] for one in self.found])
            row = {"case": self.case, "statistic": statistic, "n": self.n, "simulations": size}
            row["commit"] = self.commits[0]
            row |= own.mean().to_dict()
            for name, limit in (("covers", self.least), ("any", MOST_WRONG), ("p_below_0.05", 0.05)):
                if name in own:
                    n = size if name == "any" else size * row["spans"]
                    spread = own[name].std() if size > 1 else 0.0
                    row[f"{name}_error"] = max(spread / size**0.5, (limit * (1 - limit) / n) ** 0.5)
            asked = "covers" in own and statistic not in NOT_TAKEN
            rows.append(row | {"least": self.least} if asked else row)
        return rows

    @property
    def is_clear(self) -> bool:
        """Whether every verdict is known by two standard errors."""
        said, size = self.rows(), len(self.found)
        apart = [abs(row["covers"] - self.least) / row["covers_error"] for row in said if "least" in row]
        for row in said:
            if "any" in row and not row["statistic"].endswith(NOT_TAKEN):
                apart.append(abs(row["any"] - MOST_WRONG) / row["any_error"])
                size = min(size, len(self.found) * FEWEST / FEWEST_MAPS)
        return size >= FEWEST and min(apart, default=np.inf) > 2


def write(cells: Sequence[Cell]) -> None:
    """Write the cases with enough simulations, and the commit of the first; rows of other cases stay."""
    found = pd.DataFrame([row for cell in cells if len(cell.found) >= FEWEST for row in cell.rows()])
    if found.empty:
        return
    first = ["case", "statistic", "n", "simulations", "spans", "said", "covers", "covers_error", "least"]
    first = [name for name in first if name in found]
    found = found[[*first, *(name for name in found if name not in [*first, "commit"]), "commit"]]
    if OUT.exists():
        kept, keys = pd.read_csv(OUT), ["case", "n"]
        done = pd.MultiIndex.from_frame(found[keys])
        found = pd.concat([kept[~pd.MultiIndex.from_frame(kept[keys]).isin(done)], found])
    found = found.sort_values("n", kind="stable")
    found.round(4).to_csv(OUT, index=False, lineterminator="\n")


def main() -> None:
    """Run and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="words, one of which is in the names of the cases")
    parser.add_argument("--sizes", type=int, nargs="*", help="numbers of examples, by default all")
    parser.add_argument("--minutes", type=float, default=50.0)
    options = parser.parse_args()
    commit = subprocess.check_output(["git", "rev-parse", "--short=8", "HEAD"], text=True).strip()
    end = time.perf_counter() + 60 * options.minutes
    words = options.only.split(",")
    cells = [Cell(*one) for one in checks() if any(word in one[0] for word in words)]
    cells = [cell for cell in cells if not options.sizes or cell.n in options.sizes]
    named = {(cell.case, cell.n): cell for cell in cells}
    for line in KEPT.read_text().splitlines() if KEPT.exists() else ():
        case, n, *kept = json.loads(line)
        if (case, n) in named:
            named[case, n].add(*kept)
    unclear, written = [cell for cell in cells if not (cell.found and cell.is_clear)], time.perf_counter()
    while unclear and time.perf_counter() < end:
        cell = min(unclear, key=lambda one: one.turn)
        cell.simulate(commit)
        if cell.is_clear:
            unclear.remove(cell)
        if time.perf_counter() > written + 60:
            write(cells)
            written = time.perf_counter()
            few = sum(len(one.found) < FEWEST for one in cells)
            print(
                f"{time.process_time():.0f} s; {few} cases have few simulations, {len(unclear)} are unclear"
            )
    write(cells)


if __name__ == "__main__":
    main()
