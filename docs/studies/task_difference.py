"""Do two tasks differ beyond seeds and examples?

    python task_difference.py OUT NAME=SEED.csv,... NAME=SEED.csv,...

The files are ``spans.csv`` of every seed. For every span the mean drop over the seeds of the second task
minus that of the first, in points, with interval and test over seeds and examples (Holm's correction over
spans). The tasks have different examples, so nothing is paired; Student's t has one degree of freedom less
than a task has seeds. `share_a` and `share_b` are the shares of the drop of all layers, which do not depend
on how much the adapters contribute overall. `OUT/difference.csv` has the numbers, `OUT/difference.png` the
map.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from mean_maps import mean_map, reaches, tested

from adapter_probe.analysis.comparing import ComparisonRecord
from adapter_probe.figures.heatmap import heatmap


def main(out: Path, named: dict[str, str]) -> None:
    """Write the table and the map."""
    seeds = [[pd.read_csv(path) for path in paths.split(",")] for paths in named.values()]
    (a, b), n = map(mean_map, seeds), min(map(len, seeds))
    (below_a, above_a), (below_b, above_b) = map(reaches, seeds)
    error = np.hypot(*(one["sd_points"] / np.sqrt(len(own)) for one, own in zip((a, b), seeds)))
    # A change is a negative drop, so that what the second task loses more is the first's change less its own.
    table = a[["first", "last", "n_layers"]].assign(
        delta_points=a["delta_points"] - b["delta_points"], sd_points=error * np.sqrt(n)
    )
    table = tested(table, n, np.hypot(below_a, above_b), np.hypot(above_a, below_b))
    whole = table["n_layers"].idxmax()
    share_a, share_b = (one["delta_points"] / one["delta_points"][whole] for one in (a, b))
    table = table.rename(columns={"delta_points": "difference_points"}).assign(
        drop_a_points=-a["delta_points"], sd_a_points=a["sd_points"],
        drop_b_points=-b["delta_points"], sd_b_points=b["sd_points"],
        share_a=share_a, share_b=share_b,
    ).drop(columns=["sd_points", "bound_low_points"])  # fmt: skip
    intact = tuple(
        float(np.mean([(one["score"] - one["delta_points"] / 100)[0] for one in own])) for own in seeds
    )
    record = ComparisonRecord(tuple(named), table, "accuracy", int(b["n_examples"][0]), intact, {})
    out.mkdir(parents=True, exist_ok=True)
    rounded = table.drop(columns=["p_value", "p_holm"]).round(4)  # a small p is not 0
    table.assign(**rounded).to_csv(out / "difference.csv", index=False, lineterminator="\n")
    figure = Figure(figsize=(5.4, 4.4), layout="constrained")
    heatmap(record, figure.add_subplot())
    figure.savefig(out / "difference.png", dpi=200)
    print(f"{int(table['significant'].sum())} of {len(table)} spans differ beyond seeds and examples")


if __name__ == "__main__":
    main(Path(sys.argv[1]), dict(pair.split("=", 1) for pair in sys.argv[2:]))
